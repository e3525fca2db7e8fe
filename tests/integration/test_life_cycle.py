"""From raw data to masks with nnU-Net's own commands: one model, used in every way in which nnU-Net uses a model."""

import base64
import hashlib
import importlib.metadata
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.integration.datasets import cases_of, read_json
from tests.integration.masks import assert_fits_images, assert_same_predictions, read_mask
from tests.integration.stages import GDLA, SHORT_PLANS, predict, train
from tests.integration.workspace import Workspace

pytestmark = pytest.mark.slow
Trained = tuple[Workspace, str]
STOCK = "nnUNetTrainerStockShort"


def test_plans(trained_classes: Trained) -> None:
    workspace, dataset = trained_classes
    folder = workspace.preprocessed / dataset
    stock, ours = (
        read_json(folder / f"{name}.json")["configurations"]["2d"] for name in ("nnUNetPlans", "nnUNetGDLAPlans")
    )
    assert ours["architecture"]["network_class_name"] == "nnunet_gdla.networks.PVTGDLA"
    assert [edge % 32 for edge in ours["patch_size"]] == [0, 0]
    assert all(0 <= big - small < 32 for big, small in zip(ours["patch_size"], stock["patch_size"], strict=True))
    assert {key for key in stock if stock[key] != ours[key]} <= {
        "architecture",
        "batch_size",
        "patch_size",
        "data_identifier",
    }
    assert (
        len(list((folder / ours["data_identifier"]).glob("*_seg.b2nd")))
        == read_json(folder / "dataset.json")["numTraining"]
    )


def test_training_leaves_what_nnunet_leaves(trained_classes: Trained) -> None:
    workspace, dataset = trained_classes
    fold = workspace.model(dataset, GDLA, SHORT_PLANS) / "fold_0"
    names = {path.name for path in fold.iterdir()}
    assert {"checkpoint_final.pth", "checkpoint_best.pth", "progress.png", "debug.json", "validation"} <= names
    assert "checkpoint_latest.pth" not in names
    checkpoint = torch.load(fold / "checkpoint_final.pth", weights_only=False)
    assert checkpoint["trainer_name"] == GDLA
    assert all(bool(torch.isfinite(value).all()) for value in checkpoint["network_weights"].values())
    raw = workspace.raw / dataset
    cases = cases_of(raw, "val")
    assert_fits_images(fold / "validation", raw, "imagesTs", cases)
    assert "foreground_mean" in read_json(fold / "validation" / "summary.json")


def test_predict_repeats_the_validation(trained_classes: Trained) -> None:
    workspace, dataset = trained_classes
    raw = workspace.raw / dataset
    cases = cases_of(raw, "val")
    predicted = workspace.results.parent / "predicted"
    assert_fits_images(predicted, raw, "imagesTs", cases)
    assert_same_predictions(predicted, workspace.model(dataset, GDLA, SHORT_PLANS) / "fold_0" / "validation", cases)


def test_predict_from_modelfolder(trained_classes: Trained, tmp_path: Path) -> None:
    workspace, dataset = trained_classes
    images = workspace.raw / dataset / "imagesTs"
    elsewhere = Workspace.below(tmp_path)  # a clinic's machine: neither data nor results of the training
    elsewhere.run(
        "nnUNetv2_predict_from_modelfolder",
        *("-m", workspace.model(dataset, GDLA, SHORT_PLANS), "-i", images, "-o", tmp_path / "masks", "-f", "0"),
        *("-device", "cpu", "-npp", "1", "-nps", "1", "--save_probabilities"),  # unlike its sister it takes no zeros
    )
    assert_same_predictions(tmp_path / "masks", workspace.results.parent / "predicted", cases_of(images.parent, "val"))


def test_export_install_and_predict(trained_classes: Trained, tmp_path: Path) -> None:
    workspace, dataset = trained_classes
    archive = tmp_path / "model.zip"
    workspace.run(
        "nnUNetv2_export_model_to_zip",
        *("-d", dataset, "-c", "2d", "-tr", GDLA, "-p", SHORT_PLANS, "-f", "0", "-o", archive),
    )
    elsewhere = Workspace.below(tmp_path, like=workspace)
    elsewhere.run("nnUNetv2_install_pretrained_model_from_zip", archive)
    predict(elsewhere, dataset, GDLA, SHORT_PLANS, tmp_path / "masks")
    cases = cases_of(workspace.raw / dataset, "val")
    assert_same_predictions(tmp_path / "masks", workspace.results.parent / "predicted", cases)


def test_best_configuration_and_ensemble_with_a_stock_unet(trained_classes: Trained, tmp_path: Path) -> None:
    shared, dataset = trained_classes
    workspace = Workspace.below(tmp_path, like=shared)
    ours = shared.model(dataset, GDLA, SHORT_PLANS)
    shutil.copytree(ours, workspace.model(dataset, GDLA, SHORT_PLANS), ignore=shutil.ignore_patterns("*.pth"))
    train(workspace, dataset, STOCK, SHORT_PLANS, "--npz")

    said = workspace.run(
        "nnUNetv2_find_best_configuration",
        *(dataset, "-p", SHORT_PLANS, "-c", "2d", "-tr", GDLA, STOCK, "-f", "0", "-np", "1"),
    )
    models = [f"{trainer}__{SHORT_PLANS}__2d" for trainer in (GDLA, STOCK)]
    assert all(f"\n{name}: " in said for name in models)
    assert read_json(workspace.results / dataset / "inference_information.json")["all_results"].keys() > set(models)
    assert list((workspace.results / dataset / "ensembles").glob(f"ensemble___{'___'.join(models)}*/summary.json"))

    folders = [shared.results.parent / "predicted", tmp_path / "stock"]
    predict(workspace, dataset, STOCK, SHORT_PLANS, folders[1])
    workspace.run("nnUNetv2_ensemble", "-i", *folders, "-o", tmp_path / "both", "-np", "1")
    raw = workspace.raw / dataset
    cases = cases_of(raw, "val")
    assert_fits_images(tmp_path / "both", raw, "imagesTs", cases)
    for case in cases:
        mean = sum(np.load(folder / f"{case}.npz")["probabilities"].astype(np.float32) for folder in folders)
        ending = read_json(raw / "dataset.json")["file_ending"]
        np.testing.assert_array_equal(read_mask(tmp_path / "both" / f"{case}{ending}"), np.argmax(mean, axis=0))


def test_nnunet_is_as_it_was_installed(trained_classes: Trained) -> None:
    sources = [(file, file.hash) for file in importlib.metadata.files("nnunetv2") or [] if file.suffix == ".py"]
    hashed = [(Path(str(file.locate())), digest) for file, digest in sources if digest is not None]
    if not hashed:
        pytest.skip("nnunetv2 is not installed from a wheel, so that nothing says how its files were")
    for path, digest in hashed:
        found = hashlib.new(digest.mode, path.read_bytes()).digest()
        assert base64.urlsafe_b64encode(found).decode().rstrip("=") == digest.value, path


def test_a_command_that_asked_for_the_network_would_fail(tmp_path: Path) -> None:
    workspace = Workspace.below(tmp_path)
    for expect in (0, 1):
        asking = f"import socket\ntry: socket.create_connection(('pypi.org', 443))\nexcept OSError: exit({expect})"
        with pytest.raises(AssertionError, match=r"asked for the network: pypi\.org"):
            workspace.run("python", "-c", asking, expect=expect)
