"""The paper's training inside nnU-Net: what `_Paper` in a trainer's name stands for."""

import os
import warnings
from typing import Any, ClassVar

import numpy as np
import torch
from batchgenerators.dataloading.multi_threaded_augmenter import MultiThreadedAugmenter
from batchgenerators.dataloading.single_threaded_augmenter import SingleThreadedAugmenter
from batchgeneratorsv2.transforms.utils.compose import ComposeTransforms
from nnunetv2.training.dataloading.nnunet_dataset import infer_dataset_class
from nnunetv2.utilities.default_n_proc_DA import get_allowed_n_proc_DA
from torch import distributed, nn

from nnunet_gdla.errors import TrainingStopped, UserError
from nnunet_gdla.paper_settings import PAPER_SEED, SEED_VARIABLE, PaperSettings, read_paper_settings
from nnunet_gdla.trainers.nnunet_gdla_paper_augmentation import PhotographAugmentation, SliceAugmentation
from nnunet_gdla.trainers.nnunet_gdla_paper_data import PassLoader, Share, Slices, WholeCases, case_dice
from nnunet_gdla.trainers.nnunet_gdla_schedule import WARMUP_FRACTION, WarmupCosine, paper_learning_rate
from nnunet_gdla.trainers.nnunet_gdla_supervision import FullResolutionSum
from nnunet_gdla.trainers.nnunet_trainer_gdla import nnUNetTrainerGDLA
from nnunet_gdla.words import counted

__all__ = ["PaperTraining"]

_CUDA = torch.device("cuda")
_PIXELS_AT_ONCE = 32 * 224 * 224  # in validation, as in the released evaluation


