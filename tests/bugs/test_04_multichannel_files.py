"""2D data as users store it: colour files, pairs, thirteen bands, 16 bits, NIfTI and MetaImage; all but one train.

No channel is dropped without a word, and an ImageNet stem is fitted to any number of channels.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from nnunetv2.experiment_planning.verify_dataset_integrity import verify_dataset_integrity

from nnunet_gdla.networks.weights import WEIGHTS_VARIABLE
from nnunet_gdla.plans.nnunet_planner_gdla import nnUNetPlannerGDLA
from nnunet_gdla.trainers import resolve
from tests.bugs.small_training import predict_all, train
from tests.trainers.encoder_files import published_tensors
from tests.trainers.nnunet_project import Project, make_trainer, prepare, threads_for_pools, write_dataset

Image = npt.NDArray[Any]
SIZE = (64, 80)


def noise(label: Image, dtype: type, high: float, rng: np.random.Generator) -> Image:
    drawn = rng.normal(0.4 * high, 0.1 * high, label.shape) + 0.2 * high * label
    return np.clip(drawn, 0, high).astype(dtype)


def one_file_each(count: int, dtype: type, high: float) -> Callable[[Image, np.random.Generator], list[Image]]:
    return lambda label, rng: [noise(label, dtype, high, rng) for _ in range(count)]


def colour_file(count: int) -> Callable[[Image, np.random.Generator], list[Image]]:
    return lambda label, rng: [np.stack([noise(label, np.uint8, 255, rng) for _ in range(count)], -1)]


class Kind(NamedTuple):
    ending: str
    images: Callable[[Image, np.random.Generator], list[Image]]
    channels: Sequence[str]


KINDS = {
    "grey": Kind(".png", one_file_each(1, np.uint8, 255), ["grey"]),
    "rgb": Kind(".png", colour_file(3), "RGB"),
    "rgba as 4": Kind(".png", colour_file(4), "RGBA"),
    "pair": Kind(".png", one_file_each(2, np.uint8, 255), ["h", "v"]),
    "thirteen bands": Kind(".tif", one_file_each(13, np.float32, 1), [f"b{i}" for i in range(13)]),
    "sixteen bits": Kind(".png", one_file_each(1, np.uint16, 60000), ["us"]),
    "nifti": Kind(".nii.gz", one_file_each(1, np.int16, 2000), ["CT"]),
    "metaimage": Kind(".mha", one_file_each(1, np.int16, 2000), ["MR"]),
}
QUICK = ("rgb", "pair", "thirteen bands", "metaimage")  # each takes seconds; the others are slow tests
RGBA_AS_3 = Kind(".png", colour_file(4), "RGB")


class B0Planner(nnUNetPlannerGDLA):
    encoder = "pvt_v2_b0"


def write(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    made = Project(tmp_path, "Dataset801_Channels", 801)
    made.set_folders(monkeypatch, tmp_path / "results")
    rng = np.random.default_rng(0)
    labels = {}
    for i in range(6):
        labels[f"case_{i:02d}"] = label = np.zeros(SIZE, np.uint8)
        top, left = rng.integers(5, 40, 2)
        label[top : top + 20, left : left + 20] = 1
    write_dataset(
        made.raw,
        {case: kind.images(label, rng) for case, label in labels.items()},
        labels,
        file_ending=kind.ending,
        channel_names=kind.channels,
        label_names={"background": 0, "obj": 1},
    )
    return made


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in KINDS])
def test_it_trains_and_predicts(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = KINDS[name]
    made = write(kind, tmp_path, monkeypatch)
    monkeypatch.setenv("nnUNet_n_proc_DA", "1")
    with threads_for_pools():
        verify_dataset_integrity(str(made.raw), num_processes=1)
    prepare(801, "plansB0", experiment_planner_class=B0Planner, overwrite_plans_name="plansB0")
    tensors = published_tensors()
    torch.save(tensors, tmp_path / "encoder.pth")
    monkeypatch.setenv(WEIGHTS_VARIABLE, str(tmp_path / "encoder.pth"))

    monkeypatch.setenv("nnUNet_n_proc_DA", "0")
    trainer = make_trainer(resolve("nnUNetTrainerGDLA_1epoch"), made, made.plans("plansB0"))
    trainer.num_iterations_per_epoch, trainer.num_val_iterations_per_epoch = 2, 1
    train(trainer)

    channels = len(kind.channels)
    assert trainer.num_input_channels == trainer.network.input_channels == channels
    assert trainer.network.encoder.patch_embed.proj.weight.shape[1] == channels
    log = Path(trainer.log_file).read_text()
    assert "loaded all" in log
    assert (f"from 3 to {channels} input channels" in log) == (channels != 3)
    assert np.isfinite(trainer.logger.get_value("train_losses", step=None)).all()
    masks = predict_all(trainer, made)
    assert len(masks) == 6
    assert all(mask.shape == SIZE and set(np.unique(mask)) <= {0, 1} for mask in masks.values())


def test_four_channels_in_a_file_of_three_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = write(RGBA_AS_3, tmp_path, monkeypatch)
    with threads_for_pools(), pytest.raises(RuntimeError, match="Some images have errors"):
        verify_dataset_integrity(str(made.raw), num_processes=1)
