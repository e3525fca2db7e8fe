"""A dataset from its pixels to predicted masks: our plans, preprocessing, a step of training, nnU-Net's predictor."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from nnunet_gdla import plans
from nnunet_gdla.trainers import resolve
from tests.bugs.small_training import predict_all, train
from tests.trainers.nnunet_project import Project, make_trainer, prepare, write_dataset

__all__ = ["PLANS", "plan_train_predict", "write_masks"]

PLANS = "nnUNetGDLAPlans_B0"
Image = npt.NDArray[Any]


def write_masks(
    root: Path,
    masks: Mapping[str, Image],
    labels: Mapping[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    **more: Any,  # noqa: ANN401 - entries of dataset.json
) -> Project:
    """Write Dataset860_Planned: these masks with grey images that show them, as png, and nnU-Net pointed there."""
    made = Project(root, "Dataset860_Planned", 860)
    made.set_folders(monkeypatch, root / "results")
    write_dataset(made.raw, {case: [random_image(mask)] for case, mask in masks.items()}, masks, label_names=labels)
    if more:
        path = made.raw / "dataset.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | more))
    return made


def random_image(mask: Image) -> Image:
    rng = np.random.default_rng(mask.size)
    return np.clip(rng.normal(90, 15, mask.shape) + 30 * (mask % 5), 0, 255).astype(np.uint8)


def plan_train_predict(
    made: Project, monkeypatch: pytest.MonkeyPatch, *, mirror: bool = True
) -> tuple[Any, dict[str, Image]]:
    """Plan with nnUNetPlannerGDLA_B0, preprocess, train one step, predict the training images.

    Returns:
        The trainer, and the masks that nnU-Net wrote, by case.
    """
    monkeypatch.setenv("nnUNet_n_proc_DA", "1")
    prepare(made.dataset_id, PLANS, experiment_planner_class=plans.nnUNetPlannerGDLA_B0)
    monkeypatch.setenv("nnUNet_n_proc_DA", "0")
    trainer = make_trainer(resolve("nnUNetTrainerGDLA_1epoch"), made, made.plans(PLANS))
    trainer.num_iterations_per_epoch = trainer.num_val_iterations_per_epoch = 1
    train(trainer)
    losses: Sequence[float] = trainer.logger.get_value("train_losses", step=None)
    assert len(losses) == 1
    assert np.isfinite(losses).all()
    return trainer, predict_all(trainer, made, mirror=mirror)
