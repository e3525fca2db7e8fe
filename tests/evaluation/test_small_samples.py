"""One case, two cases, nothing defined, a class that no truth holds: what the tables and files say of it."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnunet_gdla.evaluation.small_samples import FEW_CASES, interval_remark, pairs_remark
from nnunet_gdla.evaluation.statistics import compare_paired, interval_of_mean
from tests.evaluation.command_line import SHAPE, typed
from tests.evaluation.mask_files import blob, write_cases, write_scheme

ONE = "no interval: it needs two cases, and only one is defined"
FEW = "95 % intervals of fewer than 10 cases are too narrow"


def keep(work: Path, count: int) -> None:
    for path in work.glob("*/case*.nii.gz"):
        if int(path.name[4]) >= count:
            path.unlink()


def summary(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "evaluation" / "summary.json").read_text())
    return content


def test_one_case_has_no_interval_and_says_why(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(work, 1)
    assert typed("evaluate good truth -np 1 --draws 9") == 0
    shown = capsys.readouterr().out
    assert "1 case, standard convention: mean over cases, without intervals" in shown
    assert "[" not in shown
    assert shown.count(ONE) == 1
    dice = summary(work / "good")["classes"]["1"]["dice"]
    assert (dice["n"], dice["sd"], dice["ci95"], dice["ci95_remark"]) == (1, None, [None, None], ONE)


def test_one_defined_value_among_many_cases_says_the_same(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = np.zeros(SHAPE, dtype=np.uint8)
    write_cases(work / "good", {f"case{case}": empty for case in range(1, 8)})
    assert typed("evaluate good truth -np 1 --draws 9") == 0
    shown = capsys.readouterr().out
    assert "[95 % interval]" in shown
    assert (shown.count(ONE), shown.count(FEW)) == (1, 1)
    metrics = summary(work / "good")["classes"]["1"]
    assert (metrics["hd95"]["n"], metrics["hd95"]["ci95_remark"]) == (1, ONE)
    assert metrics["dice"]["ci95_remark"].startswith(FEW)


def test_from_ten_cases_on_nothing_is_said(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("good", "truth"):
        write_cases(work / folder, {f"more{case}": blob(SHAPE) for case in range(2)})
    for name in ("case0", "case1", "case2"):
        for folder in ("good", "truth"):
            shutil.copy(work / folder / f"{name}.nii.gz", work / folder / f"copy_of_{name}.nii.gz")
    assert typed("evaluate good truth -np 1 --draws 9") == 0
    assert "too narrow" not in capsys.readouterr().out
    assert summary(work / "good")["classes"]["1"]["dice"]["ci95_remark"] == ""


def test_what_is_never_defined_has_neither_mean_nor_interval(work: Path) -> None:
    empty = np.zeros(SHAPE, dtype=np.uint8)
    for folder in ("good", "truth"):
        write_cases(work / folder, {f"case{case}": empty for case in range(8)})
    write_scheme(work / "truth" / "dataset.json", {"background": 0, "tumour": 1})
    assert typed("evaluate good truth -np 1 --draws 9") == 0
    metrics = summary(work / "good")["classes"]["tumour"]
    assert metrics["dice"]["mean"] is None
    assert metrics["dice"]["ci95_remark"] == "undefined in every case, so there is no mean and no interval"
    assert metrics["pixel_accuracy"]["mean"] == 1


def test_a_class_that_no_truth_holds_is_told(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_scheme(work / "truth" / "dataset.json", {"background": 0, "one": 1, "two": 2, "three": 3})
    assert typed("evaluate good truth -np 1 --draws 9") == 0
    remark = "in no mask, so nnU-Net's foreground_mean is undefined: three"
    assert remark in capsys.readouterr().out
    assert any(each.startswith(remark) for each in summary(work / "good")["remarks"])
    scheme = write_scheme(work / "other.json", {"background": 0, "one": [1, 2], "two": 2, "three": 3})
    write_cases(work / "good", {"case0": np.full((4, 12, 14), 3, dtype=np.uint8)})
    assert typed(f"evaluate good truth -np 1 --draws 9 --dataset-json {scheme}") == 0
    assert "in no true mask, yet in the means where a score is defined: three" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("count", "remark"), [(1, "no interval: it needs two pairs"), (2, "with fewer than 6 pairs"), (6, "")]
)
def test_few_pairs_are_told_where_models_are_compared(
    count: int, remark: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(work, count)
    assert typed("compare good bad --truth truth -np 1 --draws 9") == 0
    shown = capsys.readouterr().out
    rows = list(csv.DictReader((work / "comparison" / "comparison.csv").read_text().splitlines()))
    dice = next(row for row in rows if (row["metric"], row["class"]) == ("dice", "1"))
    assert dice["n"] == str(count)
    assert (dice["ci95_low"] == "") == (count == 1)
    assert dice["remark"].startswith(remark)
    assert (dice["remark"] == "") == (remark == "")
    assert "pairs no difference can reach" in shown or not remark


def test_the_words_hold() -> None:
    """Of how many intervals hold the mean, and how small p gets."""
    rng = np.random.default_rng(0)
    held = {}
    for count in (2, 5, FEW_CASES):
        intervals = [interval_of_mean(rng.normal(size=count), draws=500, seed=0) for _ in range(600)]
        held[count] = np.mean([low <= 0 <= high for low, high in intervals])
    assert held[2] == pytest.approx(0.5, abs=0.05)
    assert held[5] == pytest.approx(0.84, abs=0.04)
    assert held[10] == pytest.approx(0.9, abs=0.04)
    for count in (1, 3, 5, 6):
        p = compare_paired(np.arange(1.0, count + 1), np.zeros(count), draws=5, seed=0).p
        assert (p < 0.05) == (pairs_remark(count) == "")
    assert interval_remark(FEW_CASES) == ""
