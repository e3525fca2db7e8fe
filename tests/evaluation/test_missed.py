"""A model that misses objects must not look better without a line that says so (S11), and which mean is which (S12)."""

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest
from nnunetv2.evaluation.evaluate_predictions import compute_metrics_on_folder
from nnunetv2.imageio.simpleitk_reader_writer import SimpleITKIO

from nnunet_gdla.commands import arguments_evaluation
from nnunet_gdla.errors import UserError
from nnunet_gdla.evaluation.conventions import CONVENTIONS, MISSED
from nnunet_gdla.evaluation.results import foreground_mean, read_results
from nnunet_gdla.evaluation.run import evaluate_folders
from tests.evaluation.command_line import typed
from tests.evaluation.mask_files import SPACING, blob, write_cases, write_mask, write_scheme

SHAPE = (4, 24, 28)
DIAGONAL = float(np.linalg.norm(np.multiply(SHAPE, SPACING)))


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Six cases with an object: `all` finds each, three of them badly; `half` misses these three."""
    monkeypatch.chdir(tmp_path)
    empty = np.zeros(SHAPE, dtype=np.uint8)
    write_cases(tmp_path / "truth", {f"c{case}": blob(SHAPE) for case in range(6)})
    write_cases(tmp_path / "all", {f"c{case}": blob(SHAPE, 1 if case < 3 else 6) for case in range(6)})
    write_cases(tmp_path / "half", {f"c{case}": blob(SHAPE, 1) if case < 3 else empty for case in range(6)})
    return tmp_path


def test_the_report_says_what_was_missed_and_whose(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("all", "half"):
        assert typed(f"evaluate {name} truth -np 1 --draws 50") == 0
        (pair / f"{name}.txt").write_text(_shown(capsys))
    whole, half = ((pair / f"{name}.txt").read_text() for name in ("all", "half"))
    assert "NOTE" not in whole
    assert "leave missed objects out: a model that misses more can have the better ones" in half
    assert "--missed worst" in half
    assert "1: 3 of 6 objects missed (c3, c4, c5)" in half
    # the trap itself: without that line the worse model has the better distance
    means = [json.loads((pair / name / "evaluation" / "summary.json").read_text()) for name in ("all", "half")]
    assert means[1]["classes"]["1"]["hd95"]["mean"] < means[0]["classes"]["1"]["hd95"]["mean"]
    assert means[1]["objects"]["1"] == {"missed": ["c3", "c4", "c5"], "predicted_without_truth": [], "both_empty": 0}


@pytest.mark.parametrize("rules", CONVENTIONS)
def test_a_missed_object_can_count_with_the_images_diagonal(pair: Path, rules: str) -> None:
    diagonal = float(np.linalg.norm(SHAPE)) if rules == "transunet" else DIAGONAL
    assert typed(f"evaluate half truth -np 1 --draws 9 --missed worst --convention {rules} --out worst") == 0
    found = read_results(pair / "worst")
    np.testing.assert_allclose(found.values["hd95"][3:], diagonal)
    np.testing.assert_allclose(found.values["assd"][3:], diagonal)
    assert (found.values["nsd"][3:] == 0).all()
    assert (found.missed, json.loads((pair / "worst" / "summary.json").read_text())["missed"]) == ("worst", "worst")


def test_compare_calls_no_difference_where_other_pairs_drop_out(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed("compare all half --truth truth -np 1 --draws 50")
    shown = _shown(capsys)
    assert "HD95, ASSD of 1 not compared: 3 cases of B alone (c3, c4, c5) would be left out; --missed worst" in shown
    assert "1: A missed 0 of 6, predicted 0 where there is none; B missed 3 of 6, predicted 0" in shown
    rows = _comparison(pair)
    for metric in ("hd95", "assd"):
        assert rows[metric, "1"]["difference"] == rows[metric, "1"]["mean_a"] == rows[metric, "1"]["better"] == ""
        assert rows[metric, "1"]["remark"].startswith("not compared: 3 cases of B alone")
    assert float(rows["dice", "1"]["difference"]) > 0
    typed("compare all half --truth truth -np 1 --draws 50 --missed worst")
    assert float(_comparison(pair)["hd95", "1"]["difference"]) < -DIAGONAL / 4


def test_saved_results_are_compared_in_the_same_way(pair: Path) -> None:
    for name in ("all", "half"):
        for missed in MISSED:
            typed(f"evaluate {name} truth -np 1 --draws 9 --missed {missed}")
    typed("compare all half --draws 9")
    assert _comparison(pair)["hd95", "1"]["difference"] == ""
    typed("compare all/evaluation_worst half/evaluation_worst --draws 9")
    assert float(_comparison(pair)["hd95", "1"]["difference"]) < 0
    with pytest.raises(UserError, match=r"way to count missed objects \(--missed\) of A is worst, that of B leave-out"):
        typed("compare all/evaluation_worst half --draws 9")


def test_published_rules_that_reward_a_miss_are_told(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """HD95 0 of a missed object is the best there is."""
    typed("evaluate half truth -np 1 --draws 9 --convention transunet")
    assert "a missed object has HD95 0 in this convention, the best value there is" in _shown(capsys)
    typed("compare all half --truth truth -np 1 --draws 9 --convention transunet")
    assert _comparison(pair)["hd95", "1"]["better"] == _comparison(pair)["hd95", "1"]["difference"] == ""


def test_monai_leaves_images_without_truth_out_and_says_so(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = np.zeros(SHAPE, dtype=np.uint8)
    write_cases(pair / "truth", {"n0": empty, "n1": empty})
    write_cases(pair / "all", {"n0": blob(SHAPE), "n1": empty})
    write_cases(pair / "half", {"n0": empty, "n1": empty})
    found = {rules: evaluate_folders(pair / "all", pair / "truth", rules=rules) for rules in CONVENTIONS}
    standard, monai = (found[rules].values for rules in ("standard", "monai"))
    for metric in ("dice", "iou", "nsd"):
        assert standard[metric][6, 0] == 0
        np.testing.assert_array_equal(np.isnan(monai[metric][:, 0]), [False] * 6 + [True] * 2)
        np.testing.assert_array_equal(monai[metric][:6], standard[metric][:6])
    capsys.readouterr()
    typed("evaluate all truth -np 1 --draws 9 --convention monai")
    shown = _shown(capsys)
    assert "monai convention" in shown
    assert "images without the object are left out of the means, so false positives there do not show" in shown
    assert "1: 1 prediction where there is none (n0); 1 case with neither" in shown
    typed("compare all half --truth truth -np 1 --draws 9")
    shown = _shown(capsys)
    assert (
        "Dice, IoU, NSD of 1 not compared: 1 case of B alone (n0) would be left out; --convention monai leaves" in shown
    )
    assert "HD95, ASSD of 1 not compared: 3 cases of B alone (c3, c4, c5) would be left out; --missed worst" in shown
    for missed in MISSED:  # also where something was missed, and where distances count
        typed(f"evaluate all truth -np 1 --draws 9 --convention monai --missed {missed}")
        assert "false positives there do not show" in _shown(capsys)
    typed("evaluate all truth -np 1 --draws 9 --convention transunet --missed worst")
    assert "a prediction where there is nothing to find has Dice 1 in this convention" in _shown(capsys)
    typed("compare all half --truth truth -np 1 --draws 9 --convention monai --missed worst")
    assert "so false positives there do not show" in _shown(capsys)
    assert all(row["difference"] for row in _comparison(pair).values())


def test_the_printed_mean_says_which_it_is_and_gives_nnunets(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Class 2 is in two cases only: the two ways of averaging differ."""
    rng = np.random.default_rng(0)
    for folder in ("truth", "half"):
        for case in range(6):
            mask = blob(SHAPE, int(rng.integers(0, 6)) if folder == "half" and case < 4 else 0)
            mask[:, :3, : 2 + int(rng.integers(0, 9))] = 2 if case < 2 else 0
            if case == 5 and folder == "half":
                mask[:, -3:, -3:] = 2  # a false positive
            write_cases(pair / folder, {f"c{case}": mask})
    files = [str(path) for path in (pair / "truth", pair / "half")]
    nnunets = compute_metrics_on_folder(*files, None, SimpleITKIO(), ".nii.gz", [1, 2], None, 1)["foreground_mean"]
    for rules in CONVENTIONS:
        found = foreground_mean(evaluate_folders(pair / "half", pair / "truth", rules=rules))
        assert found == pytest.approx({"Dice": nnunets["Dice"], "IoU": nnunets["IoU"]}, abs=1e-12)
    typed("evaluate half truth -np 1 --draws 9")
    shown = _shown(capsys)
    assert "mean over classes: every case averaged over the classes defined in it, then over cases" in shown
    assert (
        f"nnU-Net's foreground_mean, every class averaged over its cases, then over classes: Dice {nnunets['Dice']:.3f}"
        in shown
    )
    summary = json.loads((pair / "half" / "evaluation" / "summary.json").read_text())
    assert summary["foreground_mean_as_in_nnunet"]["Dice"] == pytest.approx(nnunets["Dice"])
    assert abs(summary["mean_over_classes"]["dice"]["mean"] - nnunets["Dice"]) > 0.01


