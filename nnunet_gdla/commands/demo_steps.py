"""What `nnunet-gdla demo` asks of nnU-Net: plan, preprocess, train, predict and score, all within this process.

nnU-Net reads its folders from variables when it uses them and its number of processes when it is imported, so every
function here imports it when called, inside `nnunet_settings`.
"""

import json
import multiprocessing
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from nnunet_gdla._register import register
from nnunet_gdla.commands.phantom import CLASSES, DATASET_ID, DATASET_NAME

if TYPE_CHECKING:
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

__all__ = [
    "CONFIGURATION",
    "FOLD",
    "ITERATIONS",
    "PLANS",
    "TRAINER",
    "Settings",
    "folder_variables",
    "nnunet_settings",
    "plan_and_preprocess",
    "predict",
    "score",
    "train",
]

TRAINER = "nnUNetTrainerGDLA_B0"
PLANS = "nnUNetGDLADemoPlans"
CONFIGURATION = "2d"
FOLD = 0

_ENCODER = "pvt_v2_b0"
PATCH = 96
BATCH = 4
ITERATIONS = 40
VALIDATION_ITERATIONS = 8
# Sums split over another number of threads end in other last bits; and one thread needs no free core beside it.
THREADS = 1

Report = Callable[[int, float, list[float]], None]
"""Called after every epoch with its number from 1, the training loss and the pseudo Dice of each class."""


@dataclass(frozen=True)
class Settings:
    """How long to train, on what, and from which random start."""

    epochs: int
    seed: int
    device: str


