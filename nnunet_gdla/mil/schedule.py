"""Learning rate over the steps of a run."""

import math

__all__ = ["warmup_cosine", "warmup_steps"]


def warmup_steps(total: int, fraction: float = 0.05) -> int:
    """Return how many of `total` optimiser steps warm up: the fraction rounded down, at least one."""
    return max(1, int(fraction * total))


def warmup_cosine(step: int, total: int, warmup: int) -> float:
    r"""Factor on the peak learning rate: a linear rise, then half a cosine down to zero.

    $$\frac{t+1}{w}\ (t<w),\qquad \tfrac12\Bigl(1+\cos\frac{\pi(t-w)}{T-w}\Bigr)\ (w\le t<T),\qquad 0\ (t\ge T).$$

    Args:
        step: Optimiser step t, from 0.
        total: Steps of the whole run, T.
        warmup: Steps of the rise, w; 0 starts at the peak.

    Returns:
        A number from 0 to 1.

    Raises:
        ValueError: If a count is negative.
    """
    if min(step, total, warmup) < 0:
        raise ValueError(f"step {step}, total {total} and warmup {warmup} must not be negative")
    if step >= total:
        return 0.0
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))
