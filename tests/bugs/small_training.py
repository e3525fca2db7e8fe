"""Train a trainer and predict with its network, without the parts of nnU-Net that take seconds."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import SimpleITK as sitk
import torch
from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor

from tests.trainers.nnunet_project import Project, threads_for_pools

__all__ = ["predict_all", "train"]


def train(trainer: Any) -> None:  # noqa: ANN401
    """nnU-Net's own training loop on the preprocessed data, without its plots."""
    trainer.logger.plot_progress_png = lambda _folder: None
    trainer.plot_network_architecture = lambda: None
    trainer._save_debug_information = lambda: None
    trainer.run_training()


def predict_all(
    trainer: Any,  # noqa: ANN401
    made: Project,
    *,
    mirror: bool = True,
) -> dict[str, npt.NDArray[Any]]:
    """Predict the training images from their files; returns the masks that nnU-Net wrote, by case.

    Args:
        trainer: Has been trained.
        made: Where its dataset lies.
        mirror: Average over mirrored images as nnU-Net does, which takes four times as long.
    """
    predictor = nnUNetPredictor(
        device=torch.device("cpu"), allow_tqdm=False, perform_everything_on_device=False, use_mirroring=mirror
    )
    trainer.set_deep_supervision_enabled(False)
    predictor.manual_initialization(
        trainer.network,
        trainer.plans_manager,
        trainer.configuration_manager,
        None,
        trainer.dataset_json,
        type(trainer).__name__,
        trainer.inference_allowed_mirroring_axes,
    )
    predictor.list_of_parameters = [trainer.network.state_dict()]
    masks = made.root / "masks"
    masks.mkdir(exist_ok=True)
    with threads_for_pools():
        predictor.predict_from_files_sequential(str(made.raw / "imagesTr"), str(masks))
    ending = trainer.dataset_json["file_ending"]
    return {file.name.removesuffix(ending): read(file) for file in sorted(masks.glob(f"*{ending}"))}


def read(file: Path) -> npt.NDArray[Any]:
    return np.asarray(sitk.GetArrayFromImage(sitk.ReadImage(file)))
