"""Cohorts beyond the recipe: TCGA names, folders of files, delimiters, and cells that nobody meant."""

from pathlib import Path

import pytest

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.cohort import Columns, folder_cohort, read_cohort
from nnunet_gdla.mil.cohort_match import find_files
from nnunet_gdla.mil.table_file import listed, read_table
from tests.mil.cohort_files import cohort_of, write_slides, write_table

TCGA = ["TCGA-AA-0001-01Z-00-DX1.A", "TCGA-AA-0001-11A-01-TS1.B", "tcga-bb-0002-01a-01-ts1", "TCGA-CC-0003"]


def test_tcga_patients_sites_and_sample_types(tmp_path: Path) -> None:
    folder = write_slides(tmp_path / "h5", TCGA)
    table = write_table(tmp_path / "t.csv", slide_id=TCGA, label=["a", "b", "b", "a"])
    cohort = read_cohort(table, folder, task="classification", patient="tcga")
    assert cohort.table.patient_id.tolist() == ["TCGA-AA-0001", "TCGA-AA-0001", "TCGA-BB-0002", "TCGA-CC-0003"]
    assert cohort.table.site.tolist() == ["AA", "AA", "BB", "CC"]
    assert "sample types: 01A (1), 01Z (1), 11A (1), unknown (1)" in cohort.notes
    with pytest.raises(UserError, match="name of TCGA-CC-0003 holds no TCGA sample type"):
        read_cohort(table, folder, task="classification", patient="tcga", sample_types=["01"])
    table = write_table(tmp_path / "t.csv", slide_id=TCGA[:3], label=["a", "b", "b"])
    kept = read_cohort(table, folder, task="classification", patient="tcga", sample_types=["01"])
    assert kept.table.slide_id.tolist() == [TCGA[0], TCGA[2]]
    assert f"left out 1 slide of other sample types than 01: {TCGA[1]}" in kept.notes
    only = read_cohort(table, folder, task=None, patient="tcga", sample_types=["11a"])
    assert only.table.slide_id.tolist() == [TCGA[1]]
    with pytest.raises(UserError, match=r"no slide is left; .*left out 3 slides of other sample types than 06"):
        read_cohort(table, folder, task=None, patient="tcga", sample_types=["06"])


def test_names_that_are_no_barcodes_are_listed(tmp_path: Path) -> None:
    names = ["TCGA-AA-0001-01Z", "S1", "TCGA-AA-00012"]
    folder = write_slides(tmp_path / "h5", names)
    table = write_table(tmp_path / "t.csv", slide_id=names)
    with pytest.raises(UserError, match="no TCGA barcode starts S1, TCGA-AA-00012"):
        read_cohort(table, folder, task=None, patient="tcga")


def test_patients_from_any_column(tmp_path: Path) -> None:
    folder = write_slides(tmp_path / "h5", ["s1", "s2"])
    table = write_table(tmp_path / "t.csv", slide_id=["s1", "s2"], case_id=["1", "01"], who=["x", ""])
    assert read_cohort(table, folder, task=None).table.patient_id.tolist() == ["1", "01"]
    with pytest.raises(UserError, match="no patient in column who for slide s2"):
        read_cohort(table, folder, task=None, patient="who")
    with pytest.raises(UserError, match="no column 'WHO', did you mean who"):
        read_cohort(table, folder, task=None, patient="WHO")
    with pytest.raises(UserError, match="no column 'whom', did you mean who"):
        read_cohort(table, folder, task=None, patient="whom")


def test_optional_columns_are_taken_where_they_are(tmp_path: Path) -> None:
    folder = write_slides(tmp_path / "h5", ["s1", "s2"])
    table = write_table(tmp_path / "t.csv", slide_id=["s1", "s2"], center=["A", "B"], hospital=["x", "y"])
    assert read_cohort(table, folder, task=None).table.columns.tolist() == ["slide_id", "patient_id", "path", "centre"]
    named = read_cohort(table, folder, task=None, columns=Columns(site="hospital")).table
    assert named.site.tolist() == ["x", "y"]
    with pytest.raises(UserError, match="no column 'town'"):
        read_cohort(table, folder, task=None, columns=Columns(site="town"))


def test_two_files_of_one_name_are_refused_with_both_paths(tmp_path: Path) -> None:
    write_slides(tmp_path / "h5", ["s1", "s2"])
    write_slides(tmp_path / "h5" / "again", ["s1", "s3"])
    table = write_table(tmp_path / "t.csv", slide_id=["s1", "s2"])
    with pytest.raises(UserError, match=r"several files fit slide s1: .*again/s1\.h5.*, .*h5/s1\.h5"):
        read_cohort(table, tmp_path / "h5", task=None)
    with pytest.raises(UserError, match="several files fit slide s1"):
        folder_cohort(tmp_path / "h5")
    unaffected = write_table(tmp_path / "t.csv", slide_id=["s2", "s3"])
    assert len(read_cohort(unaffected, tmp_path / "h5", task=None)) == 2


