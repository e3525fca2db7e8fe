"""Each decoder learns one batch of real images by heart, with the trainer's own loss and optimizer."""

import json
from typing import Any

import numpy as np
import pytest
import SimpleITK as sitk
import torch
from batchgeneratorsv2.transforms.utils.deep_supervision_downsampling import DownsampleSegForDSTransform
from torch import Tensor

from nnunet_gdla.losses import BoundaryDoULoss
from nnunet_gdla.trainers import resolve
from tests.paths import nnunet_raw_folder
from tests.trainers.nnunet_project import Project, make_trainer, small_plans

STEPS, PEAK = 200, 2e-3


@pytest.fixture(scope="module")
def hippocampi() -> tuple[Tensor, Tensor]:
    """The slice with most foreground of four cases, normalised, in the middle of 64 x 64 pixels."""
    folder = nnunet_raw_folder() / "Dataset906_HippocampusTiny"
    ending = json.loads((folder / "dataset.json").read_text())["file_ending"]
    images, labels = torch.zeros(4, 1, 64, 64), torch.zeros(4, 1, 64, 64)
    for index, path in enumerate(sorted((folder / "labelsTr").glob(f"*{ending}"))[:4]):
        label = sitk.GetArrayFromImage(sitk.ReadImage(path)).astype(np.float32)
        case = path.name.removesuffix(ending)
        image = sitk.GetArrayFromImage(sitk.ReadImage(folder / "imagesTr" / f"{case}_0000{ending}")).astype(np.float32)
        chosen = int((label > 0).sum((1, 2)).argmax())
        height, width = label.shape[1:]
        top, left = (64 - height) // 2, (64 - width) // 2
        window = (index, 0, slice(top, top + height), slice(left, left + width))
        images[window] = torch.from_numpy((image[chosen] - image.mean()) / image.std())
        labels[window] = torch.from_numpy(label[chosen])
    assert labels.unique().tolist() == [0, 1, 2]
    return images, labels


@pytest.mark.slow
@pytest.mark.parametrize("stem", ["GDLA", "PVTLinearAttn", "PVTSelfAttn", "PVTDiffAttn"])
def test_one_batch_is_learnt_by_heart(stem: str, hippocampi: tuple[Tensor, Tensor], project: Project) -> None:
    images, labels = hippocampi
    plans = small_plans(project, batch_size=4)
    trainer = make_trainer(resolve(f"nnUNetTrainer{stem}_B0_1epoch"), project, plans)
    trainer.num_iterations_per_epoch, trainer.initial_lr = STEPS, PEAK
    trainer.initialize()
    downsample: Any = DownsampleSegForDSTransform(trainer._get_deep_supervision_scales())
    parts = [downsample(segmentation=label)["segmentation"] for label in labels]
    batch = {
        "data": images,
        "target": [torch.stack(scale) for scale in zip(*parts, strict=True)],
        "keys": ["a", "b", "c", "d"],
    }
    trainer.on_train_epoch_start()
    losses = [float(trainer.train_step(batch)["loss"]) for _ in range(STEPS)]
    trainer.set_deep_supervision_enabled(False)
    with torch.no_grad():
        logits = trainer.network.eval()(images)
    assert float(BoundaryDoULoss()(logits, labels)) < 0.05 < losses[0]
    # What is left are single pixels at the boundaries of structures ten pixels wide.
    found = logits.argmax(1, keepdim=True)
    for label in (1, 2):
        overlap = ((found == label) & (labels == label)).sum()
        assert 2 * overlap / ((found == label).sum() + (labels == label).sum()) > 0.95