def test_false_positives_alone_are_told_as_such(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_cases(pair / "truth", {"n0": np.zeros(SHAPE, dtype=np.uint8)})
    write_cases(pair / "all", {"n0": blob(SHAPE)})
    typed("evaluate all truth -np 1 --draws 9")
    shown = _shown(capsys)
    assert "the means of HD95 and ASSD leave out predictions where there is nothing to find" in shown
    assert "1: 1 prediction where there is none (n0)" in shown
    assert "leave missed objects out" not in shown


def test_results_against_different_truths_are_not_compared(pair: Path) -> None:
    typed("evaluate all truth -np 1 --draws 9 --out a")
    larger = blob(SHAPE)
    larger[:, :2] = 1
    write_cases(pair / "truth", {"c4": larger})
    typed("evaluate half truth -np 1 --draws 9 --out b")
    with pytest.raises(UserError, match=r"the true mask of c4 has \d+ voxels of 1 for A, \d+ for B"):
        typed("compare a b --draws 9")
    assert not (pair / "comparison").exists()


def test_results_older_than_the_masks_are_noted(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("all", "half"):
        typed(f"evaluate {name} truth -np 1 --draws 9")
    typed("compare all half --draws 9")
    assert "NOTE" not in _shown(capsys).replace("NOTE: the means", "")
    later = (pair / "half" / "evaluation" / "metrics.csv").stat().st_mtime + 5
    os.utime(pair / "half" / "c3.nii.gz", (later, later))
    typed("compare all half --draws 9")
    assert "NOTE: 1 mask in half (such as c3.nii.gz) newer than the results in evaluation" in _shown(capsys)


def test_what_is_nowhere_and_voxel_sizes_of_predictions_are_told(
    pair: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_scheme(pair / "three.json", {"background": 0, "one": 1, "ghost": 2})
    typed("evaluate half truth -np 1 --draws 9 --dataset-json three.json")
    assert "in no mask, so nnU-Net's foreground_mean is undefined: ghost" in _shown(capsys)
    write_mask(pair / "flat_truth" / "c.png", blob((24, 28)))
    write_mask(pair / "flat" / "c.nii.gz", blob((1, 24, 28)))
    typed("evaluate flat flat_truth -np 1 --draws 9")
    assert "c: the true mask says no voxel size, so that of the prediction is taken" in _shown(capsys)


def test_figures_say_what_they_leave_out(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    titles: list[str] = []
    monkeypatch.setattr("matplotlib.axes.Axes.set_title", lambda axes, title, **_: titles.append(title))
    typed("evaluate half truth -np 1 --draws 9")
    assert titles[:2] == ["Dice", "IoU"]
    assert titles[2:4] == [f"{name} (mm)\n3 missed or false left out" for name in ("HD95", "ASSD")]


def test_the_command_offers_what_there_is() -> None:
    assert tuple(CONVENTIONS) == arguments_evaluation.CONVENTIONS
    assert MISSED == arguments_evaluation.MISSED


def _comparison(folder: Path) -> dict[tuple[str, str], dict[str, str]]:
    rows = csv.DictReader((folder / "comparison" / "comparison.csv").read_text().splitlines())
    return {(row["metric"], row["class"]): row for row in rows}


def _shown(capsys: pytest.CaptureFixture[str]) -> str:
    """What was printed, its lines as one."""
    return " ".join(capsys.readouterr().out.split())
