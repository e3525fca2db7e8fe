"""Survival curves and how well predicted ones fit; undefined is NaN.

Shape legend (this file): n patients, K time bins, T times. event 1 = seen, 0 = censored; higher risk = earlier event.
"""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from jaxtyping import Float, Int, Shaped

from nnunet_gdla.mil._vectors import Array, Vector, as_events, as_vector, check_lengths
from nnunet_gdla.mil.survival import Ties, concordance_index

__all__ = [
    "CensoringCurve",
    "KaplanMeier",
    "brier_scores",
    "kaplan_meier",
    "log_rank",
    "predicted_survival",
    "survival_metrics",
    "time_dependent_auc",
]

NAN: Final = float("nan")
GRID_POINTS: Final = 100


class KaplanMeier(NamedTuple):
    """Steps of an estimated survival curve: from `time[i]` on it is `survival[i]`, within `low[i]` and `high[i]`."""

    time: Float[Array, " T"]
    survival: Float[Array, " T"]
    low: Float[Array, " T"]
    high: Float[Array, " T"]
    at_risk: Int[Array, " T"]
    events: Int[Array, " T"]


def kaplan_meier(time: Vector, event: Vector) -> KaplanMeier:
    r"""Estimate the share of patients without an event, $\prod_{t_i\le t}(1 - d_i/n_i)$.

    Args:
        time: Event or censoring time per patient.
        event: 1 = seen, 0 = censored; a patient censored at the time of an event was still at risk.

    Returns:
        One step per distinct time, after a step of 1 at time 0. The 95 % interval is Greenwood's on the log(-log)
        scale; NaN where the curve is 0 or 1.
    """
    times, seen = as_vector(time, "time"), as_events(event)
    check_lengths(time=times, event=seen)
    distinct, where = np.unique(times, return_inverse=True)
    leaving = np.bincount(where, minlength=len(distinct))
    died = np.bincount(where, seen, len(distinct)).astype(np.int64)
    at_risk = leaving[::-1].cumsum()[::-1]
    survival = np.cumprod(1 - died / at_risk)
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = np.cumsum(died / (at_risk * (at_risk - died)))
        # survival ** exp(+-1.96 se): the bounds stay between 0 and 1
        spread = 1.959963984540054 * np.sqrt(variance) / np.abs(np.log(survival))
        low, high = survival ** np.exp(spread), survival ** np.exp(-spread)
    defined = (survival > 0) & (survival < 1)
    low, high = np.where(defined, low, NAN), np.where(defined, high, NAN)
    return KaplanMeier(
        np.append(0.0, distinct),
        np.append(1.0, survival),
        np.append(NAN, low),
        np.append(NAN, high),
        np.append(len(times), at_risk),
        np.append(0, died),
    )


def log_rank(time: Vector, event: Vector, group: Vector) -> float:
    """Chance of groups as different as these if both had the same hazards: the log-rank test of two groups.

    Args:
        time: Event or censoring time per patient.
        event: 1 = seen, 0 = censored.
        group: Two different values, such as low and high risk as 0 and 1.

    Returns:
        The two-sided p value (chi-square, one degree of freedom); NaN where a group is empty or no event tells them
        apart.

    Raises:
        ValueError: If there are more than two groups.
    """
    times, seen, groups = as_vector(time, "time"), as_events(event), as_vector(group, "group")
    check_lengths(time=times, event=seen, group=groups)
    kinds = np.unique(groups)
    if len(kinds) > 2:
        raise ValueError(f"the log-rank test is for two groups, got {len(kinds)}")
    if len(kinds) < 2:
        return NAN
    first = groups == kinds[0]
    distinct, where = np.unique(times, return_inverse=True)
    died, died_first = (np.bincount(where, weight, len(distinct)) for weight in (seen, seen & first))
    leaving, leaving_first = (np.bincount(where, weight, len(distinct)) for weight in (np.ones_like(times), first))
    at_risk, at_risk_first = leaving[::-1].cumsum()[::-1], leaving_first[::-1].cumsum()[::-1]
    share = at_risk_first / at_risk
    variance = (died * share * (1 - share) * (at_risk - died) / np.maximum(at_risk - 1, 1)).sum()
    if variance <= 0:
        return NAN
    chi_square = (died_first - died * share).sum() ** 2 / variance
    return math.erfc(math.sqrt(chi_square / 2))


