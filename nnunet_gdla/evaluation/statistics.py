"""Means with intervals over cases, and paired comparisons of two models.

Shape legend (this file): N cases.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats

__all__ = ["Comparison", "Summary", "compare_paired", "holm", "interval_of_mean", "summarise"]

_NAN = float("nan")
_LEVEL = 95
_CHUNK = 2_000_000
# Dice values differ by 1e-16 where they should be equal: without rounding, noise would break ties between ranks
_DECIMALS = 12


class Summary(NamedTuple):
    """One metric over cases; `low` and `high` are the ends of the mean's 95 % interval."""

    mean: float
    median: float
    sd: float
    n: int
    undefined: int
    low: float
    high: float


class Comparison(NamedTuple):
    """One metric of A minus that of B over the cases in which both are defined."""

    mean_a: float
    mean_b: float
    difference: float
    low: float
    high: float
    p: float
    n: int
    undefined: int


def summarise(values: Float[np.ndarray, " N"], *, draws: int, seed: int) -> Summary:
    """Summarise one metric over cases.

    Args:
        values: One a case, NaN where undefined.
        draws: Resamples of the bootstrap.
        seed: Same seed, same interval.

    Returns:
        NaN where there is too little: the standard deviation (n - 1) and the interval need two defined cases.
    """
    defined = values[~np.isnan(values)]
    undefined = len(values) - len(defined)
    if not len(defined):
        return Summary(_NAN, _NAN, _NAN, 0, undefined, _NAN, _NAN)
    sd = float(defined.std(ddof=1)) if len(defined) > 1 else _NAN
    low, high = interval_of_mean(defined, draws=draws, seed=seed)
    return Summary(float(defined.mean()), float(np.median(defined)), sd, len(defined), undefined, low, high)


def interval_of_mean(values: Float[np.ndarray, " N"], *, draws: int, seed: int) -> tuple[float, float]:
    """Return the 95 % percentile interval of the mean, from drawing cases with replacement.

    Args:
        values: One a case, all defined.
        draws: How many resamples.
        seed: Same seed, same interval.

    Returns:
        NaN for fewer than two cases, which say nothing about their spread.
    """
    count = len(values)
    if count < 2:
        return _NAN, _NAN
    rng = np.random.default_rng(seed)
    means = []
    at_once = max(1, _CHUNK // count)
    for begin in range(0, draws, at_once):
        chosen = rng.integers(0, count, (min(at_once, draws - begin), count))
        means.append(values[chosen].mean(axis=1))
    low, high = np.percentile(np.concatenate(means), [(100 - _LEVEL) / 2, (100 + _LEVEL) / 2])
    return float(low), float(high)


def compare_paired(a: Float[np.ndarray, " N"], b: Float[np.ndarray, " N"], *, draws: int, seed: int) -> Comparison:
    """Compare two models on the same cases.

    Args:
        a: The metric of the first model, NaN where undefined.
        b: That of the second, in the same order of cases.
        draws: Resamples of the bootstrap of pairs.
        seed: Same seed, same interval.

    Returns:
        p is that of the two-sided Wilcoxon signed-rank test; NaN where all differences are zero, or there are none.
    """
    both = ~(np.isnan(a) | np.isnan(b))
    differences = np.round(a[both] - b[both], _DECIMALS)
    count, undefined = len(differences), int((~both).sum())
    if not count:
        return Comparison(_NAN, _NAN, _NAN, _NAN, _NAN, _NAN, 0, undefined)
    low, high = interval_of_mean(differences, draws=draws, seed=seed)
    p = float(stats.wilcoxon(differences).pvalue) if differences.any() else _NAN
    mean_a, mean_b = float(a[both].mean()), float(b[both].mean())
    return Comparison(mean_a, mean_b, float(differences.mean()), low, high, p, count, undefined)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p values for their number by Holm's step-down method; NaN stays NaN and does not count as a test."""
    p = np.asarray(p_values, dtype=np.float64)
    adjusted = np.full(len(p), _NAN)
    order = [index for index in np.argsort(p) if not np.isnan(p[index])]
    running = 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(order) - rank) * p[index]))
        adjusted[index] = running
    return [float(value) for value in adjusted]
