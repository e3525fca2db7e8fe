"""The LightningModule: one slide a step, gradients gathered over a window of slides, predictions gathered per epoch."""

from typing import Any

import numpy as np
import pandas as pd
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn

from nnunet_gdla.errors import TrainingStopped
from nnunet_gdla.layers.kernel_check import compare_kernels
from nnunet_gdla.mil.bundle_info import BundleInfo, answer, base_columns, table_metrics
from nnunet_gdla.mil.config_schema import TrainConfig
from nnunet_gdla.mil.data import Bag, model_inputs, process_rank
from nnunet_gdla.mil.gates import GateRecorder
from nnunet_gdla.mil.optimiser import parameter_groups, sum_gradients
from nnunet_gdla.mil.predictions import to_patients
from nnunet_gdla.mil.schedule import warmup_cosine, warmup_steps
from nnunet_gdla.mil.tasks import SlideLoss, training_logits

__all__ = ["SlideModule", "epoch_metrics", "gathered", "prediction_table"]


class SlideModule(LightningModule):
    """Trains a slide model.

    A step's randomness (stochastic depth, dropout) comes from (seed, epoch, position) alone, the learning rate from the
    number of optimiser steps: a run that is resumed at the end of an epoch goes on as if nothing had happened.

    Args:
        model: Any model of `nnunet_gdla.mil.models`.
        info: What its outputs mean.
        train: Settings.
        losses: Of the training and the validation slides.
        val_table: Validation slides in the order of their numbers.
        steps_per_epoch: Optimiser steps of an epoch.
    """

    def __init__(
        self,
        model: nn.Module,
        info: BundleInfo,
        train: TrainConfig,
        losses: tuple[SlideLoss, SlideLoss],
        val_table: pd.DataFrame,
        steps_per_epoch: int,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self.info, self.settings = info, train
        self.train_loss, self.val_loss = losses
        self.val_table = val_table
        self.total_steps = steps_per_epoch * train.epochs
        self.seen: list[tuple[int, float]] = []
        self.answers: list[tuple[int, float, list[float]]] = []
        self.recorder = GateRecorder(model)
        self.epoch_numbers: dict[str, float] = {}
        self.gate_rows: list[dict[str, float | int]] = []

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        groups = parameter_groups(
            self.model,
            self.settings.weight_decay,
            decay_norms_and_biases=self.settings.decay_norms_and_biases,
            gate_lr_scale=self.settings.gate_lr_scale,
        )
        return torch.optim.AdamW(groups, lr=self.settings.lr, betas=(0.9, 0.999), eps=1e-8)

    def transfer_batch_to_device(self, batch: Bag, device: torch.device, dataloader_idx: int) -> Bag:
        """Leave it to the step, which moves what the model takes."""
        return batch

    def on_train_start(self) -> None:
        """Compare kernels that are named with the plain forms before the first step, in every process."""
        features = torch.zeros(1, 9, self.info.in_dim, device=self.device)
        coords = torch.cartesian_prod(torch.arange(3.0), torch.arange(3.0))[None].to(self.device)
        with self.trainer.precision_plugin.forward_context():
            compare_kernels(self.model, features, coords, 1.0)

    def on_train_epoch_start(self) -> None:
        """Forget the epoch before, and what a step that was interrupted left behind."""
        self.seen.clear()
        self._optimizer().zero_grad()

    def training_step(self, bag: Bag, batch_idx: int) -> None:
        """Add the gradient of one slide; step at the end of a window."""
        position, number, share, last = bag.visit
        if bag.slide is not None:
            torch.manual_seed(_mixed(self.settings.seed, self.current_epoch, position))
            logits = training_logits(self.model, model_inputs(self.model, bag.slide, self.device, bag.neighbours))
            loss = self.train_loss(logits, number)
            self._refuse_non_finite(loss, f"the loss of slide {bag.slide.slide_id}")
            self.manual_backward(loss * share)
            self.seen.append((position, loss.item()))
            self.log("loss", loss, prog_bar=True, batch_size=1)
        if last:
            self._step()

    def on_validation_epoch_start(self) -> None:
        """Start to collect."""
        self.answers.clear()
        self.recorder.clear()

    def validation_step(self, bag: Bag, batch_idx: int) -> None:
        """Keep the logits of one slide."""
        assert bag.slide is not None
        inputs = model_inputs(self.model, bag.slide, self.device, bag.neighbours)
        with self.recorder:  # slide by slide, so that no hook is left whatever happens between
            logits = self.model(**inputs).float()
        self._refuse_non_finite(logits, f"the answer for the validation slide {bag.slide.slide_id}")
        loss = self.val_loss([logits], bag.visit.number)
        self.answers.append((bag.visit.number, loss.item(), logits[0].tolist()))

    def on_validation_epoch_end(self) -> None:
        """Compute the numbers of the epoch from the slides of all processes, each once."""
        records = gathered(self.recorder.records)
        self.gate_rows = self.recorder.rows(self.current_epoch, records)
        answers = sorted(gathered(self.answers))
        predictions = prediction_table(self.val_table, torch.tensor([each[2] for each in answers]), self.info)
        self.epoch_numbers = {"val_loss": sum(each[1] for each in answers) / len(answers)}
        self.epoch_numbers |= {f"val_{name}": value for name, value in epoch_metrics(predictions, self.info).items()}
        self.log_dict(self.epoch_numbers, batch_size=1)

    def _step(self) -> None:
        optimizer, settings = self._optimizer(), self.settings
        step = self.global_step
        factor = warmup_cosine(step, self.total_steps, warmup_steps(self.total_steps, settings.warmup_fraction))
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * factor * group.get("lr_scale", 1.0)
        sum_gradients(self.model.parameters())
        if settings.clip_norm is not None:
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip_norm)
            self._refuse_non_finite(norm, f"the gradient of optimiser step {step + 1}")
        optimizer.step()
        optimizer.zero_grad()

    def _optimizer(self) -> LightningOptimizer:
        optimizer = self.optimizers()
        assert isinstance(optimizer, LightningOptimizer)
        return optimizer

    def _refuse_non_finite(self, numbers: Tensor, what: str) -> None:
        if not bool(numbers.detach().isfinite().all()):
            raise TrainingStopped(
                f"{what} is no longer finite (epoch {self.current_epoch + 1}): look for NaN or huge values in its "
                "features (nnunet-gdla-mil check), or lower train.lr"
            )


def prediction_table(table: pd.DataFrame, logits: Tensor, info: BundleInfo) -> pd.DataFrame:
    """Return one row per row of `table` with what is known and what the logits (rows, outputs) say."""
    answers = [answer(each[None].double(), info) for each in logits]
    return pd.concat([base_columns(table, info), pd.DataFrame(answers)], axis=1)


def epoch_metrics(predictions: pd.DataFrame, info: BundleInfo) -> dict[str, float]:
    """Return the numbers by which epochs are compared: of slides in classification, of patients in survival."""
    if info.task == "survival":
        predictions = to_patients(predictions, "survival")
    return table_metrics(predictions, info)


def gathered(items: list[Any]) -> list[Any]:
    """Return the items of all processes."""
    if process_rank()[1] == 1:
        return list(items)
    parts: list[list[Any]] = [[] for _ in range(process_rank()[1])]
    torch.distributed.all_gather_object(parts, list(items))
    return [item for part in parts for item in part]


def _mixed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])
