"""Two image sizes, names with a space and a dot: plan, train, continue, validate, predict, with the full encoder."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.integration.datasets import read_json
from tests.integration.made_datasets import save, write_description
from tests.integration.masks import assert_fits_images
from tests.integration.stages import plan, predict, train
from tests.integration.workspace import Workspace

pytestmark = pytest.mark.slow
DATASET, TRAINER, PLANS = "Dataset850_Mini", "nnUNetTrainerGDLATwoSteps", "nnUNetGDLAPlans"
SIZES = ((97, 131), (140, 75))
NAMES = [f"a b.{index}" for index in range(6)]


def make(folder: Path) -> None:
    generator = np.random.default_rng(1)
    for sub in ("imagesTr", "labelsTr", "imagesTs"):
        (folder / sub).mkdir(parents=True)
    for index, name in enumerate(NAMES):
        height, width = SIZES[index % 2]
        rows, columns = np.mgrid[:height, :width]
        mask = ((rows - height / 2) ** 2 + (columns - width / 2) ** 2 < 18**2).astype(np.uint8)
        mask[:12, :12] = 2
        image = generator.normal(90, 15, mask.shape) + 60 * (mask == 1) - 40 * (mask == 2)
        for sub in ("imagesTr", "imagesTs"):
            save(folder / sub / f"{name}_0000.png", np.clip(image, 0, 255).astype(np.uint8))
        save(folder / "labelsTr" / f"{name}.png", mask)
    write_description(folder, ("ultrasound",), {"background": 0, "disc": 1, "corner": 2}, ".png")


def test_whole_life(tmp_path: Path) -> None:
    workspace = Workspace.below(tmp_path)
    raw = workspace.raw / DATASET
    make(raw)
    plan(workspace, DATASET, "nnUNetPlannerGDLA", "--verify_dataset_integrity")
    planned = read_json(workspace.preprocessed / DATASET / f"{PLANS}.json")["configurations"]["2d"]
    assert planned["architecture"]["arch_kwargs"]["encoder"] == "pvt_v2_b2"

    alone = {"SHORT_SKIP_VALIDATION": "1"}  # what validates is the third command
    assert "Epoch 0" in train(workspace, DATASET, TRAINER, PLANS, variables={"SHORT_EPOCHS": "1"} | alone)
    said = train(workspace, DATASET, TRAINER, PLANS, "--c", variables={"SHORT_EPOCHS": "2"} | alone)
    assert "Epoch 1" in said
    assert "Epoch 0" not in said
    fold = workspace.model(DATASET, TRAINER, PLANS) / "fold_0"
    logged = torch.load(fold / "checkpoint_final.pth", weights_only=False)["logging"]
    # step 2 of 4, one of which is the warm-up
    cosine = 1e-6 + (5e-4 - 1e-6) * (1 + math.cos(math.pi * (2 - 1) / (4 - 1))) / 2
    assert logged["lrs"][1] == pytest.approx(cosine, rel=1e-12)
    assert f"{cosine:.6e}" in said

    assert not (fold / "validation" / "summary.json").exists()
    train(workspace, DATASET, TRAINER, PLANS, "--val", variables={"SHORT_EPOCHS": "2"})
    assert (fold / "validation" / "summary.json").exists()
    predict(workspace, DATASET, TRAINER, PLANS, tmp_path / "masks")
    assert_fits_images(tmp_path / "masks", raw, "imagesTs", NAMES)
