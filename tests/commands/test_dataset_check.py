import json
from pathlib import Path

import numpy as np
import pytest

from nnunet_gdla.commands.dataset_check import check_dataset, find_dataset
from nnunet_gdla.commands.findings import Finding, Level, collapse, failed, passed
from tests.commands.damaged import DAMAGED, NIFTI, PNG, TIF, cut
from tests.commands.made_datasets import (
    NUM_CASES,
    Maker,
    change,
    colours,
    make_dataset,
    planes,
    put,
    read,
    save,
    write_description,
)
from tests.paths import nnunet_raw_folder

GREY = planes(1, np.uint8, 255)
FLOAT = planes(1, np.float32, 1.0)


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "nnUNet_raw"
    folder.mkdir()
    monkeypatch.setenv("nnUNet_raw", str(folder))
    monkeypatch.delenv("nnUNet_preprocessed", raising=False)
    monkeypatch.delenv("nnUNet_results", raising=False)
    return folder


def findings_on(folder: Path) -> list[Finding]:
    return list(check_dataset(folder, num_threads=2))


def problems_in(folder: Path) -> list[Finding]:
    return [finding for finding in findings_on(folder) if finding.level is not Level.PASS]


GOOD: dict[str, tuple[Maker, list[str], str, tuple[int, ...]]] = {
    "grey png": (GREY, ["US"], ".png", (40, 48)),
    "colour png in one file": (colours(3), ["R", "G", "B"], ".png", (40, 48)),
    "alpha declared": (colours(4), ["R", "G", "B", "A"], ".png", (40, 48)),
    "two png files": (planes(2, np.uint8, 255), ["h", "v"], ".png", (40, 48)),
    "16-bit png": (planes(1, np.uint16, 60000), ["US"], ".png", (40, 48)),
    "13 float tif files": (planes(13, np.float32, 1.0), [f"band {n}" for n in range(13)], ".tif", (40, 48)),
    "2D NIfTI": (planes(1, np.int16, 2000), ["CT"], ".nii.gz", (40, 48)),
    "3D NIfTI": (planes(1, np.float32, 2000), ["MRI"], ".nii.gz", (5, 40, 48)),
    "2D mha": (planes(1, np.int16, 2000), ["MRI"], ".mha", (40, 48)),
    "images below 32 px": (GREY, ["US"], ".png", (36, 28)),
}


@pytest.mark.parametrize("kind", GOOD)
def test_a_good_dataset_has_no_problem(raw: Path, kind: str) -> None:
    maker, channels, ending, size = GOOD[kind]
    findings = findings_on(make_dataset(raw, maker, channels, ending, size=size))
    assert [str(finding) for finding in findings if finding.level is not Level.PASS] == []
    by_title = {finding.title: finding.detail for finding in findings}
    assert by_title["images and masks"].startswith("6 complete cases readable")
    assert by_title["labels in the masks"] == "1 (object) in 6 of 6 cases"
    assert by_title["imagesTs"].startswith("6 cases to predict")
    assert ("below 32 px" in by_title["image sizes"]) == (min(size[-2:]) < 32)


def test_a_dataset_of_one_case_is_counted_in_the_singular(raw: Path) -> None:
    folder = make_dataset(raw, GREY, ["US"], ".png")
    for path in [*folder.glob("images*/*"), *folder.glob("labelsTr/*")]:
        if not path.name.startswith("case_0"):
            path.unlink()
    told = {finding.title: finding.detail for finding in findings_on(folder)}
    assert told["images and masks"].startswith("1 complete case readable")
    assert told["labels in the masks"] == "1 (object) in 1 of 1 case"
    assert told["imagesTs"] == "1 case to predict, readable, 1 channel each"
    assert told["numTraining"] == "dataset.json says 6, there is 1 training case"


