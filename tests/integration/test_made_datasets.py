"""Channels and file formats: one, two, four and thirteen channels; pictures, NIfTI and MetaImage in 2D."""

from pathlib import Path

import pytest
import torch

from tests.integration.datasets import edit_plans
from tests.integration.made_datasets import FORMATS, Format, make_dataset
from tests.integration.masks import assert_fits_images
from tests.integration.stages import PREDICT_OPTIONS
from tests.integration.workspace import Workspace, run_together

pytestmark = pytest.mark.slow
TRAINER, PLANS = "nnUNetTrainerGDLATwoStepsOnly", "twoStepPlans"


def calls(workspace: Workspace, form: Format) -> list[tuple[object, ...]]:
    images, masks = workspace.raw / form.folder / "imagesTs", workspace.results / form.name
    which = ("-tr", TRAINER, "-p", PLANS)
    return [
        ("nnunetv2.run.run_training", "run_training_entry", form.number, "2d", "0", *which, "-device", "cpu"),
        (
            *("nnunetv2.inference.predict_from_raw_data", "predict_entry_point"),
            *("-d", form.number, "-c", "2d", "-f", "0", *which, "-i", images, "-o", masks),
            *PREDICT_OPTIONS,
        ),
    ]


def test_formats_train_and_predict(tmp_path: Path) -> None:
    workspace = Workspace.below(tmp_path)
    for form in FORMATS:
        make_dataset(workspace.raw, form)
    workspace.run(
        "nnUNetv2_plan_and_preprocess",
        *("-d", *(form.number for form in FORMATS), "-c", "2d", "-pl", "nnUNetPlannerGDLA", "-np", "1", "-npfp", "1"),
        "--verify_dataset_integrity",
        variables={"nnUNet_n_proc_DA": "1", "NNUNET_GDLA_TEST_FORK": "1"},
    )
    for form in FORMATS:
        folder = workspace.preprocessed / form.folder
        (folder / "splits_final.json").write_bytes((workspace.raw / form.folder / "splits_final.json").read_bytes())
        edit_plans(folder, "nnUNetGDLAPlans", PLANS, largest_patch=(64, 64), encoder="pvt_v2_b0")
    run_together(workspace, [call for form in FORMATS for call in calls(workspace, form)])
    for form in FORMATS:
        assert_fits_images(workspace.results / form.name, workspace.raw / form.folder, "imagesTs", ["case_0"])
        checkpoint = workspace.model(form.folder, TRAINER, PLANS) / "fold_0" / "checkpoint_final.pth"
        stem = torch.load(checkpoint, weights_only=False)["network_weights"]["encoder.patch_embed.proj.weight"]
        assert stem.shape[1] == len(form.channels), form.name


def test_four_channels_declared_as_three_are_refused(tmp_path: Path) -> None:
    workspace = Workspace.below(tmp_path)
    form = Format(804, "rgbaSaid3", ".png", tuple("RGB"), colours=4)
    make_dataset(workspace.raw, form)
    said = workspace.run("nnunet-gdla", "doctor", "-d", form.number, expect=1)
    finding = [line for line in said.splitlines() if "FAIL" in line]
    assert any("case_0_0000.png" in line and "4" in line and "3" in line for line in finding), said
