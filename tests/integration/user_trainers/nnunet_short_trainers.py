"""Trainers as a user writes them, in a folder of the user's own that `nnUNet_extTrainer` names."""

import os
import time
from pathlib import Path
from typing import Any

import torch
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

from nnunet_gdla.trainers import nnUNetTrainerGDLA, nnUNetTrainerGDLA_B0, nnUNetTrainerPVTSelfAttn_B0

CUDA = torch.device("cuda")


class Short:
    """Two epochs of eight iterations; each step's learning rate goes into `rates.txt` of the fold's folder.

    SHORT_EPOCHS is another number of epochs. SHORT_SKIP_VALIDATION leaves out that of whole images at the end.
    SHORT_STOP_AT names a file that is made at the start of the second epoch, which then waits for ever: by that time
    everything of the first epoch has been written.
    """

    iterations = 8

    def __init__(
        self,
        plans: dict[str, Any],
        configuration: str,
        fold: int,
        dataset_json: dict[str, Any],
        device: torch.device = CUDA,
    ) -> None:
        super().__init__(plans, configuration, fold, dataset_json, device)
        self.num_epochs = int(os.environ.get("SHORT_EPOCHS", "2"))
        self.num_iterations_per_epoch = self.iterations
        self.num_val_iterations_per_epoch = 1
        self.save_every = 1

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1 and "SHORT_STOP_AT" in os.environ:
            Path(os.environ["SHORT_STOP_AT"]).touch()
            while True:
                time.sleep(60)
        super().on_train_epoch_start()

    def perform_actual_validation(self, save_probabilities: bool = False) -> None:
        if "SHORT_SKIP_VALIDATION" not in os.environ:
            super().perform_actual_validation(save_probabilities)

    def train_step(self, batch: dict[str, Any]) -> dict[str, Any]:
        result = super().train_step(batch)
        with Path(self.output_folder, "rates.txt").open("a") as rates:
            rates.write(f"{self.optimizer.param_groups[0]['lr']!r}\n")
        return result


class nnUNetTrainerGDLAShort(Short, nnUNetTrainerGDLA_B0):
    pass


class nnUNetTrainerPVTSelfAttnShort(Short, nnUNetTrainerPVTSelfAttn_B0):
    pass


class nnUNetTrainerStockShort(Short, nnUNetTrainer):
    pass


class nnUNetTrainerGDLATwoSteps(Short, nnUNetTrainerGDLA):
    iterations = 2


class nnUNetTrainerGDLATwoStepsOnly(Short, nnUNetTrainerGDLA_B0):
    """Two steps and no validation of whole images."""

    iterations = 2

    def perform_actual_validation(self, save_probabilities: bool = False) -> None:
        return
