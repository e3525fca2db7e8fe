"""Label tables as people have them: each is read as meant, or stops with a reason that names the rows.

Kinds of bug: ids read as numbers or as not-a-number, rows and files that vanish without a word, 1-based labels that add
a class, an event coded 1 and 2, one patient in two parts, a table saved by a spreadsheet in another dialect.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pytest

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.cohort import Cohort, Columns, read_cohort
from nnunet_gdla.mil.splits import make_splits, read_split, write_split
from tests.mil.cohort_files import write_slides

IDS: Final = [
    "TCGA-AA-0001-01Z-00-DX1.79F4D1A6-ACDB",
    "TCGA-AA-0001-01Z-00-DX2.11111111-AAAA",
    "S 12 (HE)",
    "007",
    "0010",
    "1234567890123456789",
    "1e5",
    "slide.v2.final",
    "Ünïcode_ß",
    "nan",
    "T12-34;A",
    "patient_000_node_0",
]
LABELS: Final = ["tumor", "tumor", "normal", "normal", "tumor", "normal"] * 2
PATIENTS: Final = [name[:12] for name in IDS]
_RNG: Final = np.random.default_rng(0)
# One time and event per patient, unlike in the recipe: its first patient has two slides.
TIMES: Final = [500, 500, *_RNG.integers(1, 2000, 10).tolist()]
EVENTS: Final = [1, 1, *([0, 1] * 5)]
BASE: Final = pd.DataFrame(
    {"slide_id": IDS, "patient_id": PATIENTS, "label": LABELS, "time": TIMES, "event": EVENTS}, dtype=object
)
ORPHAN: Final = "1 file without a row in the table: orphan_without_label"


@pytest.fixture(scope="module")
def h5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_slides(tmp_path_factory.mktemp("zoo") / "h5", IDS)
    (folder / "orphan_without_label.h5").write_bytes(b"")
    return folder


def read(table: pd.DataFrame | Path, h5: Path, tmp_path: Path, task: Any = "classification", **options: Any) -> Cohort:  # noqa: ANN401
    if isinstance(table, pd.DataFrame):
        path = tmp_path / "table.csv"
        table.to_csv(path, index=False)
        table = path
    return read_cohort(table, h5, task=task, **options)


def is_base(cohort: Cohort) -> None:
    assert cohort.table.slide_id.tolist() == IDS
    assert cohort.table.patient_id.tolist() == PATIENTS
    if cohort.task == "classification":
        assert cohort.table.label.tolist() == LABELS
        assert cohort.classes == ("normal", "tumor")
    else:
        assert cohort.table.time.tolist() == [float(time) for time in TIMES]
        assert cohort.table.event.tolist() == EVENTS
    assert [path.name for path in cohort.paths.values()] == [f"{name}.h5" for name in IDS]
    assert ORPHAN in cohort.notes


def test_01_plain(h5: Path, tmp_path: Path) -> None:
    for task in ("classification", "survival"):
        cohort = read(BASE, h5, tmp_path, task)
        is_base(cohort)
        split = make_splits(cohort, "holdout")
        write_split(tmp_path / "split.csv", split, cohort)
        assert read_split(tmp_path / "split.csv")[:3] == split[:3]


@pytest.mark.parametrize("change", ["{}.svs", "/data/x/{}.h5", "D:\\slides\\{}.ndpi", "{}.svs.h5", " {} "])
def test_02_and_03_extensions_and_paths(h5: Path, tmp_path: Path, change: str) -> None:
    is_base(read(BASE.assign(slide_id=[change.format(name) for name in IDS]), h5, tmp_path))


@pytest.mark.parametrize("as_number", [int, float])
def test_04_and_05_labels_as_numbers(h5: Path, tmp_path: Path, as_number: type) -> None:
    cohort = read(BASE.assign(label=[as_number(label == "tumor") for label in LABELS]), h5, tmp_path)
    assert cohort.classes == ("0", "1")
    assert cohort.table.label.tolist() == [str(int(label == "tumor")) for label in LABELS]


def test_06_labels_from_one_stay_two_classes(h5: Path, tmp_path: Path) -> None:
    cohort = read(BASE.assign(label=[1 + (label == "tumor") for label in LABELS]), h5, tmp_path)
    assert cohort.classes == ("1", "2")
    assert "labels are the numbers 1, 2: 2 classes, not 2 + 1" in cohort.notes


def test_07_a_slide_without_label_is_left_out_by_name(h5: Path, tmp_path: Path) -> None:
    cohort = read(BASE.assign(label=[None, *LABELS[1:]]), h5, tmp_path)
    assert cohort.table.slide_id.tolist() == IDS[1:]
    assert f"left out 1 slide without a label: {IDS[0]} (line 2)" in cohort.remarks.warnings


def test_08_labels_that_differ_in_capitals_stop_and_can_be_mapped(h5: Path, tmp_path: Path) -> None:
    table = BASE.assign(label=["Tumor ", "tumor", " normal", "NORMAL", *LABELS[4:]])
    with pytest.raises(UserError, match=r"labels 'NORMAL' and 'normal' differ only in capitals or blanks; .*label_map"):
        read(table, h5, tmp_path)
    mapped = {"Tumor": "tumor", "tumor": "tumor", "normal": "normal", "NORMAL": "normal"}
    is_base(read(table, h5, tmp_path, label_map=mapped))
    del mapped["NORMAL"]
    with pytest.raises(UserError, match="label_map says nothing about NORMAL"):
        read(table, h5, tmp_path, label_map=mapped)
    is_base(read(BASE.assign(label=[f" {label} " for label in LABELS]), h5, tmp_path))


def test_09_a_row_without_file(h5: Path, tmp_path: Path) -> None:
    table = pd.concat([BASE, BASE.iloc[:1].assign(slide_id="slide.v2.finale")])
    with pytest.raises(UserError, match=r"1 row without a file: slide.v2.finale \(nearest file: slide.v2.final.h5\)"):
        read(table, h5, tmp_path)
    cohort = read(table, h5, tmp_path, allow_missing=True)
    is_base(cohort)
    assert any(note.startswith("left out 1 row without a file: slide.v2.finale") for note in cohort.notes)


def test_10_a_file_without_row(h5: Path, tmp_path: Path) -> None:
    cohort = read(BASE.iloc[1:], h5, tmp_path)
    assert len(cohort) == 11
    assert f"2 files without a row in the table: {IDS[0]}, orphan_without_label" in cohort.notes


def test_11_equal_rows_count_once(h5: Path, tmp_path: Path) -> None:
    cohort = read(pd.concat([BASE, BASE.iloc[:2]]), h5, tmp_path)
    is_base(cohort)
    assert f"2 slides more than once, with equal entries: {IDS[0]}, {IDS[1]}" in cohort.notes


def test_12_rows_that_contradict_each_other_stop(h5: Path, tmp_path: Path) -> None:
    table = pd.concat([BASE, BASE.iloc[:1].assign(label="normal")])
    with pytest.raises(UserError, match=rf"{IDS[0]} has label tumor and label normal \(lines 2, 14\)"):
        read(table, h5, tmp_path)


def test_13_a_single_class_stops(h5: Path, tmp_path: Path) -> None:
    table = BASE.assign(label="tumor")
    with pytest.raises(UserError, match="all 12 slides have the label tumor; there is nothing to learn"):
        read(table, h5, tmp_path)
    assert read(table, h5, tmp_path, classes=["normal", "tumor"]).classes == ("normal", "tumor")
    with pytest.raises(UserError, match="label tumor is none of the model's classes: a, b"):
        read(table, h5, tmp_path, classes=["a", "b"])


def test_14_one_patient_cannot_be_split(h5: Path, tmp_path: Path) -> None:
    table = BASE.assign(patient_id="P1")
    cohort = read(table, h5, tmp_path)
    assert "1 patient with slides of several classes: P1" in cohort.notes
    for scheme in ("paper", "holdout", "kfold"):
        with pytest.raises(UserError, match="all slides are of one patient, P1"):
            make_splits(cohort, scheme)
    with pytest.raises(UserError, match="label differs between slides of patient P1; with unit patient"):
        read(table, h5, tmp_path, unit="patient")


def test_15_without_a_patient_column(h5: Path, tmp_path: Path) -> None:
    table = BASE.drop(columns="patient_id")
    with pytest.raises(UserError, match=r"TCGA-AA-0001 has several slides; .*patient: tcga"):
        read(table, h5, tmp_path)
    assert read(table, h5, tmp_path, patient="slide").table.patient_id.tolist() == IDS
    cohort = read(table.iloc[1:], h5, tmp_path)
    assert cohort.table.patient_id.tolist() == IDS[1:]
    assert "no patient column: every slide counts as its own patient" in cohort.notes


def test_16_other_column_names(h5: Path, tmp_path: Path) -> None:
    table = BASE.rename(columns={"slide_id": "image_id", "label": "isup_grade"})
    with pytest.raises(UserError, match=r"no column 'slide_id'.* It has: image_id, patient_id, isup_grade"):
        read(table, h5, tmp_path)
    is_base(read(table, h5, tmp_path, columns=Columns(slide="image_id", label="isup_grade")))


def test_17_an_empty_table_stops(h5: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has column names but no rows"):
        read(BASE.iloc[:0], h5, tmp_path)
    (tmp_path / "nothing.csv").write_text("\n\n")
    with pytest.raises(UserError, match="is empty"):
        read(tmp_path / "nothing.csv", h5, tmp_path)


def test_18_events_as_text_are_refused_unless_mapped(h5: Path, tmp_path: Path) -> None:
    table = BASE.assign(event=["Dead" if event else "Alive" for event in EVENTS])
    with pytest.raises(
        UserError, match=r"event holds Alive \(line 4\), Dead \(line 2\): .*event_map, such as {Alive: .*, Dead: "
    ):
        read(table, h5, tmp_path, "survival")
    is_base(read(table, h5, tmp_path, "survival", event_map={"Dead": 1, "Alive": 0}))
    with pytest.raises(UserError, match="event holds Alive"):
        read(table, h5, tmp_path, "survival", event_map={"Dead": 1})
    with pytest.raises(UserError, match="event_map must give 0"):
        read(table, h5, tmp_path, "survival", event_map={"Dead": 2, "Alive": 1})


def test_19_events_coded_two_and_one_are_refused_unless_mapped(h5: Path, tmp_path: Path) -> None:
    table = BASE.assign(event=[1 + event for event in EVENTS])
    with pytest.raises(UserError, match=r"event holds 2 \(line 2\): "):
        read(table, h5, tmp_path, "survival")
    is_base(read(table, h5, tmp_path, "survival", event_map={"2": 1, "1": 0}))


def test_20_decimal_commas_are_understood_and_thousands_refused(h5: Path, tmp_path: Path) -> None:
    cohort = read(BASE.assign(time=[f"{time},5" for time in TIMES]), h5, tmp_path, "survival")
    assert cohort.table.time.tolist() == [time + 0.5 for time in TIMES]
    assert f"column time: commas are decimal commas, such as {TIMES[0]},5" in cohort.notes
    with pytest.raises(UserError, match="has '1,500' a decimal comma, or thousands"):
        read(BASE.assign(time=["1,500", "1,500", *TIMES[2:]]), h5, tmp_path, "survival")
    with pytest.raises(UserError, match=r"'1.500,5' \(line 2\) is no number"):
        read(BASE.assign(time=["1.500,5", "1.500,5", *TIMES[2:]]), h5, tmp_path, "survival")


@pytest.mark.parametrize("change", [bool, float, lambda event: ["FALSE", "TRUE"][event]], ids=["bool", "float", "text"])
def test_21_events_as_truth_values(h5: Path, tmp_path: Path, change: Any) -> None:  # noqa: ANN401
    is_base(read(BASE.assign(event=[change(event) for event in EVENTS]), h5, tmp_path, "survival"))


@pytest.mark.parametrize("task", ["classification", "survival"])
@pytest.mark.parametrize(
    "save",
    [
        {"sep": ";"},
        {"encoding": "utf-8-sig"},
        {"index": True},
        {"sep": "\t"},
        {"lineterminator": "\r\n"},
        {"encoding": "utf-16"},
    ],
    ids=["22 semicolon", "23 bom", "24 index", "25 tab", "26 crlf", "utf-16"],
)
def test_22_to_26_dialects(h5: Path, tmp_path: Path, save: dict[str, Any], task: str) -> None:
    path = tmp_path / "table.csv"
    BASE.to_csv(path, **({"index": False} | save))
    path.write_bytes(path.read_bytes() + (b"\r\n\r\n" if "encoding" not in save else b""))
    is_base(read(path, h5, tmp_path, task))


def test_27_a_clam_split_with_ids_that_look_like_numbers(h5: Path, tmp_path: Path) -> None:
    del h5
    names = ["007", "0010", "5", "12", "13", "14"]
    folder = write_slides(tmp_path / "h5", names)
    table = pd.DataFrame({"slide_id": names, "label": ["a", "b"] * 3})
    cohort = read(table, folder, tmp_path)
    parts = {"train": pd.Series(names[:3]), "val": pd.Series(names[3:4]), "test": pd.Series(names[4:])}
    pd.DataFrame(parts).to_csv(tmp_path / "splits_0.csv")
    split = make_splits(cohort, "file", file=tmp_path / "splits_0.csv")
    assert split[:3] == (("007", "0010", "5"), ("12",), ("13", "14"))
    pd.read_csv(tmp_path / "splits_0.csv", index_col=0).to_csv(tmp_path / "spoiled.csv")
    with pytest.raises(UserError, match=r"5 of 6 names .*: 7, 10, 12.0, 13.0, 14.0 \(nearest to 7: 007\)"):
        make_splits(cohort, "file", file=tmp_path / "spoiled.csv")


def test_times_that_cannot_be_used_are_left_out_by_name(h5: Path, tmp_path: Path) -> None:
    cohort = read(BASE.assign(time=[*TIMES[:9], 0, -3, None]), h5, tmp_path, "survival")
    assert cohort.table.slide_id.tolist() == IDS[:9]
    event = EVENTS[11]
    assert cohort.remarks.warnings[-2:] == [
        f"left out 1 slide without a time or event: {IDS[11]} (line 13, time '', event '{event}')",
        f"left out 2 slides with a time of zero or less: {IDS[9]} (line 11, time '0.0'), "
        f"{IDS[10]} (line 12, time '-3.0')",
    ]


@pytest.mark.parametrize("column", ["time", "event"])
def test_a_patient_has_one_time_and_event(h5: Path, tmp_path: Path, column: str) -> None:
    table = BASE.assign(**{column: [0 if column == "event" else 77, *BASE[column][1:]]})
    with pytest.raises(UserError, match=f"{column} differs between slides of patient TCGA-AA-0001"):
        read(table, h5, tmp_path, "survival")
