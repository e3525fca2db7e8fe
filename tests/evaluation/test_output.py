"""Where results go, and what they say of their rules."""

import json
import os
import shutil
from pathlib import Path

import pytest

from nnunet_gdla.errors import UserError
from tests.evaluation.command_line import typed
from tests.evaluation.mask_files import write_scheme


def test_results_go_neither_among_masks_nor_over_a_summary_of_nnunet(work: Path) -> None:
    theirs = {"foreground_mean": {"Dice": 0.5}, "metric_per_case": []}
    for folder in ("good", "elsewhere"):
        (work / folder).mkdir(exist_ok=True)
        (work / folder / "summary.json").write_text(json.dumps(theirs))
    before = {path: path.read_bytes() for path in work.rglob("*") if path.is_file()}
    for line, why in (
        ("evaluate good truth --out good", "good holds the masks"),
        ("evaluate good truth --out ./bad/../truth", "truth holds the masks"),
        ("evaluate good truth --out elsewhere", "summary.json was not written by nnunet-gdla evaluate"),
        ("compare good bad --truth truth --out bad", "bad holds the masks"),
        ("compare good bad --truth truth --out elsewhere", "summary.json was not written by nnunet-gdla evaluate"),
    ):
        with pytest.raises(UserError, match=why):
            typed(line)
    assert {path: path.read_bytes() for path in work.rglob("*") if path.is_file()} == before
    for _ in range(2):  # over our own results
        assert typed("evaluate good truth -np 1 --draws 5") == 0
        assert typed("evaluate good truth -np 1 --draws 5 --out scores") == 0


def test_the_table_itself_may_be_named_to_compare(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("good", "bad"):
        assert typed(f"evaluate {name} truth -np 1 --draws 5") == 0
    assert typed("compare good/evaluation/metrics.csv bad --draws 5") == 0
    assert "A: good/evaluation/metrics.csv, 8 cases" in capsys.readouterr().out


def test_results_that_could_not_be_written_are_refused_before_all_is_measured(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "file").touch()
    for name in ("summary.json", "boxplot.png", "differences.png"):
        (work / f"taken by {name}" / name).mkdir(parents=True)
    before = sorted(work.rglob("*"))
    monkeypatch.setattr("nnunet_gdla.commands.evaluate.evaluate_folders", None)
    monkeypatch.setattr(os, "access", lambda path, _: Path(path).name != "truth")
    for line, why in (
        ("evaluate good truth --out file", r"file cannot be made \(file is a file\)"),
        ("evaluate good truth --out file/below/it", r"file/below/it cannot be made \(.*file is a file\)"),
        ("evaluate good truth --out 'taken by summary.json'", "is a folder, where a file of that name belongs"),
        ("evaluate good truth --out 'taken by boxplot.png'", "is a folder, where a file of that name belongs"),
        ("compare good bad --truth truth --out 'taken by differences.png'", "is a folder, where a file"),
        ("compare good bad --truth truth --out truth/new", "truth cannot be written into"),
    ):
        with pytest.raises(UserError, match=why):
            typed(line)
    assert sorted(work.rglob("*")) == before


def test_a_file_where_a_folder_of_masks_belongs_is_told_as_such(work: Path) -> None:
    for line in ("evaluate good/case0.nii.gz truth", "evaluate good truth/case0.nii.gz"):
        with pytest.raises(UserError, match=r"case0\.nii\.gz is a file; give the folder that holds the masks"):
            typed(line)


def test_masks_measured_against_themselves_are_noted(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("evaluate truth ./good/../truth -np 1 --draws 5 --out own") == 0
    assert "good/../truth is both PREDICTIONS and TRUTH, so every score is perfect" in capsys.readouterr().out


def test_the_folder_of_a_dataset_json_may_be_named(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_scheme(work / "dataset" / "dataset.json", {"background": 0, "one": 1, "two": 2})
    assert typed("evaluate good truth -np 1 --draws 5 --dataset-json dataset") == 0
    assert "classes from dataset/dataset.json" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"bad/dataset\.json does not exist"):
        typed("evaluate good truth -np 1 --draws 5 --dataset-json bad")


def test_what_the_conventions_mean_is_written_down(work: Path) -> None:
    (work / "one").mkdir()
    shutil.copy(work / "truth" / "case0.nii.gz", work / "one")
    rules = {}
    for name in ("standard", "transunet"):
        assert typed(f"evaluate one truth -np 1 --draws 5 --convention {name} --out {name}") == 0
        rules[name] = json.loads((work / name / "summary.json").read_text())["rules"]
        assert "surface voxels of both masks pooled" in rules[name]
        assert "undefined values are left out" in rules[name]
    assert "greater of the two directed" in rules["standard"]
    assert "both directions pooled" in rules["transunet"]