def test_several_folders_and_their_subfolders_are_searched(tmp_path: Path) -> None:
    one, two = write_slides(tmp_path / "one" / "deep", ["s1"]), write_slides(tmp_path / "two", ["s2"])
    write_slides(tmp_path / "two" / ".trash", ["s2"])
    (two / "s3.hdf5").write_bytes((two / "s2.h5").read_bytes())
    cohort = folder_cohort([one.parent, two])
    assert cohort.table.slide_id.tolist() == ["s1", "s2", "s3"]
    assert cohort.table.patient_id.tolist() == ["s1", "s2", "s3"]
    assert cohort.paths["s3"] == two / "s3.hdf5"
    assert len(folder_cohort([two, two])) == 2
    with pytest.raises(UserError, match="no folder of features"):
        find_files(tmp_path / "three")
    assert find_files(two / "s2.h5").paths == [two / "s2.h5"]
    (two / "table.csv").write_text("slide_id")
    with pytest.raises(UserError, match="no folder of features"):
        find_files(two / "table.csv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"holds no \.h5, \.hdf5, \.pt file"):
        find_files(tmp_path / "empty")


def test_an_exact_name_wins_over_one_that_is_only_alike(tmp_path: Path) -> None:
    folder = write_slides(tmp_path / "h5", ["a.svs", "a"])
    for name in ("a", "a.svs"):
        table = write_table(tmp_path / "t.csv", slide_id=[name])
        assert read_cohort(table, folder, task=None).table.slide_id.tolist() == [name]
    with pytest.raises(UserError, match="several files fit slide x/a"):
        read_cohort(write_table(tmp_path / "t.csv", slide_id=["x/a.tif"]), folder, task=None)


def test_rows_without_a_slide_name_are_refused_by_line(tmp_path: Path) -> None:
    folder = write_slides(tmp_path / "h5", ["s1"])
    table = write_table(tmp_path / "t.csv", slide_id=["s1", ""], label=["a", "b"])
    with pytest.raises(UserError, match="no slide name in column slide_id, line 3"):
        read_cohort(table, folder, task="classification")


def test_classes_that_are_numbers_are_ordered_by_value(tmp_path: Path) -> None:
    names = [f"s{i}" for i in range(12)]
    cohort = cohort_of(tmp_path, slide_id=names, label=[*range(11), 10])
    assert cohort.classes == tuple(map(str, range(11)))


def test_none_is_a_class_and_na_is_not(tmp_path: Path) -> None:
    cohort = cohort_of(tmp_path, slide_id=["s1", "s2", "s3"], label=["None", "some", "NA"])
    assert cohort.classes == ("None", "some")
    assert "left out 1 slide without a label: s3 (line 4)" in cohort.remarks.warnings


@pytest.mark.parametrize("time", ["12 months", "inf", "1e400", "0x10"])
def test_times_that_are_no_numbers_are_refused(tmp_path: Path, time: str) -> None:
    with pytest.raises(UserError, match=r"column time: '.*' \(line 2\) is no number"):
        cohort_of(tmp_path, "survival", slide_id=["s1", "s2"], time=[time, "3"], event=[0, 1])


def test_events_that_are_neither_0_nor_1_are_refused_with_their_lines(tmp_path: Path) -> None:
    names = ["s1", "s2", "s3", "s4"]
    with pytest.raises(UserError, match=r"column event holds 0\.5 \(line 3\), 2 \(line 4\): 0 \(censored\) and 1"):
        cohort_of(tmp_path, "survival", slide_id=names, time=[1, 2, 3, 4], event=["1", "0.5", "2", "2"])


def test_what_is_left_out_is_a_warning_and_what_is_counted_is_not(tmp_path: Path) -> None:
    names = ["s1", "s2", "s3", "s4", "s5"]
    times, events = ["-2", "nan", "3", "4", "0"], ["1", "1", "1", "", "0"]
    cohort = cohort_of(tmp_path, "survival", slide_id=names, time=times, event=events)
    assert cohort.table.slide_id.tolist() == ["s3"]
    assert cohort.remarks.lines == [
        f"PASS {tmp_path / 'cohort.csv'}: 1 slide of 1 patient; 1 event",
        "WARN no patient column: every slide counts as its own patient",
        "WARN left out 2 slides without a time or event: s2 (line 3, time 'nan', event '1'), "
        "s4 (line 5, time '4', event '')",
        "WARN left out 2 slides with a time of zero or less: s1 (line 2, time '-2'), s5 (line 6, time '0')",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a,b\n1,2,3\n4,5\n6\n", "not 2 cells, as the first line has, in line 2, 4"),
        (b"a,a\n1,2\n", "several columns are called a"),
        (b"a,b\n\xfc,2\n", r"is not UTF-8 \(line 2\); save it as CSV UTF-8"),
        (b"", "is empty"),
        (b"\n \n", "is empty"),
    ],
)
def test_tables_that_cannot_be_read_are_one_sentence(tmp_path: Path, text: bytes, message: str) -> None:
    (tmp_path / "t.csv").write_bytes(text)
    with pytest.raises(UserError, match=message):
        read_table(tmp_path / "t.csv")


def test_tables_that_are_none_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read the table"):
        read_table(tmp_path / "t.csv")
    with pytest.raises(UserError, match="is a spreadsheet; save it as CSV"):
        read_table(tmp_path / "t.xlsx")


def test_cells_stay_text_in_every_dialect(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('slide_id|note\n007|"a, b; c"\n\n 1e5 |" two\nlines "\nnan|,\n')
    table = read_table(path, ["slide_id"])
    assert table.slide_id.tolist() == ["007", "1e5", "nan"]
    assert table.note.tolist() == ["a, b; c", "two\nlines", ","]
    path.write_text("slide_id,a\n1,2,,\n3,4,,\n")
    assert read_table(path).to_numpy().tolist() == [["1", "2"], ["3", "4"]]


def test_long_lists_are_cut_with_their_number() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed([str(i) for i in range(30)]) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ... (30 in all)"