@dataclass(frozen=True)
class CensoringCurve:
    """Share of patients not yet censored, G, estimated on the training patients (Kaplan-Meier with events swapped)."""

    time: Float[Array, " T"]
    survival: Float[Array, " T"]

    @classmethod
    def of(cls, time: Vector, event: Vector) -> "CensoringCurve":
        """Estimate it; at equal times events come before censorings."""
        times, seen = as_vector(time, "time"), as_events(event)
        distinct, where = np.unique(times, return_inverse=True)
        censored = np.bincount(where, ~seen, len(distinct))
        died = np.bincount(where, seen, len(distinct))
        # those with an event at this time are gone before the censorings of this time
        at_risk = (censored + died)[::-1].cumsum()[::-1] - died
        return cls(distinct, np.cumprod(1 - censored / np.maximum(at_risk, 1)))

    def at(self, time: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return G(t)."""
        return np.concatenate([[1.0], self.survival])[np.searchsorted(self.time, time, side="right")]

    def before(self, time: Float[Array, " n"]) -> Float[Array, " n"]:
        """Return G(t-), just before t."""
        return np.concatenate([[1.0], self.survival])[np.searchsorted(self.time, time, side="left")]


def predicted_survival(
    hazards: Float[Array, "n K"], edges: Float[Array, " edges"], times: Float[Array, " T"]
) -> Float[Array, "n T"]:
    r"""Return $S(t)$ of every patient: $\prod_{j<k}(1-h_j)$ at edge k, 1 at time 0, straight lines between.

    Nothing is said about times after the last edge (the last bin has no end): the value there stays that of the edge.
    """
    at_edges = np.cumprod(1 - hazards[:, : len(edges)], axis=1)
    knots, values = np.concatenate([[0.0], edges]), np.concatenate([np.ones((len(hazards), 1)), at_edges], 1)
    # share of every knot in every time; np.interp holds the last value
    share = np.stack([np.interp(times, knots, row) for row in np.eye(len(knots))])
    between: Array = values @ share
    return between


def brier_scores(
    time: Vector, event: Vector, survival: Float[Array, "n T"], times: Float[Array, " T"], censoring: CensoringCurve
) -> Float[Array, " T"]:
    r"""Squared error of predicted survival at each time, weighted by the inverse chance of not being censored.

    $$\frac1n\sum_i \frac{S_i(t)^2\,[t_i\le t, \delta_i]}{G(t_i^-)} + \frac{(1-S_i(t))^2\,[t_i>t]}{G(t)}.$$

    NaN at times where a weight that is needed has no bound (G = 0) or where nobody is left at risk.
    Reference: Graf et al. 1999.
    """
    t_n1, seen_n1 = as_vector(time, "time")[:, None], as_events(event)[:, None]
    died, alive = (t_n1 <= times) & seen_n1, t_n1 > times
    g_died, g_alive = censoring.before(t_n1[:, 0])[:, None], censoring.at(times)[None]
    undefined = (died & (g_died <= 0)).any(0) | (alive & (g_alive <= 0)).any(0) | ~alive.any(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        weight = np.where(died, 1 / g_died, 0)
        error = (survival**2 * weight).sum(0) + ((1 - survival) ** 2 * alive).sum(0) / g_alive[0]
        return np.where(undefined, NAN, error / len(t_n1))


def time_dependent_auc(
    time: Vector, event: Vector, risk: Vector, times: Float[Array, " T"], censoring: CensoringCurve
) -> Float[Array, " T"]:
    r"""Chance that a patient with an event by t has a higher risk than one still without it after t; equal risks 1/2.

    Events are weighted with $1/G(t_i^-)$. NaN at times without both kinds, or where G = 0 for an event.
    Reference: Uno et al. 2007; Hung and Chiang 2010 (cumulative cases, dynamic controls).
    """
    t, seen, risks = as_vector(time, "time"), as_events(event), as_vector(risk, "risk")
    check_lengths(time=t, event=seen, risk=risks)
    g = censoring.before(t)
    values, rank = np.unique(risks, return_inverse=True)
    found = np.full(len(times), NAN)
    for i, horizon in enumerate(times):
        case, control = (t <= horizon) & seen, t > horizon
        if not case.any() or not control.any() or (g[case] <= 0).any():
            continue
        weight = np.bincount(rank[case], 1 / g[case], len(values))
        controls = np.bincount(rank[control], minlength=len(values))
        below = controls.cumsum() - controls
        found[i] = (weight * (below + 0.5 * controls)).sum() / (weight.sum() * controls.sum())
    return found


def survival_metrics(
    time: Vector,
    event: Vector,
    risk: Vector,
    *,
    hazards: Float[Array, "n K"] | None = None,
    edges: Shaped[Array, " edges"] | None = None,
    train_time: Vector | None = None,
    train_event: Vector | None = None,
    ties: Ties = "harrell",
) -> dict[str, float]:
    """All numbers of a survival prediction.

    Args:
        time: Event or censoring time per row.
        event: 1 = seen, 0 = censored.
        risk: Higher = earlier event.
        hazards: Predicted hazards of the time bins.
        edges: Inner edges of the bins, from training.
        train_time: Times of the training patients, from which the chance of censoring is estimated.
        train_event: Their events.
        ties: How `c_index` counts pairs of equal times (`concordance_index`).

    Returns:
        `c_index`; and where hazards, edges and training times are given: `ibs`, the integrated
        Brier score from time 0 to the last edge (or to the last time with somebody at risk, if that is earlier; mean
        over time), and `auc_edge1`, ... the time-dependent AUC at each edge, `auc_edges` their mean. NaN where
        undefined.

    Raises:
        UserError: If a risk is not finite.
        ValueError: If lengths differ.
    """
    metrics = {"c_index": concordance_index(time, event, risk, ties=ties)}
    if hazards is None or edges is None or train_time is None or train_event is None:
        return metrics
    censoring = CensoringCurve.of(train_time, train_event)
    metrics["ibs"] = _integrated_brier(as_vector(time, "time"), event, hazards, edges, censoring)
    at_edges = time_dependent_auc(time, event, risk, edges, censoring)
    metrics |= {f"auc_edge{i}": float(value) for i, value in enumerate(at_edges, 1)}
    metrics["auc_edges"] = float(at_edges.mean()) if len(at_edges) else NAN
    return metrics


def _integrated_brier(time: Array, event: Vector, hazards: Array, edges: Array, censoring: CensoringCurve) -> float:
    if not len(time) or not len(edges) or not as_events(event).any():
        return NAN
    grid = np.linspace(0, edges[-1], GRID_POINTS + 1)
    grid = grid[grid < time.max()]
    if len(grid) < 2:
        return NAN
    score = brier_scores(time, event, predicted_survival(hazards, edges, grid), grid, censoring)
    return float(((score[1:] + score[:-1]) / 2).mean())  # the grid's steps are equal
