"""Folders of predictions against folders of truth."""

import csv
import json
import time
from multiprocessing import active_children, get_context
from pathlib import Path

import numpy as np
import pytest

from nnunet_gdla.errors import UserError
from nnunet_gdla.evaluation import run
from nnunet_gdla.evaluation.cases import CaseJob
from nnunet_gdla.evaluation.classes import find_dataset_json, read_scheme
from nnunet_gdla.evaluation.report import summarise_results, summary_table, write_report
from nnunet_gdla.evaluation.results import MEAN, read_results
from nnunet_gdla.evaluation.run import evaluate_folders
from tests.evaluation.mask_files import SPACING, blob, write_cases, write_mask, write_scheme
from tests.evaluation.naive import naive_metrics

SHAPE = (6, 12, 14)


def two_classes(shift: int = 0) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    labels = blob(SHAPE, shift)
    labels[:2, :3, :3] = 2
    return labels


def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Three cases of a dataset with two classes; the second class is missing in the last."""
    truth = {"a": two_classes(), "b": two_classes(1), "c": blob(SHAPE)}
    predictions = {"a": two_classes(1), "b": two_classes(1), "c": blob(SHAPE, 2)}
    return write_cases(tmp_path / "predictions", predictions), write_cases(tmp_path / "truth", truth)


def test_numbers_equal_the_loops(tmp_path: Path) -> None:
    predictions, truth = folders(tmp_path)
    results = evaluate_folders(predictions, truth, tolerance=0.75)
    assert (results.cases, results.classes, results.unit) == (("a", "b", "c"), ("1", "2"), "mm")
    expected = naive_metrics(two_classes(1) == 1, two_classes() == 1, SPACING, 0.75)
    for metric in ("hd95", "assd", "nsd"):
        assert results.values[metric][0, 0] == pytest.approx(expected[metric])
    assert results.values["dice"][1].tolist() == [1, 1]
    assert np.isnan(results.values["dice"][2, 1])
    assert results.values["pixel_accuracy"][2, 1] == 1
    assert results.voxels_truth is not None
    assert results.voxels_truth[:, 1].tolist() == [18, 18, 0]


def test_processes_give_the_same_numbers(tmp_path: Path) -> None:
    predictions, truth = folders(tmp_path)
    alone, together = (evaluate_folders(predictions, truth, processes=count) for count in (1, 2))
    np.testing.assert_equal(alone.values, together.values)
    assert alone.cases == together.cases


def test_a_stopped_evaluation_ends_its_own_processes_and_no_other_child_of_the_caller(tmp_path: Path) -> None:
    predictions, truth = folders(tmp_path)
    jobs = [
        CaseJob(name, predictions / f"{name}.nii.gz", truth / f"{name}.nii.gz", None, "standard", 1.0) for name in "abc"
    ]
    other = get_context("spawn").Process(target=time.sleep, args=(300,))
    other.start()
    try:
        scores = run._measure(jobs, 2)
        next(scores)
        assert len(active_children()) > 1
        scores.close()  # type: ignore[attr-defined]
        assert active_children() == [other]
    finally:
        other.kill()
        other.join()


def test_an_error_in_another_process_is_the_same_sentence(tmp_path: Path) -> None:
    predictions, truth = folders(tmp_path)
    write_mask(predictions / "b.nii.gz", blob((5, 5, 5)))
    with pytest.raises(UserError, match=r"b\.nii\.gz is 5 x 5 x 5"):
        evaluate_folders(predictions, truth, processes=2)


def test_every_format_gives_the_same_overlap(tmp_path: Path) -> None:
    for ending in (".nii.gz", ".nrrd", ".mha", ".tif"):
        folder = tmp_path / ending
        write_cases(folder / "p", {"a": blob(SHAPE, 1)}, ending)
        write_cases(folder / "t", {"a": blob(SHAPE)}, ending)
        results = evaluate_folders(folder / "p", folder / "t")
        expected = naive_metrics(blob(SHAPE, 1) == 1, blob(SHAPE) == 1, SPACING, 1.0)
        assert results.values["hd95"].item() == pytest.approx(expected["hd95"]), ending


def test_pictures_are_measured_in_pixels(tmp_path: Path) -> None:
    write_cases(tmp_path / "p", {"a": blob((20, 30), 2)}, ".png")
    write_cases(tmp_path / "t", {"a": blob((20, 30))}, ".bmp")
    results = evaluate_folders(tmp_path / "p", tmp_path / "t")
    assert results.unit == "voxels"
    assert results.values["hd95"].item() == 2


def test_a_picture_takes_the_voxel_size_of_its_truth(tmp_path: Path) -> None:
    write_cases(tmp_path / "p", {"a": blob((20, 30), 2)}, ".png")
    write_mask(tmp_path / "t" / "a.nii.gz", blob((20, 30))[None], (1.0, 0.5, 0.5))
    results = evaluate_folders(tmp_path / "p", tmp_path / "t")
    assert (results.unit, results.values["hd95"].item()) == ("mm", 1.0)


def test_regions_and_ignore_label_come_from_dataset_json(tmp_path: Path) -> None:
    truth = two_classes()
    truth[4:] = 3
    write_cases(tmp_path / "p", {"a": two_classes(1)})
    write_cases(tmp_path / "t", {"a": truth})
    labels = {"background": 0, "whole": [1, 2], "core": 2, "ignore": 3}
    path = write_scheme(tmp_path / "t" / "dataset.json", labels, regions_class_order=[1, 2])
    assert find_dataset_json(tmp_path / "p", tmp_path / "t") == path
    results = evaluate_folders(tmp_path / "p", tmp_path / "t", scheme=read_scheme(path))
    assert results.classes == ("whole", "core")
    kept = truth != 3
    one, two = ((labels > 0) & kept for labels in (two_classes(1), truth))
    expected = naive_metrics(one, two, SPACING, 1.0)
    assert results.values["hd95"][0, 0] == pytest.approx(expected["hd95"])
    assert results.values["dice"][0, 0] == 2 * np.count_nonzero(one & two) / (one.sum() + two.sum())
    assert results.values["pixel_accuracy"][0, 0] == np.count_nonzero((one == two) & kept) / kept.sum()


def test_classes_that_no_case_holds_stay_in_the_table(tmp_path: Path) -> None:
    predictions, truth = folders(tmp_path)
    path = write_scheme(tmp_path / "dataset.json", {"background": 0, "x": 1, "y": 2, "z": 3})
    assert find_dataset_json(predictions, truth) == path
    results = evaluate_folders(predictions, truth, scheme=read_scheme(path))
    assert results.classes == ("x", "y", "z")
    assert np.isnan(results.values["dice"][:, 2]).all()


def test_unpaired_cases_are_listed(tmp_path: Path) -> None:
    predictions, truth = folders(tmp_path)
    write_cases(predictions, {"z": blob(SHAPE)})
    write_cases(truth, {"d": blob(SHAPE), "e": blob(SHAPE)})
    results = evaluate_folders(predictions, truth)
    assert (results.missing, results.extra) == (("d", "e"), ("z",))
    assert results.cases == ("a", "b", "c")


def test_files_without_voxel_size_among_others_are_remarked(tmp_path: Path) -> None:
    predictions, truth = folders(tmp_path)
    for folder in (predictions, truth):
        write_mask(folder / "flat.png", blob((20, 30)))
    assert evaluate_folders(predictions, truth).remarks == ("no voxel size in 1 case (flat ...): 1 mm taken",)


def test_folders_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    predictions, truth = folders(tmp_path)
    other = write_cases(tmp_path / "other", {"a_0000": blob(SHAPE)})
    with pytest.raises(UserError, match=r"no case in common \(such as a\.nii\.gz and a_0000\.nii\.gz\)"):
        evaluate_folders(predictions, other)
    with pytest.raises(UserError, match="unknown convention"):
        evaluate_folders(predictions, truth, rules="mine")
    for tolerance in (-1.0, float("nan")):
        with pytest.raises(UserError, match="--tolerance"):
            evaluate_folders(predictions, truth, tolerance=tolerance)


def test_values_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    truth = write_cases(tmp_path / "t", {"a": blob(SHAPE)})
    white = write_cases(tmp_path / "p", {"a": blob(SHAPE, value=255)})
    with pytest.raises(UserError, match=r"the predictions hold the label values 255, the truth 1"):
        evaluate_folders(white, truth)
    scheme = read_scheme(write_scheme(tmp_path / "dataset.json", {"background": 0, "x": 1}))
    with pytest.raises(UserError, match=r"p/a\.nii\.gz holds the value 255, but .* declares 0, 1; divide"):
        evaluate_folders(white, truth, scheme=scheme)
    nothing = write_cases(tmp_path / "n", {"a": np.zeros(SHAPE, dtype=np.uint8)})
    with pytest.raises(UserError, match="every mask is empty"):
        evaluate_folders(nothing, nothing)
    image = np.arange(np.prod(SHAPE), dtype=np.uint16).reshape(SHAPE)
    images = write_cases(tmp_path / "i", {"a": np.tile(image, (1, 1, 2))})
    with pytest.raises(UserError, match="1008 different values: an image"):
        evaluate_folders(images, images)


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        (None, "no labels object"),
        ({"0": "background", "1": "x"}, "the wrong way round"),
        ({"background": 0}, "no class besides background"),
        ({"background": 0, "x": "1"}, "'x' is '1'"),
        ({"background": 0, "x": []}, "'x' is"),
        ({"background": 0, "x": 1.5}, "'x' is 1.5"),
        ({"background": 0, "x": float("inf")}, "'x' is inf"),
        ({"background": 0, "x": 1, "ignore": [2, 3]}, "one whole number"),
        ({"background": 0, "x": [0, 1]}, "holds the background"),
    ],
)
def test_a_dataset_json_that_makes_no_sense_is_refused(tmp_path: Path, labels: object, reason: str) -> None:
    path = tmp_path / "dataset.json"
    path.write_text(json.dumps({"labels": labels}))
    with pytest.raises(UserError, match=reason):
        read_scheme(path)


@pytest.mark.parametrize("text", ["{", "[1]", None])
def test_a_dataset_json_that_cannot_be_read_is_refused(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "dataset.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=r"dataset\.json"):
        read_scheme(path)


def test_the_files_say_what_was_measured(tmp_path: Path) -> None:
    predictions, truth = folders(tmp_path)
    results = evaluate_folders(predictions, truth)
    summaries = summarise_results(results, draws=200, seed=1)
    out = tmp_path / "new" / "out"
    write_report(results, summaries, out, draws=200, seed=1)
    assert sorted(path.name for path in out.iterdir()) == ["boxplot.png", "metrics.csv", "summary.json"]
    rows = list(csv.DictReader((out / "metrics.csv").read_text().splitlines()))
    assert [(row["case"], row["class"]) for row in rows] == [(case, name) for case in "abc" for name in "12"]
    assert rows[5]["dice"] == rows[5]["hd95"] == ""
    assert float(rows[0]["dice"]) == results.values["dice"][0, 0]
    summary = json.loads((out / "summary.json").read_text())
    second = summary["classes"]["2"]["dice"]
    assert (second["mean"], second["n"], second["n_undefined"], second["sd"]) == (1, 2, 1, 0)
    assert summary["mean_over_classes"]["dice"]["n"] == 3
    assert summary["mean_over_classes"]["dice"]["mean"] == results.columns("dice")[MEAN].mean()
    assert (summary["convention"], summary["unit"], summary["cases"]) == ("standard", "mm", 3)
    assert (out / "boxplot.png").read_bytes().startswith(b"\x89PNG")
    first, second = (part.splitlines() for part in summary_table(results, summaries).split("\n\n"))
    assert first[0].split() == ["class", "Dice", "IoU", "HD95", "mm"]
    assert second[0].split() == ["class", "ASSD", "mm", "NSD", "1", "mm", "accuracy"]
    assert "(1 undef.)" in first[2]
    again = read_results(out)
    np.testing.assert_equal(again.values, results.values)
    assert (again.cases, again.classes, again.convention) == (results.cases, results.classes, "standard")


def test_one_case_and_nothing_defined_can_be_reported(tmp_path: Path) -> None:
    path = write_scheme(tmp_path / "dataset.json", {"background": 0, "x$1$": 1})
    nothing = write_cases(tmp_path / "n", {"a": np.zeros((8, 9), dtype=np.uint8)}, ".png")
    results = evaluate_folders(nothing, nothing, scheme=read_scheme(path))
    summaries = summarise_results(results, draws=50, seed=0)
    write_report(results, summaries, tmp_path / "out", draws=50, seed=0)
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["classes"]["x$1$"]["dice"]["mean"] is None
    assert "undefined" in summary_table(results, summaries)


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predictions, truth = folders(tmp_path)
    results = evaluate_folders(predictions, truth)
    summaries = summarise_results(results, draws=50, seed=0)
    write_report(results, summaries, tmp_path / "out", draws=50, seed=0)
    before = (tmp_path / "out" / "metrics.csv").read_bytes()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nnunet_gdla.evaluation.results._cell", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_report(results, summaries, tmp_path / "out", draws=50, seed=0)
    assert (tmp_path / "out" / "metrics.csv").read_bytes() == before
    assert len(list((tmp_path / "out").iterdir())) == 3


def test_a_file_in_the_way_of_the_results_is_one_sentence(tmp_path: Path) -> None:
    predictions, truth = folders(tmp_path)
    results = evaluate_folders(predictions, truth)
    (tmp_path / "out").touch()
    with pytest.raises(UserError, match="--out"):
        write_report(results, summarise_results(results, draws=9, seed=0), tmp_path / "out", draws=9, seed=0)


def test_there_is_a_sensible_number_of_processes() -> None:
    assert 1 <= run.default_processes() <= 8
