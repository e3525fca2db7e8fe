"""`nnunet-gdla evaluate` and `nnunet-gdla compare` as they are typed."""

import csv
import dataclasses
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from nnunet_gdla.commands import arguments_evaluation
from nnunet_gdla.errors import UserError, WriteError
from nnunet_gdla.evaluation.comparison import compare_results
from nnunet_gdla.evaluation.report import summarise_results, write_report
from nnunet_gdla.evaluation.results import MEAN
from nnunet_gdla.evaluation.run import evaluate_folders
from tests.evaluation.command_line import SHAPE, parsed, typed
from tests.evaluation.mask_files import blob, write_cases, write_mask, write_scheme


def test_every_example_is_a_command_that_means_what_it_says() -> None:
    lines = [line.strip() for text in arguments_evaluation.DETAILS.values() for line in text.splitlines()]
    examples = [parsed(line.removeprefix("nnunet-gdla ")) for line in lines if line.startswith("nnunet-gdla ")]
    assert [args.command for args in examples] == ["evaluate"] * 5 + ["compare"] * 2
    assert (examples[1].predictions, examples[1].truth, examples[1].out) == ("masks", "truth", "scores")
    assert (examples[2].convention, examples[3].tolerance, examples[3].processes) == ("transunet", 2.0, 4)
    assert (examples[5].a, examples[5].b, examples[5].truth) == ("gdla/evaluation", "unet/evaluation", None)
    assert (examples[6].a, examples[6].b, examples[6].out) == ("gdla_masks", "unet_masks", "gdla_against_unet")
    assert (examples[4].missed, examples[4].out) == ("worst", "scores_with_missed")
    assert set(arguments_evaluation.SUMMARY) == set(arguments_evaluation.DETAILS) == {"evaluate", "compare"}


