"""The stock trainer on plans that name our network, and one of the paper's comparators."""

from pathlib import Path

import pytest
import torch

from tests.integration.datasets import cases_of
from tests.integration.masks import assert_fits_images, assert_same_predictions
from tests.integration.stages import SHORT_GDLA_PLANS, SHORT_PLANS, predict, train
from tests.integration.workspace import Workspace

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("trainer", "plans", "decoder"),
    [
        ("nnUNetTrainerStockShort", SHORT_GDLA_PLANS, "gdla"),
        ("nnUNetTrainerPVTSelfAttnShort", SHORT_PLANS, "self"),
    ],
)
def test_train_and_predict(
    trainer: str, plans: str, decoder: str, classes: tuple[Workspace, str], tmp_path: Path
) -> None:
    workspace, dataset = classes
    train(workspace, dataset, trainer, plans, "--npz")
    predict(workspace, dataset, trainer, plans, tmp_path / "masks")
    raw = workspace.raw / dataset
    cases = cases_of(raw, "val")
    fold = workspace.model(dataset, trainer, plans) / "fold_0"
    assert_fits_images(tmp_path / "masks", raw, "imagesTs", cases)
    assert_same_predictions(tmp_path / "masks", fold / "validation", cases)
    weights = torch.load(fold / "checkpoint_final.pth", weights_only=False)["network_weights"]
    assert any(name.startswith("encoder.patch_embed.") for name in weights)
    assert any("lambda" in name for name in weights) == (decoder == "gdla")


def test_a_comparator_refuses_plans_of_another_decoder(classes: tuple[Workspace, str], tmp_path: Path) -> None:
    workspace, dataset = classes
    trainer = "nnUNetTrainerPVTSelfAttn_B0"
    # What users have in their folder of trainers does not get in the way of ours.
    (tmp_path / "setup.py").write_text("raise SystemExit('setup')\n")
    (tmp_path / "unfinished.py").write_text("class nnUNetTrainerPVTSelfAttn_B0(:\n")
    said = workspace.run(
        "nnUNetv2_train",
        *(dataset, "2d", "0", "-tr", trainer, "-p", SHORT_GDLA_PLANS, "-device", "cpu"),
        expect=1,
        variables={"nnUNet_extTrainer": str(tmp_path)},
    )
    assert "'self'" in said
    assert "'gdla'" in said
    assert "Traceback" not in said
