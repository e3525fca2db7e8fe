"""Discrete-time survival: bins, loss, risk and the concordance index.

Convention throughout: event 1 = seen, 0 = censored; a higher risk means an earlier event.
Shape legend (this file): B slides, K time bins, n patients.
"""

import logging
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil._vectors import Array, Vector, as_events, as_vector, check_lengths
from nnunet_gdla.ops._checks import without_autocast
from nnunet_gdla.words import counted

__all__ = ["Ties", "concordance_index", "hazards", "risk_score", "survival_nll", "time_bin_edges", "time_bins"]

Ties = Literal["harrell", "strict"]
HAZARD_FLOOR = 1e-7

log = logging.getLogger(__name__)


def hazards(logits: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
    r"""Return the chance of an event in bin k if none came before, $\mathrm{clip}(\sigma(x_k), 10^{-7}, 1 - 10^{-7})$.

    Numerics: float32 also under autocast (float64 for float64 input).
    """
    with without_autocast(logits):
        full = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return torch.sigmoid(full).clamp(HAZARD_FLOOR, 1 - HAZARD_FLOOR)


def survival_nll(
    logits: Float[Tensor, "B K"], *, event: Shaped[Tensor, " B"], time_bin: Int[Tensor, " B"]
) -> Float[Tensor, ""]:
    r"""Mean negative log likelihood of discrete event times.

    $$-\sum_{b<y}\log(1-h_b) - \log h_y\ \text{(event in bin y)},\qquad
      -\sum_{b\le y}\log(1-h_b)\ \text{(censored in bin y)}.$$

    Args:
        logits: One per time bin; their hazards are those of `hazards`.
        event: 1 or True where the event was seen, 0 where the slide's patient was censored. By keyword only, because
            other tools order these two the other way round.
        time_bin: Bin y of the last time seen, 0 to K-1, as `time_bins` gives it.

    Returns:
        Mean over the batch, at least float32.

    Raises:
        ValueError: If the shapes do not fit, an event is neither 0 nor 1 or a bin is not one of the K.
    """
    if event.shape != logits.shape[:1] or time_bin.shape != logits.shape[:1]:
        raise ValueError(
            f"event {tuple(event.shape)} and time_bin {tuple(time_bin.shape)} must be {tuple(logits.shape[:1])}, "
            f"one a slide (logits is {tuple(logits.shape)})"
        )
    seen = event != 0
    if not bool((event[seen] == 1).all()):
        raise ValueError("event must be 1 (the event was seen) or 0 (censored)")
    bins = logits.shape[1]
    if not bool(((time_bin >= 0) & (time_bin < bins)).all()):
        raise ValueError(f"time_bin must lie in 0..{bins - 1}, got {time_bin.min().item()} to {time_bin.max().item()}")

    hazard_BK = hazards(logits)
    bin_K, y_B1 = torch.arange(bins, device=logits.device), time_bin[:, None]
    survived_BK = (bin_K < y_B1) | ((bin_K == y_B1) & ~seen[:, None])
    died_BK = (bin_K == y_B1) & seen[:, None]
    # where, not a product: 0 * log(...) would be fine here, but the gradient of what is not used should be exactly 0
    nothing = torch.zeros_like(hazard_BK)
    each_BK = torch.where(survived_BK, (1 - hazard_BK).log(), torch.where(died_BK, hazard_BK.log(), nothing))
    return -each_BK.sum(1).mean()


def risk_score(logits: Float[Tensor, "B K"]) -> Float[Tensor, " B"]:
    r"""Return $-\sum_k \prod_{j\le k}(1-h_j)$: minus the expected number of bins survived; higher = earlier event."""
    return -(1 - hazards(logits)).cumprod(1).sum(1)


def time_bin_edges(time: Vector, event: Vector, num_bins: int = 4) -> Float[Array, " edges"]:
    """Cut time where the training events fall into equal shares (quantiles, linear interpolation).

    Args:
        time: Times of the training patients, above zero; one a patient, not one a slide.
        event: 1 = seen, 0 = censored.
        num_bins: How many bins the model has outputs for.

    Returns:
        Inner edges in ascending order, float64, `num_bins` - 1 of them; fewer where quantiles coincide: later bins then
        stay unused and the model keeps its outputs. Both that and a fall-back to all times (fewer events than bins) are
        logged as one line.

    Raises:
        UserError: If there is no patient, or a time is missing, infinite or not above zero.
    """
    times, seen = as_vector(time, "time"), as_events(event)
    check_lengths(time=times, event=seen)
    if num_bins < 1:
        raise ValueError(f"num_bins must be at least 1, got {num_bins}")
    _check_times(times)
    chosen = times[seen]
    if len(chosen) < num_bins:
        log.warning(
            "WARN %s among %s make too few for %s: bin edges are quantiles of all times",
            counted(len(chosen), "event"),
            counted(len(times), "training patient"),
            counted(num_bins, "time bin"),
        )
        chosen = times
    edges = np.unique(np.quantile(chosen, np.linspace(0, 1, num_bins + 1)[1:-1]))
    if len(edges) < num_bins - 1:
        log.warning("WARN many equal times: %d of %d time bins are used", len(edges) + 1, num_bins)
    return edges


def _check_times(times: Float[Array, " n"]) -> None:
    if not len(times):
        raise UserError("no training patient has a survival time: check the time column and the split")
    missing, low = int((~np.isfinite(times)).sum()), int((times <= 0).sum())
    if missing or low:
        raise UserError(
            f"of {len(times)} survival times {missing} are missing or infinite and {low} are not above zero: "
            f"leave these patients out of the table, or give their times"
        )


def time_bins(time: Vector, edges: Vector) -> Int[Array, " n"]:
    """Return per time the number of edges at or below it: an edge belongs to the later bin, late times to the last."""
    return np.searchsorted(as_vector(edges, "edges"), as_vector(time, "time"), side="right").astype(np.int64)


def concordance_index(time: Vector, event: Vector, risk: Vector, *, ties: Ties = "harrell") -> float:
    """Share of comparable pairs in which the patient with the earlier event has the higher risk; equal risks count 1/2.

    Args:
        time: Event or censoring time per patient.
        event: 1 = seen, 0 = censored.
        risk: Higher = earlier event.
        ties: "harrell", as the standard packages do: a pair is comparable if the earlier time is an event, or if the
            times are equal and exactly one is an event (that one counts as earlier). "strict": pairs of equal times
            never count; this reproduces the published Gated SRP numbers.

    Returns:
        A number from 0 to 1; NaN where no pair is comparable. Pairs are counted as integers, so it is exact.

    Raises:
        UserError: If a risk or a time is not finite (a model that has diverged has no concordance).
        ValueError: If lengths differ or `ties` is not known.

    Cost: O(n log n).
    Reference: `concordance_index_naive` in tests/reference.
    """
    times, seen, risks = as_vector(time, "time"), as_events(event), as_vector(risk, "risk")
    check_lengths(time=times, event=seen, risk=risks)
    if ties not in ("harrell", "strict"):
        raise ValueError(f"ties={ties!r} is not known; choose 'harrell' or 'strict'")
    for name, values in (("risk", risks), ("time", times)):
        if bad := int((~np.isfinite(values)).sum()):
            raise UserError(
                f"{name} is not finite for {bad} of {counted(len(values), 'patient')}: no concordance index"
            )
    if not seen.any():
        return float("nan")
    # patient j is comparable to the event i exactly where when[j] > when[i]
    when = np.unique(times, return_inverse=True)[1]
    if ties == "harrell":
        when = 2 * when + ~seen
    rank = np.unique(risks, return_inverse=True)[1]
    pairs = int((len(when) - np.searchsorted(np.sort(when), when[seen], side="right")).sum())
    if not pairs:
        return float("nan")
    # in this order a later row of the same `when` has no smaller rank: it is not counted
    order = np.lexsort((rank, when))
    concordant = int(_smaller_later(rank[order])[seen[order]].sum())
    return (concordant + 0.5 * _tied_later(when, rank, seen)) / pairs


def _smaller_later(rank: Int[Array, " n"]) -> Int[Array, " n"]:
    """Per position: how many later positions hold a strictly smaller rank. A merge sort that counts, level by level."""
    n = len(rank)
    counts, order, width = np.zeros(n, np.int64), np.arange(n), 1
    while width < n:
        # blocks of 2 * width: two sorted runs each; the stable sort merges them and puts equal ranks of the left first
        pair = order // (2 * width)
        order = order[np.argsort(pair * n + rank[order], kind="stable")]
        right = (order // width) % 2
        before = np.cumsum(right) - right
        passed = before - before[order // (2 * width) * (2 * width)]
        left = right == 0
        counts[order[left]] += passed[left]
        width *= 2
    return counts


def _tied_later(
    when: Int[Array, " n"],
    rank: Int[Array, " n"],
    seen: Shaped[Array, " n"],
) -> int:
    """Count the pairs of an event and a later patient with the same risk."""
    key = rank * (int(when.max()) + 1) + when
    ordered = np.sort(key)
    group_end = np.searchsorted(np.sort(rank), rank[seen], side="right")
    return int((group_end - np.searchsorted(ordered, key[seen], side="right")).sum())
