"""Pixels that are not finite in a user's files, from disk to training; constant images train and predict.

nnU-Net refuses NaN in tif and mha files before planning, turns it into 0 in NIfTI, and never looks for Inf.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nnunet_gdla.errors import TrainingStopped
from nnunet_gdla.trainers import resolve
from tests.bugs.small_training import predict_all, train
from tests.trainers.nnunet_project import Project, make_trainer, prepare, small_plans, write_dataset

BAD = "bad case.3"


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Project:
    made = Project(tmp_path, "Dataset803_Float", 803)
    made.set_folders(monkeypatch, tmp_path / "results")
    monkeypatch.setenv("nnUNet_n_proc_DA", "1")
    return made


def write_float_images(made: Project, ending: str, bad: Any) -> None:  # noqa: ANN401
    """Six images of 64 x 64 pixels with a box; one has 3 x 3 bad pixels, or `bad` is an image of its own."""
    rng = np.random.default_rng(3)
    label = np.zeros((64, 64), np.uint8)
    label[20:44, 10:30] = 1
    images = {f"case{i}": rng.normal(0, 1, label.shape).astype(np.float32) + 2 * label for i in range(5)}
    images[BAD] = rng.normal(0, 1, label.shape).astype(np.float32)
    if isinstance(bad, np.ndarray):
        images[BAD] = bad
    else:
        images[BAD][30:33, 40:43] = bad
    write_dataset(
        made.raw,
        {case: [image] for case, image in images.items()},
        dict.fromkeys(images, label),
        file_ending=ending,
        label_names={"background": 0, "box": 1},
    )


def fast_trainer(made: Project, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401
    monkeypatch.setenv("nnUNet_n_proc_DA", "0")
    trainer = make_trainer(resolve("nnUNetTrainerGDLA_B0_1epoch"), made, small_plans(made))
    trainer.fold = "all"
    trainer.num_iterations_per_epoch, trainer.num_val_iterations_per_epoch = 20, 1
    return trainer


@pytest.mark.parametrize("ending", [".tif", ".mha"])
def test_nan_is_refused_before_planning(ending: str, base: Project) -> None:
    write_float_images(base, ending, np.nan)
    with pytest.raises(AssertionError, match="NaN"):
        prepare(base.dataset_id)
    assert not list(base.preprocessed.glob("*Plans.json"))


def test_nan_in_nifti_trains(base: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    write_float_images(base, ".nii.gz", np.nan)
    prepare(base.dataset_id)
    trainer = fast_trainer(base, monkeypatch)
    trainer.num_iterations_per_epoch = 6
    train(trainer)
    assert all(torch.isfinite(value).all() for value in trainer.network.state_dict().values())
    assert all(np.isfinite(mask).all() for mask in predict_all(trainer, base).values())


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # nnU-Net's statistics of Inf
@pytest.mark.parametrize("ending", [".tif", ".mha"])
def test_inf_stops_the_training_and_is_named(ending: str, base: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    write_float_images(base, ending, np.inf)
    prepare(base.dataset_id)
    trainer = fast_trainer(base, monkeypatch)
    with pytest.raises(TrainingStopped) as caught:
        train(trainer)
    assert f"image of case {BAD}, channel 0" in str(caught.value)
    assert not list(Path(trainer.output_folder).glob("checkpoint_*"))
    assert all(torch.isfinite(value).all() for value in trainer.network.parameters())


@pytest.mark.parametrize(("ending", "value"), [(".tif", 77), (".mha", 0), (".nii.gz", 77)])
def test_a_constant_image_trains_and_predicts(
    ending: str, value: float, base: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_float_images(base, ending, np.full((64, 64), value, np.float32))
    prepare(base.dataset_id)
    trainer = fast_trainer(base, monkeypatch)
    trainer.num_iterations_per_epoch = 6
    train(trainer)
    assert all(torch.isfinite(weight).all() for weight in trainer.network.parameters())
    masks = predict_all(trainer, base)
    assert masks[BAD].shape == (64, 64)
    assert {int(label) for mask in masks.values() for label in np.unique(mask)} <= {0, 1}
