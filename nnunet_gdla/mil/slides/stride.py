"""The distance of neighbouring patches, found from coordinates alone.

Shape legend (this file): N patches.
"""

from typing import Any, Final, NamedTuple

import numpy as np
from jaxtyping import Num
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from torch import Tensor

from nnunet_gdla.mil.slides.lattice import fit_lattice

__all__ = ["StrideEstimate", "estimate_stride", "infer_stride"]

Array = NDArray[np.float64]

# Gaps this close (relative) count as the same gap: rounding of a stride that is no integer.
SAME_GAP: Final = 0.004
# Share of the patches that must vote for a gap, and share of similar gaps that must be it: below, patches are jittered.
ENOUGH_VOTES: Final = 0.1
SHARP: Final = 0.5
# Share of a bounding box that a lattice must fill to be believed where hardly any two patches are adjacent.
SPARSEST: Final = 0.005
# Below this share of votes a finer lattice that holds all patches is taken, if it is filled this much.
WEAK_VOTES: Final = 0.3
THIN: Final = 0.02
# So few patches make no lattice out of diagonal neighbours alone.
FEW: Final = 5
PROBES: Final = 2000


class StrideEstimate(NamedTuple):
    """A stride and the number of neighbouring pairs that speak for it; 1.0 and 0 where nothing does."""

    stride: float
    votes: int


def infer_stride(coords: Num[Tensor, "N _"] | NDArray[Any]) -> float:
    """Return the most frequent nearest gap within rows and columns of patches.

    Several lattices shifted against each other, holes, a checkerboard, a single row, duplicates, rounding of a stride
    that is no integer, and jitter of a few per cent do not disturb it. Where no two patches can be told to be
    neighbours (a single patch; no lattice at all) it is 1.0, with which every patch is alone.

    Args:
        coords: Upper left corners in any unit; columns 0 and 1 are used.
    """
    return estimate_stride(np.asarray(coords)[:, :2].astype(np.float64)).stride


def estimate_stride(xy: Array) -> StrideEstimate:
    """As `infer_stride`, with the evidence."""
    gaps = np.concatenate([_gaps_along(xy, 0), _gaps_along(xy, 1)])
    if len(gaps):
        gap, votes = _most_frequent(gaps)
        similar = np.count_nonzero(np.abs(gaps - gap) <= 0.25 * gap)
        if votes >= ENOUGH_VOTES * len(xy) and votes >= SHARP * similar:
            thin = _sparse(xy, THIN) if votes < WEAK_VOTES * len(xy) else None
            if thin is not None:
                return thin
            step = _halved_checkerboard(xy, gap)
            return StrideEstimate(_refined(xy, gaps, gap) * (step / gap), votes)
    return _sparse(xy, SPARSEST) or _jittered(xy) or StrideEstimate(1.0, 0)


def _gaps_along(xy: Array, axis: int) -> Array:
    """Distances to the next patch in the same row (axis 0) or column (axis 1); duplicates have none."""
    ordered = xy[np.lexsort((xy[:, axis], xy[:, 1 - axis]))]
    gap = np.diff(ordered[:, axis])
    return gap[(np.diff(ordered[:, 1 - axis]) == 0) & (gap > 0)]


def _most_frequent(gaps: Array) -> tuple[float, int]:
    """The smallest gap that is about as frequent as the most frequent one, and how often it occurs."""
    ordered = np.sort(gaps)
    past = np.searchsorted(ordered, ordered * (1 + 2 * SAME_GAP), side="right")
    counts = past - np.arange(len(ordered))
    first = int(np.argmax(counts >= 0.5 * counts.max()))
    best = first + int(np.argmax(counts[first : past[first]]))
    return float(np.median(ordered[best : past[best]])), int(counts[best])


def _refined(xy: Array, gaps: Array, gap: float) -> float:
    """The mean of the gaps that are equal up to rounding; with a single lattice, its least-squares step."""
    rounding = 1.01 if gap >= 8 else 0.0
    equal = gaps[np.abs(gaps - gap) <= max(SAME_GAP * gap, rounding)]
    if np.ptp(equal) <= 1e-6 * gap:
        return gap
    mean = float(equal.mean())
    fitted = fit_lattice(xy, mean)
    return fitted.stride if fitted.residual < 0.25 else mean


def _halved_checkerboard(xy: Array, gap: float) -> float:
    """Half the gap where most patches have a partner half a gap away in both directions."""
    half = gap / 2
    probes = xy[:: max(1, len(xy) // PROBES)]
    tree = cKDTree(xy)
    tolerance = max(SAME_GAP * gap, 1.01 if gap >= 8 else 0.0)
    found = np.zeros(len(probes), bool)
    for direction in ((half, half), (half, -half), (-half, half), (-half, -half)):
        found |= tree.query(probes + np.array(direction), p=np.inf)[0] <= tolerance
    return half if found.mean() >= 0.5 else gap


def _sparse(xy: Array, least: float) -> StrideEstimate | None:
    """The greatest common divisor of all distances, where patches are on one lattice that they fill thinly."""
    if not np.array_equal(xy, np.rint(xy)):
        return None
    relative = (xy - xy.min(0)).astype(np.int64)
    step = int(np.gcd.reduce(relative.ravel()))
    if step == 0:
        return None
    cells = np.unique(relative // step, axis=0)
    filled = len(cells) / float(np.prod(cells.max(0) + 1.0))
    return StrideEstimate(float(step), len(cells)) if filled >= least else None


def _jittered(xy: Array) -> StrideEstimate | None:
    """The mean offset between nearest patches, where they fit a lattice around each of them."""
    tree = cKDTree(np.unique(xy, axis=0))
    points = tree.data
    if len(points) < 2:
        return None
    probes = points[:: max(1, len(points) // PROBES)]
    nearest = tree.query(probes, k=2, p=np.inf)[0][:, 1]
    step = float(np.median(nearest))
    for _ in range(3):
        near = tree.query_ball_point(probes, 1.35 * step, p=np.inf)
        offsets = np.concatenate([np.abs(points[rows] - probe) for rows, probe in zip(near, probes, strict=True)])
        offsets = offsets[offsets.max(1) > 0]
        if not len(offsets):
            return None
        one_step = offsets[(offsets > 0.6 * step) & (offsets < 1.35 * step)]
        step = float(one_step.mean())
    away = np.abs(offsets / step - np.rint(offsets / step)).max(1)
    straight = (offsets < 0.25 * step).any(1)
    if np.mean(away < 0.25) < 0.9 or (len(points) < FEW and not straight.any()):
        return None
    fitted = fit_lattice(xy, step)
    return StrideEstimate(fitted.stride if fitted.residual < 0.25 else step, len(offsets) // 2)