class PaperTraining(nnUNetTrainerGDLA):
    """Trains as the paper's released code does, but for the selection of the epoch, which never sees test cases.

    Lengths, augmentation and seed stand in the plans that `nnunet-gdla recipe` writes. With other plans: nnU-Net's
    1000 epochs of 250 steps, 5 % of them warm-up, and the augmentation of photographs where images are 2D, of slices
    otherwise. `_Nepochs` shortens the training and leaves the warm-up as long as it is.

    The network computes in float32, in prediction too. The loss is the sum of four boundary DoU at full resolution.
    AdamW does not decay 1-D parameters and biases; it decays lambda, as the released code does (`nnUNetTrainerGDLA`
    does not). An epoch is so many steps through whole slices, each drawn once a pass; after it, every validation case
    is predicted whole, and `checkpoint_best.pth` holds the epoch with the highest mean of the cases' Dice, to which
    classes without truth do not count. Nothing is mirrored in prediction. Seed: `NNUNET_GDLA_SEED`, else the plans'.
    """

    float32: ClassVar[bool] = True

    def __init__(
        self,
        plans: dict[str, Any],
        configuration: str,
        fold: int | str,
        dataset_json: dict[str, Any],
        device: torch.device = _CUDA,
    ) -> None:
        settings = read_paper_settings(plans)  # before folders are made
        self.seed = _seed(settings)
        super().__init__(plans, configuration, fold, dataset_json, device)
        self.settings = settings
        self.num_epochs = settings.epochs if settings else 1000
        self.num_iterations_per_epoch = settings.steps_per_epoch if settings else 250
        self.grad_scaler = None

    @property
    def warmup_steps(self) -> int:
        """Steps of the warm-up, counted over the whole training."""
        if self.settings is not None:
            return self.settings.warmup_epochs * self.num_iterations_per_epoch
        return max(1, round(WARMUP_FRACTION * self.num_epochs * self.num_iterations_per_epoch))

    def configure_optimizers(self) -> tuple[torch.optim.Optimizer, WarmupCosine]:
        """AdamW with the paper's rates."""
        optimizer, schedule = super().configure_optimizers()
        schedule.rate = lambda step, total, peak: paper_learning_rate(step, total, self.warmup_steps, peak)
        return optimizer, schedule

    def _is_decayed(self, name: str, parameter: nn.Parameter) -> bool:
        return parameter.ndim > 1 and not name.endswith(".bias")

    def initialize(self) -> None:
        """Draw the weights from the seed."""
        torch.manual_seed(self.seed)
        super().initialize()

    def _get_deep_supervision_scales(self) -> None:
        """One target for all outputs."""

    def _build_loss(self) -> nn.Module:
        self.enable_deep_supervision, wanted = False, self.enable_deep_supervision
        loss = super()._build_loss()
        self.enable_deep_supervision = wanted
        return FullResolutionSum(loss)

    def on_train_start(self) -> None:
        """Say what the training follows."""
        if self.device.type == "cuda":
            torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
        super().on_train_start()
        source = f"recipe {self.settings.recipe!r} of the plans" if self.settings else "no recipe in the plans"
        steps = self.num_epochs * self.num_iterations_per_epoch
        self.print_to_log_file(
            f"the paper's training ({source}): {self.num_epochs} epochs of {self.num_iterations_per_epoch} steps, "
            f"warm-up {self.warmup_steps} of {steps} steps, seed {self.seed}, float32, "
            f"{type(self._augmentation()).__name__}, epoch chosen on "
            f"{counted(len(self.dataloader_val), 'validation case')}"
        )
        if self.warmup_steps >= steps:
            self.print_to_log_file("NOTE: this training ends within its warm-up; it can show that everything runs")
        training, validation = self.do_split()
        if set(training) & set(validation):
            self.print_to_log_file(
                "NOTE: the fold has no validation cases of its own, so the epoch is chosen on training cases"
            )

    def _augmentation(self) -> SliceAugmentation | PhotographAugmentation:
        if self.settings is not None:
            photographs = self.settings.augmentation == "photographs"
        else:
            photographs = self.plans_manager.plans["original_median_shape_after_transp"][0] == 1
        return PhotographAugmentation() if photographs else SliceAugmentation()

    def get_dataloaders(self) -> tuple[Any, WholeCases]:
        """Whole slices for training, whole cases for validation."""
        self.dataset_class: Any = self.dataset_class or infer_dataset_class(self.preprocessed_dataset_folder)
        labels, patch_size = self.label_manager, self.configuration_manager.patch_size
        targets = self.get_validation_transforms(
            None,
            foreground_labels=labels.foreground_labels,
            regions=labels.foreground_regions if labels.has_regions else None,
            ignore_label=labels.ignore_label,
        )
        training, validation = self.get_tr_and_val_datasets()
        workers = get_allowed_n_proc_DA()
        loader = PassLoader(
            Slices(training),
            self.batch_size,
            patch_size,
            labels,
            ComposeTransforms([self._augmentation(), *targets.transforms]),
            seed=self.seed,
            share=self._share(max(1, workers)),
        )
        whole = WholeCases(validation, patch_size, targets)
        self.num_val_iterations_per_epoch = len(whole)
        if workers == 0:
            return SingleThreadedAugmenter(loader, None), whole
        # In order, unlike nnU-Net's own, so that a pass is a pass.
        pinned = self.device.type == "cuda"
        return MultiThreadedAugmenter(loader, None, workers, pin_memory=pinned, wait_time=0.002), whole

    def _share(self, workers: int) -> Share:
        world = distributed.get_world_size() if self.is_ddp else 1
        batch = self.configuration_manager.batch_size
        # nnU-Net gives one image more to the first GPUs where the batch cannot be divided.
        first = self.local_rank * (batch // world) + min(self.local_rank, batch % world)
        return Share(batch, first, self.current_epoch * self.num_iterations_per_epoch, workers)

    def on_train_epoch_start(self) -> None:
        """Let stochastic depth depend on the seed and the epoch only, so that a resumed training continues exactly."""
        super().on_train_epoch_start()
        numbers = (self.seed, self.current_epoch, self.local_rank)
        torch.manual_seed(int(np.random.SeedSequence(numbers).generate_state(1)[0]))

    def validation_step(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Count a whole case, many slices at a time. On several GPUs each counts all cases."""
        height, width = batch["data"].shape[-2:]
        at_once = max(1, _PIXELS_AT_ONCE // (height * width))
        found = []
        for data, target in zip(batch["data"].split(at_once), batch["target"].split(at_once), strict=True):
            part = {"data": data, "target": [target], "keys": batch["keys"]}
            found.append((len(data), super().validation_step(part)))
        counts = {key: sum(part[key] for _, part in found) for key in ("tp_hard", "fp_hard", "fn_hard")}
        weights, losses = [size for size, _ in found], [part["loss"] for _, part in found]
        return {"loss": np.average(losses, weights=weights), **counts}

    def on_validation_epoch_end(self, val_outputs: list[dict[str, Any]]) -> None:
        """Log the mean of the cases' Dice, by which the best epoch is chosen.

        Raises:
            TrainingStopped: If no validation case has any foreground: nothing could be chosen by.
        """
        dice = case_dice(val_outputs)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Mean of empty slice", RuntimeWarning)  # NaN is what is wanted there
            of_cases, of_classes = np.nanmean(dice, axis=1), np.nanmean(dice, axis=0)
        scored = of_cases[~np.isnan(of_cases)]
        if not len(scored):
            raise TrainingStopped(
                f"no validation case of fold {self.fold} has any foreground ({len(of_cases)} in all), so no epoch can "
                "be chosen by its Dice; put cases with foreground into 'val' in splits_final.json"
            )
        mean = float(scored.mean())
        # Not through nnU-Net's front logger, which makes the second from the first by smoothing over epochs; nnU-Net
        # saves checkpoint_best.pth when the second rises.
        for logger in (self.logger.local_logger, *self.logger.loggers):
            for key in ("mean_fg_dice", "ema_fg_dice"):
                logger.log(key, mean, self.current_epoch)
        self.logger.log("dice_per_class_or_region", list(of_classes), self.current_epoch)
        self.logger.log("val_losses", np.mean([case["loss"] for case in val_outputs]), self.current_epoch)
        self.print_to_log_file(
            f"validation Dice {mean:.4f}, the mean over {counted(len(scored), 'whole case')}, "
            f"{len(of_cases) - len(scored)} without foreground left out; the best epoch is where it is highest (no "
            "pseudo Dice, no moving average)"
        )


def _seed(settings: PaperSettings | None) -> int:
    value = os.environ.get(SEED_VARIABLE, "").strip()
    if not value:
        return settings.seed if settings else PAPER_SEED
    if not (value.isascii() and value.isdigit()):
        raise UserError(f"{SEED_VARIABLE}={value} must be a whole number of at least 0")
    return int(value)
