"""The pre-flight: one report for the whole cohort, and no training where a file or row would spoil it."""

from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import torch

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.check import check_cohort
from nnunet_gdla.mil.cohort import Cohort, folder_cohort
from tests.mil.cohort_files import cohort_of, write_slides
from tests.mil.slide_files import bag, grid, write_h5


def test_a_clean_cohort_passes_with_its_width(tmp_path: Path) -> None:
    names = [f"s{number:02d}" for number in range(24)]
    report = check_cohort(cohort_of(tmp_path, slide_id=names, label=["a", "b"] * 12))
    assert report.in_dim == 4
    assert not report.failed
    assert report.lines == [
        "PASS 24 files can be read and hold finite numbers",
        "PASS one feature width: 4",
        "PASS 6 to 6 patches a slide, median 6",
        "PASS stride 512 px (24 slides); 100% of the patches of a slide have a neighbour",
        f"PASS stride 512 px is inferred from the coordinates: 24 slides: {', '.join(names[:10])}, ... (24 in all)",
        "PASS patients per class: a 12, b 12",
    ]
    row = report.slides.iloc[3].to_dict()
    expected = {"slide_id": "s03", "patches": 6, "width": 4, "dtype": "float32", "stride": 512.0, "unit": "px"}
    assert row == row | expected | {"share": 1.0, "duplicates": 0, "zeros": 0}


def test_all_that_is_wrong_is_in_one_report(tmp_path: Path) -> None:
    folder = write_slides(tmp_path / "h5", ["fine1", "fine2", "fine3"])
    (folder / "empty.h5").write_bytes(b"")
    spoiled = bag(6, 4)
    spoiled[2, 1] = np.nan
    line = grid(6, 1) * 512
    write_h5(folder / "nan.h5", {"coords": line, "features": spoiled})
    write_h5(folder / "wide.h5", {"coords": line, "features": bag(6, 5)})
    write_h5(
        folder / "alone.h5", {"coords": grid(5, 5) * 512, "features": bag(25, 4)}, on_file={"patch_size_level0": 99}
    )
    with pytest.raises(UserError, match="the pre-flight found what must be mended first") as caught:
        check_cohort(folder_cohort(folder))
    text = str(caught.value)
    assert "FAIL" in text
    for expected in (
        r"empty.h5 (0 bytes) is no readable HDF5 file",
        "nan.h5: NaN or infinite features in row 2",
        "FAIL feature width 5 instead of 4 in 1 slide: wide",
        "alone.h5: attribute patch_size_level0 99 makes the stride 99, but neighbouring patches are 512 apart",
        "PASS 6 to 6 patches a slide, median 6",
    ):
        assert expected in text
    report = check_cohort(folder_cohort(folder), strict=False)
    assert report.failed
    assert report.in_dim == 4
    assert sorted(report.slides.slide_id) == ["fine1", "fine2", "fine3", "wide"]


def test_errors_of_one_kind_are_one_line(tmp_path: Path) -> None:
    write_slides(tmp_path / "h5", ["fine"])
    line = grid(6, 1) * 512
    for number in range(30):
        spoiled = bag(6, 4)
        spoiled[number % 6] = np.nan
        write_h5(tmp_path / "h5" / f"nan{number:02d}.h5", {"coords": line, "features": spoiled})
        write_h5(tmp_path / "h5" / f"short{number:02d}.h5", {"coords": line, "features": bag(5 - number % 2, 4)})
        write_h5(tmp_path / "h5" / f"wide{number:02d}.h5", {"coords": line, "features": bag(6, 5 + number)})
    lines = check_cohort(folder_cohort(tmp_path / "h5"), strict=False).lines
    failed = [each for each in lines if each.startswith("FAIL")]
    assert len(failed) == 7
    names = ", ".join(f"nan{number:02d}" for number in range(1, 11))
    assert failed[0] == (
        f"FAIL {tmp_path / 'h5' / 'nan00.h5'}: NaN or infinite features in row 0; extract the slide again; the same in "
        f"29 more files: {names}, ... (29 in all)"
    )
    assert "; the same in 29 more files: short01, " in failed[1]
    assert failed[-1].startswith("FAIL feature width 9 and 25 others instead of 4 in 26 slides: wide04, ")


def test_remarks_that_differ_in_numbers_alone_are_one_line(tmp_path: Path) -> None:
    for number in range(20):
        write_h5(tmp_path / f"s{number:02d}.h5", {"coords": grid(6, 1) * (500 + number), "features": bag(6, 4)})
    lines = check_cohort(folder_cohort(tmp_path)).lines
    (found,) = [line for line in lines if "is inferred" in line]
    assert found.startswith("PASS stride 500 px is inferred from the coordinates, or alike: 20 slides: s00, s01, ")


def test_two_encoders_are_refused_and_a_key_chooses(tmp_path: Path) -> None:
    line = grid(6, 1) * 512
    write_h5(tmp_path / "a.h5", {"coords": line, "features/uni": bag(6), "features/conch": bag(6)})
    write_h5(tmp_path / "b.h5", {"coords": line, "features/uni": bag(6)})
    write_h5(tmp_path / "c.h5", {"coords": line, "features/conch": bag(6)})
    cohort = folder_cohort(tmp_path)
    assert not check_cohort(Cohort(None, cohort.table[:2]), {"feature_key": "uni"}).failed
    report = check_cohort(Cohort(None, cohort.table[1:]), strict=False)
    assert "FAIL encoder conch instead of uni in 1 slide: c" in report.lines
    with pytest.raises(UserError, match="no features called 'uni'; feature_key can be: conch"):
        check_cohort(cohort, {"feature_key": "uni"})


