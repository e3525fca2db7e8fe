"""What is learned: the loss of a slide, for classification and for survival, and which epoch is the best one."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.bundle_info import BundleInfo
from nnunet_gdla.mil.survival import survival_nll, time_bins
from nnunet_gdla.words import counted

__all__ = [
    "DEFAULT_SELECTION",
    "SlideLoss",
    "best_epoch",
    "class_weights",
    "last_progress",
    "sampling_weights",
    "training_logits",
]

DEFAULT_SELECTION: Final = {"classification": "macro_f1", "survival": "c_index"}


@dataclass(frozen=True)
class SlideLoss:
    """The loss of single slides: cross entropy, or the likelihood of a discrete survival time.

    Attributes:
        info: What is learned.
        targets: Class, or time bin, per slide.
        events: 1 where the event was seen (survival).
        weights: Per class; 1 on average over the training slides.
    """

    info: BundleInfo
    targets: tuple[int, ...]
    events: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()

    @classmethod
    def of(cls, table: pd.DataFrame, info: BundleInfo, weights: Sequence[float] = ()) -> "SlideLoss":
        """Take the targets from a cohort table.

        Raises:
            UserError: If a label is none of the classes.
        """
        if info.task == "survival":
            bins = time_bins(table["time"].to_numpy(np.float64), list(info.bin_edges))
            return cls(info, tuple(bins.tolist()), tuple(table["event"].astype(int).tolist()))
        return cls(info, tuple(class_numbers(table, info.classes)), weights=tuple(weights))

    def __call__(self, logits: Sequence[Float[Tensor, "1 outputs"]], index: int) -> Float[Tensor, ""]:
        """Return the mean over the outputs that a model trains with, in float32."""
        return torch.stack([self._one(each.float(), index) for each in logits]).mean()

    def _one(self, logits: Float[Tensor, "1 outputs"], index: int) -> Float[Tensor, ""]:
        target = torch.tensor([self.targets[index]], device=logits.device)
        if self.info.task == "survival":
            event = torch.tensor([self.events[index]], device=logits.device)
            return survival_nll(logits, event=event, time_bin=target)
        # A weighted mean over one slide would cancel the weight, so the factor stands outside.
        weight = self.weights[self.targets[index]] if self.weights else 1.0
        return weight * F.cross_entropy(logits, target)


def training_logits(model: nn.Module, inputs: Mapping[str, Any]) -> Sequence[Float[Tensor, "1 outputs"]]:
    """Return all outputs that are trained: DSMIL has two, so that its instance scorer learns too (also in survival)."""
    several: Callable[..., Sequence[Tensor]] | None = getattr(model, "training_logits", None)
    return [model(**inputs)] if several is None else list(several(**inputs))


def class_numbers(table: pd.DataFrame, classes: Sequence[str]) -> list[int]:
    """Return the number of each row's class.

    Raises:
        UserError: If a label is none of the classes.
    """
    numbers = pd.Index(classes).get_indexer(table["label"])
    if (numbers < 0).any():
        unknown = sorted(set(table["label"][numbers < 0].astype(str)))
        raise UserError(f"label {', '.join(unknown)} is none of the classes {', '.join(classes)}; use label_map")
    return [int(number) for number in numbers]


def class_weights(
    wanted: str | Sequence[float] | None, table: pd.DataFrame, classes: Sequence[str]
) -> tuple[float, ...]:
    """Return one weight per class, scaled so that the mean over the slides of `table` is 1; empty for none.

    Raises:
        UserError: If there is not one per class, one is negative or not finite, or all are 0.
    """
    if wanted is None or not classes:
        return ()
    counts = np.bincount(class_numbers(table, classes), minlength=len(classes))
    if isinstance(wanted, str):
        return tuple(len(table) / np.maximum(counts, 1) / np.count_nonzero(counts))
    given = f"train.class_weights {list(wanted)}"
    if len(wanted) != len(classes):
        raise UserError(f"{given}: give {counted(len(classes), 'number')}, for {', '.join(classes)}")
    if not all(math.isfinite(weight) and weight >= 0 for weight in wanted):
        raise UserError(
            f"{given}: a weight cannot be negative, infinite or NaN; give {counted(len(classes), 'number')} from 0 up"
        )
    if max(wanted) == 0:
        raise UserError(f"{given}: all are 0, so nothing would be learned")
    weights = np.asarray(wanted, dtype=np.float64)
    return tuple(weights * len(table) / (weights * counts).sum())


def sampling_weights(table: pd.DataFrame, task: str) -> list[float]:
    """Return the chance of each slide with which classes (or events and censored times) come equally often."""
    groups = table["label" if task == "classification" else "event"]
    return (1 / groups.map(groups.value_counts())).tolist()


def best_epoch(history: Sequence[Mapping[str, float | int]], metric: str) -> int:
    """Return the position of the best epoch so far: the highest metric, of equal ones the smallest validation loss.

    Where the metric is undefined in any epoch, or where it is "loss", the loss alone decides throughout. Of epochs that
    are equal in both it is the earliest.
    """
    costs = _costs(history, metric)
    keys = [(cost, row["val_loss"]) for cost, row in zip(costs, history, strict=True)]
    return keys.index(min(keys))


def last_progress(history: Sequence[Mapping[str, float | int]], metric: str) -> int:
    """Return the position of the first epoch whose metric (or loss, as in `best_epoch`) none has surpassed."""
    costs = _costs(history, metric)
    return costs.index(min(costs))


def _costs(history: Sequence[Mapping[str, float | int]], metric: str) -> list[float]:
    """What the choice wants to be small: the loss, or minus the metric where it is defined throughout."""
    if metric == "loss" or any(math.isnan(row[f"val_{metric}"]) for row in history):
        return [row["val_loss"] for row in history]
    return [-row[f"val_{metric}"] for row in history]
