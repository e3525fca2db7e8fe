"""One lattice fitted to all patches of a slide, and patches moved onto it.

Shape legend (this file): N patches.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "LARGEST_RESIDUAL",
    "LatticeFit",
    "Snapped",
    "fit_lattice",
    "has_neighbour",
    "share_with_neighbour",
    "snap_to_lattice",
]

Array = NDArray[np.float64]

# In strides; beyond it a patch could as well belong to the next cell.
LARGEST_RESIDUAL: Final = 0.25
# Share of patches with a partner exactly one stride away, from which a slide is made of clean lattices.
CLEAN: Final = 0.9


class LatticeFit(NamedTuple):
    """A lattice: its step, the origin of both axes, the cells (N, 2) and the largest distance from them in strides."""

    stride: float
    origin: Array
    cells: NDArray[np.int64]
    residual: float


class Snapped(NamedTuple):
    """Coordinates whose floor cells are right, their stride, and the largest move in strides; 0 where nothing moved."""

    coords: Array
    stride: float
    residual: float


def fit_lattice(xy: Array, stride: float, *, adjust: bool = True) -> LatticeFit:
    """Fit origin and, with `adjust`, step of one square lattice by least squares, starting from `stride`."""
    origin = _phase(xy, stride)
    best = _measured(xy, stride, origin)
    for _ in range(3 if adjust else 0):
        centred_cells = best.cells - best.cells.mean(0)
        spread = float(np.square(centred_cells).sum())
        if spread == 0:
            break
        step = float((centred_cells * (xy - xy.mean(0))).sum()) / spread
        if not 0.9 * stride < step < 1.1 * stride:
            break
        fitted = _measured(xy, step, xy.mean(0) - step * best.cells.mean(0))
        if fitted.residual >= best.residual:
            break
        best = fitted
    return best


def snap_to_lattice(xy: Array, stride: float, *, whole_pixels: bool) -> Snapped:
    """Move patches onto one lattice where that is safe and floor(coords / stride) would tear neighbours apart.

    Nothing moves where the floor cells already are the cells of the lattice, where most patches have a partner exactly
    one stride away (several clean lattices shifted against each other), where a patch is a quarter stride or more away
    from every lattice point, or where two patches would share a cell that floor keeps apart.

    Args:
        xy: Coordinates.
        stride: Known distance of neighbouring patches.
        whole_pixels: Coordinates stay integers.
    """
    fit = fit_lattice(xy, stride, adjust=False)
    if fit.residual >= LARGEST_RESIDUAL:
        fit = fit_lattice(xy, stride)
    floor = np.floor_divide(xy, stride).astype(np.int64)
    if fit.residual >= LARGEST_RESIDUAL or _same_up_to_shift(floor, fit.cells):
        return Snapped(xy, stride, 0.0)
    if _share_with_exact_partner(xy, stride) >= CLEAN:
        return Snapped(xy, stride, 0.0)
    if len(np.unique(fit.cells, axis=0)) < len(np.unique(floor, axis=0)):
        return Snapped(xy, stride, 0.0)
    # A hair above each lattice point, so that rounding never puts it into the cell below.
    if whole_pixels:
        moved = np.floor(fit.origin + fit.cells * fit.stride) + 1
    else:
        moved = fit.origin + (fit.cells + 1e-3) * fit.stride
    room = np.mod(fit.origin, fit.stride) < fit.stride - (1.0 if whole_pixels else 2e-3 * fit.stride)
    moved -= np.where(room, 0.0, 1.0 if whole_pixels else 2e-3 * fit.stride)
    return Snapped(moved, fit.stride, fit.residual)


def share_with_neighbour(xy: Array, stride: float) -> float:
    """Return the share of patches that have another one in the eight cells around theirs."""
    return float(has_neighbour(xy, stride).mean())


def has_neighbour(xy: Array, stride: float) -> NDArray[np.bool_]:
    """Return which patches have another one in the eight cells around theirs."""
    cells = np.floor_divide(xy, stride).astype(np.int64)
    x = np.unique(cells[:, 0], return_inverse=True)
    y = np.unique(cells[:, 1], return_inverse=True)
    # Gaps of empty columns and rows shrink to one, so that keys stay small whatever the coordinates are.
    column, row = (_packed(values)[position] for values, position in (x, y))
    height = int(row.max()) + 3
    key = column * height + row
    steps = np.array([dx * height + dy for dx in (-1, 0, 1) for dy in (-1, 0, 1) if (dx, dy) != (0, 0)])
    present = np.unique(key)
    wanted = key[:, None] + steps
    place = np.minimum(np.searchsorted(present, wanted), len(present) - 1)
    found: NDArray[np.bool_] = (present[place] == wanted).any(1)
    return found


def _packed(values: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[1], 1 + np.cumsum(np.minimum(np.diff(values), 2))]).astype(np.int64)


def _phase(xy: Array, stride: float) -> Array:
    angle = np.exp(2j * np.pi * np.mod(xy, stride) / stride).mean(0)
    return np.asarray(np.mod(np.angle(angle) / (2 * np.pi) * stride, stride), dtype=np.float64)


def _measured(xy: Array, stride: float, origin: Array) -> LatticeFit:
    cells = np.rint((xy - origin) / stride)
    residual = float(np.abs(xy - origin - cells * stride).max()) / stride
    return LatticeFit(stride, origin, cells.astype(np.int64), residual)


def _share_with_exact_partner(xy: Array, stride: float) -> float:
    points = {(x, y) for x, y in xy.tolist()}
    steps = ((stride, 0.0), (-stride, 0.0), (0.0, stride), (0.0, -stride))
    return sum(any((x + dx, y + dy) in points for dx, dy in steps) for x, y in points) / len(points)


def _same_up_to_shift(a: NDArray[np.int64], b: NDArray[np.int64]) -> bool:
    difference = a - b
    return bool((difference == difference[0]).all())
