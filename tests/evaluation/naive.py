"""Surface metrics as their definitions read: a loop over voxels, and the distance of every pair."""

import itertools

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]


def naive_surface(mask: Mask) -> npt.NDArray[np.int64]:
    """Voxels with a face neighbour outside, along the axes that have more than one voxel; (voxels, axes)."""
    axes = [axis for axis, size in enumerate(mask.shape) if size > 1] or [0]
    found = [
        voxel
        for voxel in itertools.product(*map(range, mask.shape))
        if mask[voxel] and any(not _inside(mask, voxel, axis, step) for axis in axes for step in (-1, 1))
    ]
    return np.array(found, dtype=np.int64).reshape(-1, mask.ndim)


def naive_distances(a: Mask, b: Mask, spacing: tuple[float, ...]) -> tuple[npt.NDArray[np.float64], ...]:
    """Distance of each surface voxel of a to the nearest of b, and the other way."""
    one, two = (naive_surface(mask) * np.array(spacing) for mask in (a, b))
    pairs = np.sqrt(((one[:, None] - two[None]) ** 2).sum(axis=-1))
    return pairs.min(axis=1), pairs.min(axis=0)


def naive_metrics(a: Mask, b: Mask, spacing: tuple[float, ...], tolerance: float) -> dict[str, float]:
    one, two = naive_distances(a, b, spacing)
    total = len(one) + len(two)
    within = sum(distance <= tolerance + 1e-9 for distance in (*one, *two))
    return {
        "hd95": max(float(np.percentile(one, 95)), float(np.percentile(two, 95))),
        "hd95_pooled": float(np.percentile([*one, *two], 95)),
        "assd": (sum(one) + sum(two)) / total,
        "nsd": within / total,
    }


def _inside(mask: Mask, voxel: tuple[int, ...], axis: int, step: int) -> bool:
    neighbour = list(voxel)
    neighbour[axis] += step
    return 0 <= neighbour[axis] < mask.shape[axis] and bool(mask[tuple(neighbour)])