@pytest.mark.parametrize(
    "option", ["-np 0", "--draws 0", "--draws 1", "--seed -1", "--convention mine", "--tolerance x"]
)
def test_wrong_options_are_wrong_usage(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parsed(f"evaluate p t {option}")
    assert caught.value.code == 2
    assert option.split()[0] in capsys.readouterr().err


def test_evaluate(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed("evaluate good truth -np 1 --draws 100") == 0
    shown = capsys.readouterr().out
    assert "no dataset.json found" in shown
    assert "8 cases, standard convention" in shown
    assert "mean over classes" in shown
    assert sorted(path.name for path in (work / "good" / "evaluation").iterdir()) == [
        "boxplot.png",
        "metrics.csv",
        "summary.json",
    ]


def test_the_results_of_the_conventions_do_not_overwrite_each_other(work: Path) -> None:
    typed("evaluate good truth -np 1 --draws 9")
    typed("evaluate good truth -np 1 --draws 9 --convention transunet")
    assert (work / "good" / "evaluation" / "summary.json").is_file()
    assert (work / "good" / "evaluation_transunet" / "summary.json").is_file()


def test_names_come_from_dataset_json(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_scheme(work / "other.json", {"background": 0, "all": [1, 2], "core": 1}, regions_class_order=[2, 1])
    typed("evaluate good truth -np 1 --draws 9 --dataset-json other.json --out scores")
    assert "classes from other.json" in capsys.readouterr().out
    rows = list(csv.DictReader((work / "scores" / "metrics.csv").read_text().splitlines()))
    assert {row["class"] for row in rows} == {"all", "core"}


def test_unpaired_cases_are_shown_or_refused(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (work / "good" / "case3.nii.gz").unlink()
    (work / "truth" / "case4.nii.gz").unlink()
    typed("evaluate good truth -np 1 --draws 9")
    shown = capsys.readouterr().out
    assert "left out: 1 case without a prediction (case3) and 1 prediction without a truth (case4)" in shown
    with pytest.raises(UserError, match=r"case3.*--require-all"):
        typed("evaluate good truth -np 1 --require-all --out strict")
    assert not (work / "strict").exists()


def test_compare_results(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("good", "bad"):
        typed(f"evaluate {folder} truth -np 1 --draws 9")
    capsys.readouterr()
    assert typed("compare good bad/evaluation --draws 200") == 0
    shown = capsys.readouterr().out
    rows = {
        (row["metric"], row["class"]): row
        for row in csv.DictReader((work / "comparison" / "comparison.csv").read_text().splitlines())
    }
    assert len(rows) == 6 * 3
    dice = rows["dice", "1"]
    assert float(dice["difference"]) > 0
    assert dice["better"] == rows["hd95", "1"]["better"] == "A"
    assert float(rows["hd95", "1"]["difference"]) < 0
    assert float(dice["p"]) == pytest.approx(2 / 2**8)
    assert float(dice["p_holm"]) == float(dice["p"])
    assert (dice["n"], dice["n_left_out"]) == ("8", "0")
    assert rows["dice", "2"]["p"] == rows["dice", "2"]["better"] == ""
    assert float(rows["dice", "2"]["difference"]) == 0
    assert "n/a" in shown
    assert (work / "comparison" / "differences.png").read_bytes().startswith(b"\x89PNG")


def test_compare_predictions(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("good", "bad"):
        typed(f"evaluate {folder} truth -np 1 --draws 9")
    typed("compare good bad --draws 200 --out one")
    typed("compare good bad --truth truth -np 1 --draws 200 --out two")
    assert (work / "one" / "comparison.csv").read_text() == (work / "two" / "comparison.csv").read_text()
    (work / "bad" / "case0.nii.gz").unlink()
    capsys.readouterr()
    typed("compare good bad --truth truth -np 1 --draws 200 --out three")
    assert "only in A, left out: case0 (1)" in capsys.readouterr().out


def test_compare_leaves_out_undefined_pairs(work: Path) -> None:
    write_cases(work / "bad", {"case0": np.zeros(SHAPE, dtype=np.uint8)})
    typed("compare good bad --truth truth -np 1 --draws 50")
    rows = list(csv.DictReader((work / "comparison" / "comparison.csv").read_text().splitlines()))
    left_out = {(row["metric"], row["class"]): row["n_left_out"] for row in rows}
    assert left_out["hd95", "1"] == "1"
    assert left_out["dice", "1"] == "0"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("compare good truth", r"truth holds no metrics\.csv; run nnunet-gdla evaluate"),
        ("compare good bad --truth missing", "missing is not a folder"),
        ("compare good bad --convention transunet", "--convention needs --truth"),
        ("compare good broken", "lacks rows or columns"),
        ("compare good words", "cannot be read"),
        ("compare good foreign", "was not written by nnunet-gdla evaluate"),
        ("evaluate missing truth", "missing is not a folder"),
        ("evaluate good truth --dataset-json missing.json", r"missing\.json does not exist"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(work: Path, line: str, reason: str) -> None:
    results = evaluate_folders(work / "good", work / "truth")
    write_report(results, summarise_results(results, draws=5, seed=0), work / "good" / "evaluation", draws=5, seed=0)
    summary, table = ((work / "good" / "evaluation" / name).read_text() for name in ("summary.json", "metrics.csv"))
    for name, text, described in (
        ("broken", "case,class\na,b\n", summary),
        ("words", table.replace("1.0", "one"), summary),
        ("foreign", table, '{"mean": {}}'),
    ):
        (work / name).mkdir()
        (work / name / "metrics.csv").write_text(text)
        (work / name / "summary.json").write_text(described)
    with pytest.raises(UserError, match=reason) as caught:
        typed(line)
    assert "\n" not in str(caught.value)
    assert not (work / "comparison").exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"convention": "transunet"}, "the convention of A is standard, that of B transunet"),
        ({"tolerance": 2.0}, r"the tolerance of NSD of A is 1\.0, that of B 2\.0"),
        ({"unit": "voxels"}, "the unit of distances of A is mm, that of B voxels"),
        ({"classes": ("1", "3")}, "A has the classes 1, 2, B 1, 3"),
        ({"cases": tuple("stuvwxyz")}, r"A \(such as case0\) and B \(such as s\) have no case in common"),
    ],
)
def test_results_that_do_not_fit_are_not_compared(work: Path, change: dict[str, Any], reason: str) -> None:
    a = evaluate_folders(work / "good", work / "truth")
    with pytest.raises(UserError, match=reason):
        compare_results(a, dataclasses.replace(a, **change), draws=5, seed=0)


def test_classes_are_compared_by_name_and_cases_too(work: Path) -> None:
    """B has them in another order."""
    a, b = (evaluate_folders(work / name, work / "truth") for name in ("good", "bad"))
    turned = dataclasses.replace(
        b,
        cases=b.cases[::-1],
        classes=b.classes[::-1],
        values={metric: table[::-1, ::-1] for metric, table in b.values.items()},
    )
    assert str(compare_results(a, b, draws=50, seed=0)) == str(compare_results(a, turned, draws=50, seed=0))


def test_the_mean_over_classes_takes_the_same_classes_for_both(work: Path) -> None:
    """A class that drops out must not make the mean of a case one over easier or harder classes."""
    a, b = (evaluate_folders(work / name, work / "truth") for name in ("good", "bad"))
    for each, gap in ((a, 0.0), (b, 1.0)):
        each.values["hd95"][...] = [2.0 + gap, 9.0 + gap]
    a.values["hd95"][0, 1] = b.values["hd95"][0, 1] = np.nan
    lines, _ = compare_results(a, b, draws=50, seed=0)
    mean = next(line.found for line in lines if line.metric == "hd95" and line.name == MEAN)
    assert (mean.difference, mean.low, mean.high, mean.n) == (-1, -1, -1, 8)


@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (50.0, 50.0, 50.0)])
def test_what_is_shown_fits_a_terminal(
    spacing: tuple[float, float, float], work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = np.zeros(SHAPE, dtype=np.uint8)
    for name, masks in (("truth", [blob(SHAPE)] * 20), ("good", [empty] * 10 + [blob(SHAPE, 1)] * 10)):
        shutil.rmtree(name)
        for case, mask in enumerate(masks):
            write_mask(work / name / f"case{case}.nii.gz", mask, spacing)
    labels = {"background": 0, "left kidney": 1, "inferior vena cava": 2, "left adrenal gland": 3}
    write_scheme(work / "truth" / "dataset.json", labels)
    typed("evaluate good truth -np 1 --draws 50")
    typed("compare good truth --truth truth -np 1 --draws 50")
    shown = capsys.readouterr().out.splitlines()
    assert any(line.startswith("inferior vena cava") for line in shown)
    assert max(len(line) for line in shown) <= 120


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for the processes in /proc, as on Linux")
def test_ctrl_c_while_processes_start_is_one_line(work: Path) -> None:
    command = [sys.executable, "-m", "nnunet_gdla.cli", "evaluate", "good", "truth", "-np", "2", "--draws", "9"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while len(children.read_text().split()) < 2:  # the first of them is multiprocessing's own helper
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)  # the terminal's Ctrl-C goes to all processes
        assert process.stderr is not None
        said = process.stderr.read().splitlines()
    assert process.returncode == 130
    assert [line for line in said if line.strip() and not line.startswith("evaluating")] == [
        "nnunet-gdla evaluate: stopped"
    ]


@pytest.mark.parametrize(
    ("line", "figure"),
    [("evaluate good truth -np 1 --draws 5", "boxplot.png"), ("compare good bad --draws 5 --out d", "differences.png")],
)
def test_results_appear_together_or_not_at_all(
    line: str, figure: str, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if line.startswith("compare"):
        for name in ("good", "bad"):
            assert typed(f"evaluate {name} truth -np 1 --draws 5") == 0
    before = sorted(work.rglob("*"))

    def savefig(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", savefig)
    with pytest.raises(WriteError, match=rf"{figure} cannot be written: the disk is full .*--out"):
        typed(line)
    assert sorted(work.rglob("*")) == before
