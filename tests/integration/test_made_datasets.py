"""Channels and file formats: one, two, four and thirteen channels; pictures, NIfTI and MetaImage in 2D."""

from pathlib import Path

import pytest
import torch

from tests.integration.datasets import edit_plans
from tests.integration.made_datasets import FORMATS, Format, make_dataset
from tests.integration.masks import assert_fits_images
from tests.integration.stages import PLAN, PREDICT_OPTIONS, run_together
from tests.integration.workspace import Workspace

pytestmark = pytest.mark.slow
TRAINER, PLANS = "nnUNetTrainerGDLATwoStepsOnly", "twoStepPlans"
TRAIN = ("nnunetv2.run.run_training", "run_training_entry")
PREDICT = ("nnunetv2.inference.predict_from_raw_data", "predict_entry_point")


def plan_call(form: Format) -> tuple[str, ...]:
    return (*PLAN, "-d", str(form.number), "-c", "2d", "-pl", "nnUNetPlannerGDLA", "-np", "1", "-npfp", "1")


def train_and_predict_calls(workspace: Workspace, form: Format) -> list[tuple[str, ...]]:
    which = ("-tr", TRAINER, "-p", PLANS)
    images, masks = str(workspace.raw / form.folder / "imagesTs"), str(workspace.results / form.name)
    return [
        (*TRAIN, str(form.number), "2d", "0", *which, "-device", "cpu"),
        (*PREDICT, "-d", str(form.number), "-c", "2d", "-f", "0", *which, "-i", images, "-o", masks, *PREDICT_OPTIONS),
    ]


def test_formats_train_and_predict(tmp_path: Path) -> None:
    workspace = Workspace.below(tmp_path)
    for form in FORMATS:
        make_dataset(workspace.raw, form)
    run_together(workspace, [(*plan_call(form), "--verify_dataset_integrity") for form in FORMATS])
    for form in FORMATS:
        folder = workspace.preprocessed / form.folder
        (folder / "splits_final.json").write_bytes((workspace.raw / form.folder / "splits_final.json").read_bytes())
        edit_plans(folder, "nnUNetGDLAPlans", PLANS, largest_patch=(64, 64), encoder="pvt_v2_b0")
    run_together(workspace, [call for form in FORMATS for call in train_and_predict_calls(workspace, form)])
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