def test_files_that_do_not_name_their_encoder_among_others_that_do_are_pointed_out(tmp_path: Path) -> None:
    write_slides(tmp_path, ["a", "b", "c"])
    with h5py.File(tmp_path / "b.h5", "r+") as file:
        file["features"].attrs["encoder"] = "uni"
    lines = check_cohort(folder_cohort(tmp_path)).lines
    assert "PASS one encoder: uni" in lines
    assert "WARN 2 files without the encoder that others name: a, c" in lines


def test_what_is_unusual_is_pointed_out(tmp_path: Path) -> None:
    folder = write_slides(tmp_path, ["a", "b", "c"])
    features = bag(80, 4)
    features[5:8] = 0
    write_h5(folder / "large.h5", {"coords": grid(40, 2) * 512, "features": features})
    write_h5(folder / "twice.h5", {"coords": np.repeat(grid(6, 1) * 512, 2, 0), "features": bag(12, 4)})
    write_h5(folder / "alone.h5", {"coords": np.array([[0, 0], [5000, 9000]]), "features": bag(2, 4)})
    lines = check_cohort(folder_cohort(folder)).lines
    assert "WARN unusual number of patches: large (80)" in lines
    assert "WARN patches with duplicate coordinates: twice (6)" in lines
    assert "WARN patches with all-zero features: large (3)" in lines
    assert any(line.startswith("WARN 0% of 2 patches have a neighbour") and line.endswith(": alone") for line in lines)


def test_few_patients_and_few_events_are_pointed_out(tmp_path: Path) -> None:
    names = [f"s{number}" for number in range(12)]
    cohort = cohort_of(tmp_path, slide_id=names, label=["a"] * 11 + ["b"])
    assert "WARN few patients: b (1); results will vary much between splits" in check_cohort(cohort).lines
    survival = cohort_of(tmp_path, "survival", slide_id=names, time=range(1, 13), event=[1, 1] + [0] * 10)
    assert "WARN only 2 of 12 patients have an event (17%)" in check_cohort(survival).lines
    nobody = cohort_of(tmp_path, "survival", slide_id=names, time=range(1, 13), event=[0] * 12)
    with pytest.raises(UserError, match="FAIL none of 12 patients has an event; see event_map"):
        check_cohort(nobody)


def test_files_without_coordinates_pass_only_where_none_are_needed(tmp_path: Path) -> None:
    torch.save(torch.randn(7, 4), tmp_path / "a.pt")
    write_h5(tmp_path / "b.h5", {"features": bag(6, 4)})
    cohort = folder_cohort(tmp_path)
    report = check_cohort(cohort, {"need_coords": False})
    assert report.in_dim == 4
    assert report.slides.patches.tolist() == [7, 6]
    with pytest.raises(UserError, match=r"a\.pt has no coordinates.*\n.*b\.h5 has no coordinates"):
        check_cohort(cohort)


def test_a_cohort_without_neighbours_fails_unless_that_is_meant(tmp_path: Path) -> None:
    write_slides(tmp_path / "row", ["a", "b", "c"], patches=30)
    cohort = folder_cohort(tmp_path / "row")
    with pytest.raises(UserError, match=r"FAIL max_patches 1 leaves hardly a neighbour .*in the median slide 0%"):
        check_cohort(cohort, {"max_patches": 1})
    for meant in ({"allow_isolated": True}, {"need_coords": False}):
        assert not check_cohort(cohort, {"max_patches": 1, **meant}).failed
    for name in ("a", "b", "c"):
        far = {"coords": np.array([[0, 0], [5000, 9000]]), "features": bag(2, 4)}
        write_h5(tmp_path / "far" / f"{name}.h5", far)
    with pytest.raises(UserError, match="FAIL the slides have hardly a neighbour"):
        check_cohort(folder_cohort(tmp_path / "far"))


@pytest.mark.slow
def test_the_report_does_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    cohort = folder_cohort(write_slides(tmp_path, ["a", "b"]))
    one, two = check_cohort(cohort), check_cohort(cohort, workers=2)
    assert one.lines == two.lines
    pd.testing.assert_frame_equal(one.slides, two.slides)


def test_a_bar_is_shown_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cohort = folder_cohort(write_slides(tmp_path, ["a", "b"]))
    check_cohort(cohort, progress=False)
    assert capsys.readouterr().err == ""
    check_cohort(cohort, progress=True)
    assert "checking files" in capsys.readouterr().err


def test_m10_two_strides_in_one_slide_are_pointed_out(tmp_path: Path) -> None:
    fine, coarse = grid(20, 20) * 256, grid(10, 10) * 512 + np.array([30 * 256, 0])
    xy = np.concatenate([fine, coarse])
    write_h5(tmp_path / "s.h5", {"coords": xy, "features": bag(len(xy), 4)})
    lines = check_cohort(folder_cohort(tmp_path)).lines
    said = [line for line in lines if line.startswith("WARN patches without a neighbour")]
    assert len(said) == 1
    assert "s (20% of 500 at stride 256; they lie 512 apart)" in said[0]
    assert not any(
        "without a neighbour" in line for line in check_cohort(folder_cohort(tmp_path), {"stride": 512}).lines
    )
