"""Survival formulas pair by pair and patient by patient."""

import itertools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "brier_score_naive",
    "censoring_naive",
    "concordance_index_naive",
    "kaplan_meier_naive",
    "log_rank_naive",
    "survival_nll_naive",
    "time_dependent_auc_naive",
]

Array = np.ndarray[Any, Any]


def survival_nll_naive(logits: Tensor, *, event: Tensor, time_bin: Tensor) -> Tensor:
    """Walk through the bins of every slide."""
    losses = []
    for row, seen, last in zip(logits, event.tolist(), time_bin.tolist(), strict=True):
        h = torch.sigmoid(row).clamp(1e-7, 1 - 1e-7)
        loss = -sum((torch.log(1 - h[b]) for b in range(last)), torch.zeros((), dtype=row.dtype))
        losses.append(loss - (torch.log(h[last]) if seen else torch.log(1 - h[last])))
    return torch.stack(losses).mean()


def concordance_index_naive(time: Array, event: Array, risk: Array, *, ties: str = "harrell") -> float:
    """Look at all ordered pairs."""
    score = pairs = 0.0
    for i, j in itertools.permutations(range(len(time)), 2):
        tied_with_censored = ties == "harrell" and time[i] == time[j] and not event[j]
        if event[i] and (time[i] < time[j] or tied_with_censored):
            pairs += 1
            score += 1.0 if risk[i] > risk[j] else 0.5 if risk[i] == risk[j] else 0.0
    return score / pairs if pairs else math.nan


def kaplan_meier_naive(time: Array, event: Array, at: float) -> float:
    """Multiply what survives each event time up to `at`."""
    survival = 1.0
    for t in sorted({t for t, seen in zip(time, event, strict=True) if seen and t <= at}):
        survival *= 1 - sum((time == t) & (event == 1)) / sum(time >= t)
    return survival


def censoring_naive(time: Array, event: Array, at: float, *, before: bool = False) -> float:
    """Share not censored up to `at`, or before it; an event at the time of a censoring leaves first."""
    remaining = 1.0
    for t in sorted({t for t, seen in zip(time, event, strict=True) if not seen}):
        if t < at or (t == at and not before):
            at_risk = sum((time > t) | ((time == t) & (event == 0)))
            remaining *= 1 - sum((time == t) & (event == 0)) / at_risk
    return remaining


def brier_score_naive(time: Array, event: Array, survival: Array, at: float, train: tuple[Array, Array]) -> float:
    """Weighted squared error of survival at one time."""
    total = 0.0
    for t, seen, s in zip(time, event, survival, strict=True):
        if t <= at and seen:
            total += s**2 / censoring_naive(*train, t, before=True)
        elif t > at:
            total += (1 - s) ** 2 / censoring_naive(*train, at)
    return total / len(time)


def time_dependent_auc_naive(time: Array, event: Array, risk: Array, at: float, train: tuple[Array, Array]) -> float:
    """Look at all pairs of an event by `at` and somebody still there."""
    score = total = 0.0
    for i, j in itertools.permutations(range(len(time)), 2):
        if event[i] and time[i] <= at < time[j]:
            weight = 1 / censoring_naive(*train, time[i], before=True)
            total += weight
            score += weight * (1.0 if risk[i] > risk[j] else 0.5 if risk[i] == risk[j] else 0.0)
    return score / total if total else math.nan


def log_rank_naive(time: Array, event: Array, group: Array) -> float:
    """Sum observed minus expected events of group 0 over event times."""
    difference = variance = 0.0
    for t in sorted({t for t, seen in zip(time, event, strict=True) if seen}):
        n, n0 = sum(time >= t), sum((time >= t) & (group == 0))
        d, d0 = sum((time == t) & (event == 1)), sum((time == t) & (event == 1) & (group == 0))
        difference += d0 - d * n0 / n
        if n > 1:
            variance += d * (n0 / n) * (1 - n0 / n) * (n - d) / (n - 1)
    return math.erfc(math.sqrt(difference**2 / variance / 2))