def folder_variables(folder: Path) -> dict[str, str]:
    """Return nnU-Net's three folder variables for a demo in `folder`."""
    return {name: str(folder / name) for name in ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results")}


@contextmanager
def nnunet_settings(folder: Path) -> Iterator[None]:
    """Point nnU-Net to the demo's folders and keep it to this process; undone at the end.

    Its pools become threads, because a few tiny images are done before one worker process has imported torch, and
    because Ctrl-C then stops everything there is.
    """
    variables = folder_variables(folder) | {
        "nnUNet_def_n_proc": str(THREADS),
        "nnUNet_n_proc_DA": "0",
        "nnUNet_compile": "f",
        "nnUNet_wandb_enabled": "0",
        "NNUNET_GDLA_ENCODER_WEIGHTS": "none",
    }
    with (
        mock.patch.dict(os.environ, variables),
        mock.patch.object(multiprocessing, "get_context", return_value=SimpleNamespace(Pool=ThreadPool)),
    ):
        register()
        yield


def plan_and_preprocess() -> None:
    """Take the fingerprint, plan with `nnUNetPlannerGDLA`, write the edited copy `PLANS` and preprocess for it."""
    from nnunetv2.experiment_planning import plan_and_preprocess_api as api
    from nnunetv2.paths import nnUNet_preprocessed

    from nnunet_gdla.plans import nnUNetPlannerGDLA

    api.extract_fingerprint_dataset(DATASET_ID, num_processes=1, show_progress_bar=False)
    plans, _ = api.plan_experiment_dataset(DATASET_ID, nnUNetPlannerGDLA)
    _edit(plans)
    (Path(nnUNet_preprocessed) / DATASET_NAME / f"{PLANS}.json").write_text(json.dumps(plans, indent=2) + "\n")
    api.preprocess_dataset(DATASET_ID, PLANS, (CONFIGURATION,), num_processes=(1,), show_progress_bar=False)


def _edit(plans: dict[str, Any]) -> None:
    """Turn plans for a GPU into plans for a few minutes on a CPU: smallest encoder, small patch and batch."""
    configuration = plans["configurations"][CONFIGURATION]
    configuration["patch_size"] = [PATCH, PATCH]
    configuration["batch_size"] = BATCH
    configuration["architecture"]["arch_kwargs"]["encoder"] = _ENCODER
    plans["plans_name"] = PLANS
    plans["configurations"] = {CONFIGURATION: configuration}


def train(settings: Settings, report: Report) -> Path:
    """Train one network from scratch; the same settings on the same machine give the same bits on a CPU.

    Args:
        settings: How long, on what, and from which random start.
        report: Called after every epoch.

    Returns:
        Folder of the model, as `nnUNetPredictor` wants it.
    """
    import numpy as np
    import torch
    from nnunetv2.run.run_training import get_trainer_from_args

    random.seed(settings.seed)
    np.random.seed(settings.seed)  # noqa: NPY002 - nnU-Net and its augmenters draw from the global generator
    torch.manual_seed(settings.seed)
    torch.set_num_threads(THREADS)
    trainer = get_trainer_from_args(
        str(DATASET_ID), CONFIGURATION, FOLD, TRAINER, PLANS, device=torch.device(settings.device)
    )
    trainer.num_epochs = settings.epochs
    trainer.num_iterations_per_epoch = ITERATIONS
    trainer.num_val_iterations_per_epoch = VALIDATION_ITERATIONS
    _make_augmentation_repeatable(trainer)
    _report_epochs(trainer, report)
    trainer.run_training()
    return Path(trainer.output_folder_base)


def _make_augmentation_repeatable(trainer: "nnUNetTrainer") -> None:
    """Keep nnU-Net's blur from choosing between two algorithms, different in the last bits, by a stopwatch."""
    from batchgeneratorsv2.transforms.noise.gaussian_blur import GaussianBlurTransform
    from batchgeneratorsv2.transforms.utils.random import RandomTransform

    make_transforms = trainer.get_training_transforms

    def get_training_transforms(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - nnU-Net's own hook, passed through
        pipeline = make_transforms(*args, **kwargs)
        for step in pipeline.transforms:
            inner = step.transform if isinstance(step, RandomTransform) else step
            if isinstance(inner, GaussianBlurTransform):
                inner.benchmark = False
        return pipeline

    trainer.get_training_transforms = get_training_transforms


def _report_epochs(trainer: "nnUNetTrainer", report: Report) -> None:
    """Call `report` after every epoch; draw nnU-Net's progress.png, which takes seconds, only after the last one."""
    finish_epoch, draw_progress = trainer.on_epoch_end, trainer.logger.plot_progress_png

    def on_epoch_end() -> None:
        finish_epoch()
        dice = [float(value) for value in trainer.logger.get_value("dice_per_class_or_region", step=-1)]
        report(trainer.current_epoch, float(trainer.logger.get_value("train_losses", step=-1)), dice)

    def plot_progress_png(output_folder: str) -> None:
        if trainer.current_epoch == trainer.num_epochs - 1:
            draw_progress(output_folder)

    trainer.on_epoch_end = on_epoch_end
    trainer.logger.plot_progress_png = plot_progress_png


def predict(model: Path, images: Path, masks: Path, device: str) -> None:
    """Predict every image of a folder with nnU-Net's own predictor and its defaults.

    Args:
        model: Folder that `train` returned.
        images: Folder of `NAME_0000.png` files.
        masks: Folder for `NAME.png`; made if it is not there.
        device: Name of a torch device.
    """
    import torch
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor

    masks.mkdir(parents=True, exist_ok=True)
    names = sorted(path.name.removesuffix("_0000.png") for path in images.glob("*_0000.png"))
    predictor = nnUNetPredictor(device=torch.device(device), allow_tqdm=False)
    predictor.initialize_from_trained_model_folder(str(model), use_folds=(FOLD,))
    predictor.predict_from_files_sequential(
        [[str(images / f"{name}_0000.png")] for name in names], [str(masks / name) for name in names]
    )


def score(labels: Path, masks: Path) -> dict[str, list[float]]:
    """Compute the Dice with nnU-Net's own `compute_metrics_on_folder`.

    Args:
        labels: Folder of the true masks.
        masks: Folder of the predicted ones.

    Returns:
        For each case, in the order of names, the Dice of each class in the order of `CLASSES`; never NaN, because every
        class is in every case.
    """
    from nnunetv2.evaluation.evaluate_predictions import compute_metrics_on_folder
    from nnunetv2.imageio.natural_image_reader_writer import NaturalImage2DIO

    values = list(range(1, len(CLASSES) + 1))
    summary = str(masks / "summary.json")
    metrics = compute_metrics_on_folder(
        str(labels), str(masks), summary, NaturalImage2DIO(), ".png", values, num_processes=1, chill=False
    )
    return {
        Path(case["prediction_file"]).stem: [float(case["metrics"][value]["Dice"]) for value in values]
        for case in metrics["metric_per_case"]
    }
