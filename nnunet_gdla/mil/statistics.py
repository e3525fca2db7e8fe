"""Intervals by resampling patients, and comparisons of two methods; on tables as in `predictions`.

A resample need not show every class. What is defined for each class alone (recall, precision, F1, AUC) is then not 0
for a class that nobody was drawn of, it is unknown, and the mean over classes leaves it out in this resample, as
scikit-learn leaves it out of the balanced accuracy. Counting 0 drags the lower end down by how often a rare class is
missed, which has nothing to do with the model. Leaving out the whole resample, or drawing within each class, keeps the
number of patients of a rare class from varying as it does between samples. In simulations (3 and 5 classes, the rarest
4 to 5 % of 40 to 60 patients; how often a 95 % interval of macro recall held the true value) leaving the class out gave
84 to 95 %, the three others fell to 49 to 54 % where the rare class was the weak one. A class that is absent from the
whole table keeps what `classification_metrics` says. With two classes `auc` is undefined in a resample of one class.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from scipy.special import stdtr

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil._vectors import Array, Vector, as_vector
from nnunet_gdla.mil.predictions import DRAWN_FROM, classification_table_metrics, survival_table_metrics, to_patients
from nnunet_gdla.words import counted

__all__ = [
    "Interval",
    "PairedDifference",
    "ResampledT",
    "bootstrap_intervals",
    "classification_table_metrics",
    "corrected_resampled_t",
    "paired_bootstrap",
    "survival_table_metrics",
    "to_patients",
]

MetricFunction = Callable[[pd.DataFrame], dict[str, float]]
NAN: Final = float("nan")
# intervals need most of the resamples: with fewer the rest says more about the empty classes than about the metric
LEAST_DEFINED: Final = 0.5


@dataclass(frozen=True)
class Interval:
    """Low and high end, also by unpacking; `undefined`: the number of resamples in which the metric was undefined."""

    low: float
    high: float
    undefined: int = 0

    def __iter__(self) -> Iterator[float]:
        return iter((self.low, self.high))


class PairedDifference(NamedTuple):
    """Method a minus method b on the same patients."""

    difference: float
    low: float
    high: float
    p: float
    undefined: int


class ResampledT(NamedTuple):
    """Mean difference over splits, its corrected t statistic, degrees of freedom and two-sided p value."""

    mean: float
    t: float
    degrees: int
    p: float


def bootstrap_intervals(
    predictions: pd.DataFrame, metric_fn: MetricFunction, *, n: int = 1000, seed: int = 0
) -> dict[str, Interval]:
    """95 % percentile intervals from drawing patients, with all their rows, with replacement.

    Args:
        predictions: Has `patient_id`; one or more rows a patient.
        metric_fn: From such a table to its metrics, NaN where undefined. It gets tables that know which labels there
            were to be drawn (`.attrs`); a copy of its own making must keep them for `classification_table_metrics`.
        n: How many resamples.
        seed: Same seed, same intervals.

    Returns:
        Per metric the interval. Means over classes leave out a class that the table has and a resample happens not to
        show; the top of this file says why. Resamples in which a metric is undefined are left out and counted in
        `.undefined`; NaN where the metric itself is undefined or more than half of the resamples are.
    """
    point = metric_fn(predictions)
    (patient_of_row,), patients = _patients_of_rows([predictions])
    draws = _draws(patients, n, seed)
    drawn = [metric_fn(_resample(predictions, _take(patient_of_row, counts))) for counts in draws]
    intervals = {}
    for name, value in point.items():
        low, high, undefined = _percentiles(np.array([metrics.get(name, NAN) for metrics in drawn]))
        intervals[name] = Interval(NAN, NAN, undefined) if math.isnan(value) else Interval(low, high, undefined)
    return intervals


def paired_bootstrap(
    a: pd.DataFrame | Sequence[pd.DataFrame],
    b: pd.DataFrame | Sequence[pd.DataFrame],
    metric_fn: MetricFunction | Sequence[MetricFunction],
    *,
    n: int = 1000,
    seed: int = 0,
) -> dict[str, PairedDifference]:
    """Compare two methods on the same patients: every resample draws the same patients for both.

    Args:
        a: Predictions of the first method; or one table per split, then differences are averaged over the splits and a
            patient who is in several of them is drawn for all at once.
        b: Predictions of the second method on the same rows.
        metric_fn: From a table to its metrics; or one per split, where it knows the split's training data.
        n: How many resamples.
        seed: Same seed, same result.

    Returns:
        Per metric the difference a - b, its 95 % percentile interval, and the two-sided p value: twice the share of
        resamples on the other side of zero, counted with one more. NaN where undefined in any split or in more than
        half of the resamples.

    Raises:
        UserError: If the two methods were not tested on the same slides.
    """
    firsts = [a] if isinstance(a, pd.DataFrame) else list(a)
    seconds = [b] if isinstance(b, pd.DataFrame) else list(b)
    functions = [metric_fn] * len(firsts) if callable(metric_fn) else list(metric_fn)
    if not len(firsts) == len(seconds) == len(functions):
        raise ValueError(f"{len(firsts)}, {len(seconds)} and {len(functions)} splits: one table and metric each")
    seconds = [_aligned(second, first) for first, second in zip(firsts, seconds, strict=True)]
    patients_of_rows, patients = _patients_of_rows(firsts)

    def difference(chosen: Sequence[Int[Array, " _"] | slice]) -> dict[str, float]:
        parts = []
        for first, second, function, take in zip(firsts, seconds, functions, chosen, strict=True):
            value_a, value_b = function(_resample(first, take)), function(_resample(second, take))
            parts.append({name: value_a[name] - value_b.get(name, NAN) for name in value_a})
        return {name: sum(part.get(name, NAN) for part in parts) / len(parts) for name in parts[0]}

    point = difference([slice(None)] * len(firsts))
    draws = _draws(patients, n, seed)
    drawn = [difference([_take(split, counts) for split in patients_of_rows]) for counts in draws]
    found = {}
    for name, value in point.items():
        values = np.array([metrics.get(name, NAN) for metrics in drawn])
        low, high, undefined = _percentiles(values)
        if math.isnan(value) or math.isnan(low):
            found[name] = PairedDifference(value, NAN, NAN, NAN, undefined)
        else:
            found[name] = PairedDifference(value, low, high, _two_sided(values[~np.isnan(values)]), undefined)
    return found


def corrected_resampled_t(differences: Vector, train_size: int | float, test_size: int | float) -> ResampledT:
    r"""Test, by t, of differences over overlapping splits, whose variance would otherwise be too small.

    $$t = \bar d \Big/ \sqrt{\Bigl(\frac1J + \frac{n_\mathrm{test}}{n_\mathrm{train}}\Bigr)s^2},
      \qquad J-1\text{ degrees of freedom}.$$

    Args:
        differences: One per split.
        train_size: Training patients of a split (the mean, where they differ).
        test_size: Test patients of a split.

    Returns:
        t and p are NaN with fewer than two splits, an undefined difference, or differences that are all equal.

    Reference: Nadeau and Bengio 2003.
    """
    values = as_vector(differences, "differences")
    count = len(values)
    mean = float(values.mean()) if count else NAN
    # equal differences need not have a variance of exactly zero in floating point
    if count < 2 or not np.isfinite(values).all() or np.ptp(values) == 0:
        return ResampledT(mean, NAN, max(count - 1, 0), NAN)
    t = mean / math.sqrt((1 / count + test_size / train_size) * values.var(ddof=1))
    return ResampledT(mean, t, count - 1, float(2 * stdtr(count - 1, -abs(t))))


def _aligned(b: pd.DataFrame, a: pd.DataFrame) -> pd.DataFrame:
    key = ["slide_id"] if "slide_id" in a and "slide_id" in b else ["patient_id"]
    index_a, index_b = pd.MultiIndex.from_frame(a[key]), pd.MultiIndex.from_frame(b[key])
    if index_a.has_duplicates or index_b.has_duplicates:
        raise UserError(f"{key[0]} is not unique in the predictions: nothing to pair by")
    only = index_a.symmetric_difference(index_b)
    if len(only):
        names = ", ".join(str(name) for (name,) in only[:3])
        raise UserError(
            f"{counted(len(only), key[0].removesuffix('_id'))} predicted by one method only, such as {names}: use the "
            "same split"
        )
    return b.iloc[index_b.get_indexer(index_a)]


def _patients_of_rows(tables: Sequence[pd.DataFrame]) -> tuple[list[Int[Array, " rows"]], int]:
    """Number the patients of all tables in order of their names; per table the number of every row, and how many."""
    patients = pd.Index(pd.unique(pd.concat([table["patient_id"] for table in tables]))).sort_values()
    return [patients.get_indexer(table["patient_id"]) for table in tables], len(patients)


def _draws(patients: int, n: int, seed: int) -> list[Int[Array, " patients"]]:
    """How often each patient is drawn, per resample."""
    rng = np.random.default_rng(seed)
    return [np.bincount(rng.integers(0, patients, patients), minlength=patients) for _ in range(n if patients else 0)]


def _resample(table: pd.DataFrame, rows: Int[Array, " taken"] | slice) -> pd.DataFrame:
    """The rows, which remember the labels that there were to be drawn."""
    drawn = table.iloc[rows]
    if "label" in table:
        drawn.attrs[DRAWN_FROM] = tuple(table["label"].unique())
    return drawn


def _take(patient_of_row: Int[Array, " rows"], counts: Int[Array, " patients"]) -> Int[Array, " taken"]:
    return np.repeat(np.arange(len(patient_of_row)), counts[patient_of_row])


def _percentiles(values: Float[Array, " n"]) -> tuple[float, float, int]:
    defined = values[~np.isnan(values)]
    undefined = len(values) - len(defined)
    if not len(defined) or len(defined) < LEAST_DEFINED * len(values):
        return NAN, NAN, undefined
    low, high = np.percentile(defined, [2.5, 97.5])
    return float(low), float(high), undefined


def _two_sided(values: Float[Array, " n"]) -> float:
    smaller = min(int((values <= 0).sum()), int((values >= 0).sum()))
    return min(1.0, 2 * (smaller + 1) / (len(values) + 1))
