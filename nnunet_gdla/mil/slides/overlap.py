"""Patches of a slide that lie on several lattices, which contours of tissue had one each.

Shape legend (this file): N patches.
"""

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from nnunet_gdla.mil.slides.lattice import Snapped, snap_to_lattice

__all__ = ["SeparateLattices", "lattice_order", "separate_lattices", "snap_to_lattices"]

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

# Offsets from the lattice that differ by so little (of the stride, and in pixels) are rounding.
SAME_OFFSET: Final = 0.004
ROUNDING_PX: Final = 1.01
# Share of patches with a partner one stride away, below which patches are jittered and not on several lattices.
CLEAN: Final = 0.5


class SeparateLattices(NamedTuple):
    """The lattice of each patch, numbered from 0 by their offsets, and how many patches overlap another one's."""

    labels: Labels
    overlapping: int

    @property
    def count(self) -> int:  # type: ignore[override] # a tuple's own `count` is of no use here
        """Number of lattices."""
        return int(self.labels.max()) + 1


def separate_lattices(xy: Array, stride: float) -> SeparateLattices | None:
    """Tell lattices apart by the offsets of their patches modulo the stride, where patches of two of them overlap.

    Args:
        xy: Upper left corners.
        stride: Distance of neighbouring patches, as the coordinates show it.

    Returns:
        None where there is one lattice, where several do not overlap, and where patches are jittered.
    """
    tolerance = max(SAME_OFFSET * stride, ROUNDING_PX if stride >= 8 else 0.0)
    offsets = np.mod(xy, stride)
    groups = np.stack([_groups(offsets[:, axis], stride, tolerance) for axis in (0, 1)], axis=1)
    labels = np.unique(groups, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    if not labels.any():
        return None
    tree = cKDTree(xy)
    pairs = tree.query_pairs(stride - 2 * tolerance, p=np.inf, output_type="ndarray")
    overlapping = pairs[labels[pairs[:, 0]] != labels[pairs[:, 1]]]
    if not len(overlapping) or _share_with_partner(tree, xy, stride, tolerance) < CLEAN:
        return None
    return SeparateLattices(labels, len(np.unique(overlapping)))


def snap_to_lattices(xy: Array, stride: float, labels: Labels | None, *, whole_pixels: bool) -> Snapped:
    """Move patches onto their lattice, or each onto its own; see `snap_to_lattice`."""
    if labels is None:
        return snap_to_lattice(xy, stride, whole_pixels=whole_pixels)
    moved, residual = xy.copy(), 0.0
    for label in np.unique(labels):
        part = snap_to_lattice(xy[labels == label], stride, whole_pixels=whole_pixels)
        if part.stride == stride:  # one stride for all of them
            moved[labels == label] = part.coords
            residual = max(residual, part.residual)
    return Snapped(moved, stride, residual)


def lattice_order(xy: NDArray[Any], stride: float, labels: Labels | None) -> Labels:
    """Return the rows of a slide lattice by lattice, line by line, whatever their order in the file."""
    column, line = np.floor_divide(xy, stride).T
    return np.lexsort((xy[:, 0], xy[:, 1], column, line, np.zeros(len(xy)) if labels is None else labels))


def _groups(offset: Array, stride: float, tolerance: float) -> Labels:
    """Number the offsets of one axis; those within the tolerance of the next one, round the stride, are one group."""
    distinct, place = np.unique(offset, return_inverse=True)
    number = np.concatenate([[0], np.cumsum(np.diff(distinct) > tolerance)]).astype(np.int64)
    if distinct[0] + stride - distinct[-1] <= tolerance:
        number[number == number[-1]] = 0
    return number[place]


def _share_with_partner(tree: cKDTree, xy: Array, stride: float, tolerance: float) -> float:
    found = np.zeros(len(xy), bool)
    for step in ((stride, 0.0), (-stride, 0.0), (0.0, stride), (0.0, -stride)):
        distance, _ = tree.query(xy + np.array(step), p=np.inf, distance_upper_bound=2 * tolerance + 1e-9 * stride)
        found |= np.isfinite(distance)
    return float(found.mean())
