"""Plan, train, resume, validate and predict: the recipe's dataset and calls, inside this process.

Two image sizes that nothing divides, a blank and a dot in the case names. tests/integration has the commands.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor
from nnunetv2.run.run_training import run_training

from nnunet_gdla._register import shim_folder
from nnunet_gdla.networks import PVTGDLA
from nnunet_gdla.plans.nnunet_planner_gdla import nnUNetPlannerGDLA
from nnunet_gdla.trainers.nnunet_gdla_schedule import learning_rate
from tests.bugs.small_training import read
from tests.trainers.nnunet_project import CPU, Project, prepare

TRAINER = """
import os, torch
from nnunet_gdla.trainers import nnUNetTrainerGDLA
class SmokeTrainer(nnUNetTrainerGDLA):
    encoder = "pvt_v2_b0"
    def __init__(self, plans, configuration, fold, dataset_json, device=torch.device("cuda")):
        super().__init__(plans, configuration, fold, dataset_json, device)
        self.num_epochs = int(os.environ["SMOKE_EPOCHS"]); self.num_iterations_per_epoch = 2
        self.num_val_iterations_per_epoch = 1; self.save_every = 1
    def plot_network_architecture(self):
        self.logger.plot_progress_png = lambda folder: None
"""
PLANS = "smokePlans"
Train = Callable[..., Path]


class SmokePlanner(nnUNetPlannerGDLA):
    encoder = "pvt_v2_b0"


@pytest.fixture
def train(project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Train:
    """nnU-Net's training command, with a trainer from the user's own folder and plans of our planner."""
    (tmp_path / "ext").mkdir()
    (tmp_path / "ext" / "smoke_trainer.py").write_text(TRAINER)
    monkeypatch.setenv("nnUNet_extTrainer", os.pathsep.join([shim_folder(), str(tmp_path / "ext")]))
    if not (project.preprocessed / f"{PLANS}.json").exists():
        prepare(project.dataset_id, PLANS, experiment_planner_class=SmokePlanner, overwrite_plans_name=PLANS)

    def run(*, epochs: int, **options: Any) -> Path:  # noqa: ANN401
        monkeypatch.setenv("SMOKE_EPOCHS", str(epochs))
        run_training(str(project.dataset_id), "2d", "0", "SmokeTrainer", PLANS, device=CPU, **options)
        return tmp_path / "results" / project.dataset / f"SmokeTrainer__{PLANS}__2d" / "fold_0"

    return run


def history(fold: Path) -> dict[str, list[Any]]:
    checkpoint: dict[str, Any] = torch.load(fold / "checkpoint_final.pth", weights_only=False)
    assert checkpoint["trainer_name"] == "SmokeTrainer"
    logged: dict[str, list[Any]] = checkpoint["logging"]
    return logged


def assert_validated(fold: Path, project: Project) -> None:
    summary = json.loads((fold / "validation" / "summary.json").read_text())
    assert len(summary["metric_per_case"]) == 2
    assert {file.name for file in (fold / "validation").glob("*.png")} == {"a b.4.png", "a b.5.png"}


def test_the_life_cycle(train: Train, project: Project, tmp_path: Path) -> None:
    fold = train(epochs=1)
    assert history(fold)["lrs"] == [learning_rate(0, 2, 5e-4)]
    assert_validated(fold, project)

    train(epochs=2, continue_training=True)
    after = history(fold)
    assert len(after["train_losses"]) == len(after["mean_fg_dice"]) == 2
    assert after["lrs"][1] == learning_rate(2, 4, 5e-4)  # exactly that of an uninterrupted training of two epochs
    first, resumed = (
        log.read_text() for log in sorted(fold.glob("training_log*"), key=lambda log: log.stat().st_mtime)
    )
    assert "Epoch 0" in first
    assert "Epoch 0" not in resumed
    assert "Epoch 1" in resumed
    assert np.isfinite(after["train_losses"]).all()

    before = (fold / "checkpoint_final.pth").read_bytes()
    for file in (fold / "validation").iterdir():
        file.unlink()
    train(epochs=2, only_run_validation=True, export_validation_probabilities=True)
    assert_validated(fold, project)
    assert len(list((fold / "validation").glob("*.npz"))) == 2
    assert (fold / "checkpoint_final.pth").read_bytes() == before

    masks = predict(fold, project, tmp_path / "masks")
    assert {case: mask.shape for case, mask in masks.items()} == {
        f"a b.{i}": ((97, 131), (140, 75))[i % 2] for i in range(6)
    }
    assert {int(label) for mask in masks.values() for label in np.unique(mask)} <= {0, 1, 2}
    for case in ("a b.4", "a b.5"):  # the validation predicted these with the same weights
        assert np.array_equal(masks[case], read(fold / "validation" / f"{case}.png"))


def predict(fold: Path, project: Project, output: Path) -> dict[str, Any]:
    """nnU-Net's predictor, from the model folder alone."""
    output.mkdir()
    predictor = nnUNetPredictor(device=CPU, allow_tqdm=False, perform_everything_on_device=False)
    predictor.initialize_from_trained_model_folder(str(fold.parent), (0,), "checkpoint_final.pth")
    assert isinstance(predictor.network, PVTGDLA)
    assert predictor.network.encoder_name == "pvt_v2_b0"
    predictor.predict_from_files_sequential(str(project.raw / "imagesTr"), str(output))
    return {file.stem: read(file) for file in sorted(output.glob("*.png"))}