@pytest.mark.parametrize("name", ["906", "113", "112"])
def test_a_real_dataset_has_no_problem(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("nnUNet_raw", str(nnunet_raw_folder()))
    folder = find_dataset(name)
    assert isinstance(folder, Path)
    findings = findings_on(folder)
    assert [str(finding) for finding in findings if finding.level is not Level.PASS] == []
    assert any(finding.title == "images and masks" for finding in findings)


@pytest.mark.parametrize("damage", DAMAGED)
def test_damage_is_named_with_its_file_and_a_fix(raw: Path, damage: str) -> None:
    (maker, channels, ending), spoil, level, title, detail = DAMAGED[damage]
    folder = make_dataset(raw, maker, channels, ending)
    spoil(folder)
    findings = findings_on(folder)
    hits = [finding for finding in findings if finding.title == title and finding.level is level]
    assert any(detail in finding.detail for finding in hits), "\n".join(map(str, findings))
    assert all(finding.fix for finding in hits)


def test_regions_and_an_ignore_label_are_understood(raw: Path) -> None:
    folder = make_dataset(raw, *PNG)
    labels = {"background": 0, "all": [1, 2], "core": 2, "ignore": 3}
    write_description(folder, labels=labels, regions_class_order=[1, 2])
    for case in range(NUM_CASES):
        change(folder / "labelsTr" / f"case_{case}.png", lambda mask: mask + put(2)(np.zeros_like(mask)))
    findings = findings_on(folder)
    assert [str(finding) for finding in findings if finding.level is not Level.PASS] == []
    by_title = {finding.title: finding.detail for finding in findings}
    assert by_title["labels"] == "4 names, 2 network outputs, ignore label"
    assert by_title["labels in the masks"].startswith("1 (all) in 6, 2 (all, core) in 6")


def test_files_listed_in_dataset_json_are_checked_where_they_are(raw: Path, tmp_path: Path) -> None:
    folder = make_dataset(raw, *PNG, predict=False)
    elsewhere = tmp_path / "elsewhere"
    (folder / "imagesTr").rename(elsewhere)
    table = {
        f"case_{n}": {"images": [str(elsewhere / f"case_{n}_0000.png")], "label": f"labelsTr/case_{n}.png"}
        for n in range(NUM_CASES)
    }
    write_description(folder, dataset=table)
    assert problems_in(folder) == []
    (elsewhere / "case_2_0000.png").unlink()
    assert [(problem.title, problem.detail) for problem in problems_in(folder)] == [
        ("missing image", "case_2_0000.png")
    ]
    readable = [finding.detail for finding in findings_on(folder) if finding.title == "images and masks"]
    assert [detail.partition(" readable")[0] for detail in readable] == [f"{NUM_CASES - 1} complete cases"]


def test_an_apple_double_file_is_reported_and_not_fatal(raw: Path) -> None:
    folder = make_dataset(raw, *PNG)
    (folder / "imagesTr" / "._case_0_0000.png").write_bytes(b"\x00\x05\x16\x07")
    titles = {problem.title for problem in problems_in(folder)}
    assert titles == {"missing label", "numTraining", "unreadable file"}


def test_repeated_findings_are_collapsed_after_five_files(raw: Path) -> None:
    folder = make_dataset(raw, *PNG)
    for case in range(NUM_CASES):
        change(folder / "labelsTr" / f"case_{case}.png", lambda mask: mask * 255)
    (problem,) = [problem for problem in problems_in(folder) if problem.title == "label values"]
    assert problem.detail.count("holds 255") == 5
    assert problem.detail.endswith("; and 1 more")
    assert "divide the masks by 255" in problem.fix


def test_collapse_keeps_the_order_and_different_fixes_apart() -> None:
    findings = [failed("a", "1", "x"), passed("b", "2"), failed("a", "3", "x"), failed("a", "4", "y")]
    assert [(finding.title, finding.detail, finding.fix) for finding in collapse(findings)] == [
        ("a", "1; 3", "x"),
        ("b", "2", ""),
        ("a", "4", "y"),
    ]


def test_the_order_of_findings_does_not_depend_on_threads(raw: Path) -> None:
    folder = make_dataset(raw, *TIF)
    for case in (4, 1, 3):
        change(folder / "imagesTr" / f"case_{case}_0000.tif", put(np.nan))
        change(folder / "labelsTr" / f"case_{case}.tif", put(9))
    alone = [str(finding) for finding in check_dataset(folder, num_threads=1)]
    assert [str(finding) for finding in check_dataset(folder, num_threads=6)] == alone


def test_the_readers_print_nothing(raw: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_dataset(raw, FLOAT, ["MRI"], ".tif", size=(4, 40, 48))  # nnU-Net's 3D tif reader warns of each file
    cut("imagesTr/case_0_0000.tif")(folder)
    findings_on(folder)
    assert capsys.readouterr().out == ""


def test_a_dataset_is_found_by_number_and_by_name(raw: Path) -> None:
    folder = make_dataset(raw, *PNG)
    assert find_dataset("801") == find_dataset("Dataset801_MadePng") == folder


def test_a_dataset_that_is_not_there_is_answered_with_those_that_are(
    raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_dataset(raw, *PNG)
    missing = find_dataset("5")
    assert isinstance(missing, Finding)
    assert "Dataset801_MadePng" in missing.fix
    (raw / "Dataset801_Other").mkdir()
    twice = find_dataset("801")
    assert isinstance(twice, Finding)
    assert "Dataset801_MadePng, Dataset801_Other" in twice.detail
    monkeypatch.delenv("nnUNet_raw")
    unset = find_dataset("801")
    assert isinstance(unset, Finding)
    assert "nnUNet_raw is not set" in unset.detail


def test_the_made_datasets_are_what_they_claim(raw: Path) -> None:
    folder = make_dataset(raw, *NIFTI)
    change(folder / "imagesTr" / "case_0_0000.nii.gz", put(np.nan))
    # The reason for reading NIfTI twice: if SimpleITK kept NaN, the test above would prove nothing.
    assert np.isfinite(read(folder / "imagesTr" / "case_0_0000.nii.gz")).all()
    save(folder / "x.mha", np.full((4, 4), np.nan, np.float32))
    assert np.isnan(read(folder / "x.mha")).all()
    assert json.loads((folder / "dataset.json").read_text())["numTraining"] == NUM_CASES
