"""Real masks: against themselves, against shifted copies, and nnU-Net's own numbers."""

import json
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from nnunetv2.evaluation.evaluate_predictions import compute_metrics
from nnunetv2.imageio.natural_image_reader_writer import NaturalImage2DIO
from nnunetv2.imageio.simpleitk_reader_writer import SimpleITKIO
from PIL import Image
from scipy import ndimage

from nnunet_gdla.evaluation.classes import find_dataset_json, read_scheme
from nnunet_gdla.evaluation.conventions import METRICS
from nnunet_gdla.evaluation.results import Results
from nnunet_gdla.evaluation.run import evaluate_folders
from tests.evaluation.naive import naive_metrics
from tests.paths import nnunet_raw_folder

PERFECT = {"dice": 1, "iou": 1, "hd95": 0, "assd": 0, "nsd": 1, "pixel_accuracy": 1}


def evaluated(predictions: Path, truth: Path) -> Results:
    path = find_dataset_json(predictions, truth)
    assert path is not None
    return evaluate_folders(predictions, truth, scheme=read_scheme(path))


def drive(tmp_path: Path, count: int) -> tuple[Path, Path]:
    """Copy a few retinal masks, with an ignore label, and make copies shifted by two rows."""
    source = nnunet_raw_folder() / "Dataset113_DRIVEignore"
    truth, shifted = tmp_path / "labelsTr", tmp_path / "shifted"
    truth.mkdir()
    shifted.mkdir()
    shutil.copy(source / "dataset.json", tmp_path)
    for path in sorted((source / "labelsTr").iterdir())[:count]:
        shutil.copy(path, truth)
        Image.fromarray(np.roll(np.asarray(Image.open(path)), 2, axis=0)).save(shifted / path.name)
    return shifted, truth


def test_retina_against_itself() -> None:
    labels = nnunet_raw_folder() / "Dataset113_DRIVEignore" / "labelsTr"
    results = evaluated(labels, labels)
    assert (len(results.cases), results.classes) == (20, ("vessel",))
    for metric in METRICS:
        assert (results.values[metric] == PERFECT[metric]).all(), metric


def test_retina_shifted_equals_nnunets_counts_and_the_loops(tmp_path: Path) -> None:
    shifted, truth = drive(tmp_path, 2)
    results = evaluated(shifted, truth)
    for row, case in enumerate(results.cases):
        files = str(truth / f"{case}.png"), str(shifted / f"{case}.png")
        nnunets = compute_metrics(*files, NaturalImage2DIO(), [1], ignore_label=2)["metrics"][1]
        assert results.values["dice"][row, 0] == pytest.approx(nnunets["Dice"], rel=1e-12)
        assert results.values["iou"][row, 0] == pytest.approx(nnunets["IoU"], rel=1e-12)
        assert results.voxels_truth is not None
        assert results.voxels_truth[row, 0] == nnunets["n_ref"]
        kept = np.asarray(Image.open(files[0])) != 2
        pair = [(np.asarray(Image.open(file)) == 1) & kept for file in files]
        assert results.values["hd95"][row, 0] == pytest.approx(hd95_of_maps(*pair), rel=1e-12)


def hd95_of_maps(one: npt.NDArray[np.bool_], two: npt.NDArray[np.bool_]) -> float:
    """HD95 by scipy's erosion and distance maps of the whole image."""
    edges = [mask & ~ndimage.binary_erosion(mask) for mask in (one, two)]
    maps = [ndimage.distance_transform_edt(~edge) for edge in edges]
    return max(float(np.percentile(maps[1][edges[0]], 95)), float(np.percentile(maps[0][edges[1]], 95)))


def test_hippocampus_equals_nnunets_counts_and_the_loops(tmp_path: Path) -> None:
    """Each case against itself, moved along all three axes."""
    source = nnunet_raw_folder() / "Dataset906_HippocampusTiny"
    truth = source / "labelsTr"
    reader = SimpleITKIO()
    predictions = tmp_path / "predictions"
    predictions.mkdir()
    for path in sorted(truth.iterdir()):
        labels, properties = reader.read_seg(str(path))
        moved = np.roll(labels[0], (1, -2, 1), axis=(0, 1, 2)).astype(np.uint8)
        reader.write_seg(moved, str(predictions / path.name), properties)
    results = evaluated(predictions, truth)
    names = list(json.loads((source / "dataset.json").read_text())["labels"])[1:]
    assert results.classes == tuple(names)
    assert not results.remarks
    for row, case in enumerate(results.cases):
        files = str(truth / f"{case}.nii.gz"), str(predictions / f"{case}.nii.gz")
        nnunets = compute_metrics(*files, reader, [1, 2])["metrics"]
        found = [results.values["dice"][row, column] for column in range(2)]
        assert found == pytest.approx([nnunets[1]["Dice"], nnunets[2]["Dice"]], rel=1e-12)
    labels, properties = reader.read_seg(str(truth / f"{results.cases[0]}.nii.gz"))
    moved, _ = reader.read_seg(str(predictions / f"{results.cases[0]}.nii.gz"))
    for column in range(2):
        pair = moved[0] == column + 1, labels[0] == column + 1
        expected = naive_metrics(*pair, tuple(properties["spacing"]), 1.0)
        for metric in ("hd95", "assd", "nsd"):
            assert results.values[metric][0, column] == pytest.approx(expected[metric], rel=2e-6), metric


def test_hippocampus_regions_against_itself() -> None:
    labels = nnunet_raw_folder() / "Dataset905_HippocampusRegions" / "labelsTr"
    results = evaluated(labels, labels)
    assert results.classes == ("hippocampus", "posterior")
    assert (results.values["dice"] == 1).all()
    assert results.voxels_truth is not None
    assert (results.voxels_truth[:, 0] > results.voxels_truth[:, 1]).all()
