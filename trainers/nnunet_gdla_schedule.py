"""The learning rate of every step: linear warm-up, then cosine."""

import math
from collections.abc import Callable

from torch.optim import Optimizer

__all__ = ["WARMUP_FRACTION", "WarmupCosine", "learning_rate", "paper_learning_rate"]

WARMUP_FRACTION = 0.05


def learning_rate(step: int, total_steps: int, peak: float, floor: float = 1e-6) -> float:
    r"""The rate of one optimiser step, a pure function, so that a resumed training continues exactly.

    $$\eta_s = \eta_0 + (\eta - \eta_0)\,s / W \;(s < W),\qquad
      \eta_s = \eta_0 + \tfrac12 (\eta - \eta_0)\left(1 + \cos\pi\tfrac{s - W}{T - W}\right)\;(s \ge W),$$

    with $W = \max(1, \mathrm{round}(0.05\,T))$.

    Args:
        step: s, counted from 0 over the whole training.
        total_steps: T.
        peak: The rate at the end of the warm-up.
        floor: The rate at the first step and at the end.
    """
    warmup = max(1, round(WARMUP_FRACTION * total_steps))
    if step < warmup:
        return floor + (peak - floor) * step / warmup
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    return floor + 0.5 * (peak - floor) * (1 + math.cos(math.pi * progress))


def paper_learning_rate(step: int, total_steps: int, warmup_steps: int, peak: float, floor: float = 1e-6) -> float:
    r"""The rate of one step in the paper's training: its cosine began with the warm-up, which covers it.

    $$\eta_s = \eta_0 + (\eta - \eta_0)\,s / W \;(s < W),\qquad
      \eta_s = \eta_0 + \tfrac12 (\eta - \eta_0)\left(1 + \cos\pi\tfrac{s}{T}\right)\;(s \ge W).$$

    So the rate falls at the end of the warm-up, from just below the peak to where the cosine is by then. This is timm's
    `CosineLRScheduler` without `warmup_prefix`.

    Args:
        step: s, counted from 0 over the whole training.
        total_steps: T.
        warmup_steps: W.
        peak: The rate that the warm-up aims at.
        floor: The rate at the first step and at the end.
    """
    if step < warmup_steps:
        return floor + (peak - floor) * step / warmup_steps
    return floor + 0.5 * (peak - floor) * (1 + math.cos(math.pi * min(1.0, step / total_steps)))


class WarmupCosine:
    """nnU-Net's scheduler interface (`step(epoch)`) around a rate that is a function of the step.

    Args:
        optimizer: All its groups get the same rate.
        counts: Returns epochs, iterations an epoch and the peak rate; asked at every step, because subclasses of a
            trainer set these numbers after its constructor.
        rate: The rate of a step, given its number, the number of all steps and the peak.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        counts: Callable[[], tuple[int, int, float]],
        rate: Callable[[int, int, float], float] = learning_rate,
    ) -> None:
        self.optimizer = optimizer
        self.counts = counts
        self.rate = rate

    def step(self, epoch: int, iteration: int = 0) -> None:
        """Set the rate of one iteration of an epoch, both counted from 0."""
        epochs, iterations, peak = self.counts()
        rate = self.rate(epoch * iterations + iteration, epochs * iterations, peak)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
