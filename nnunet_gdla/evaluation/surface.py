r"""Distances between the surfaces of two masks: HD95, ASSD, normalised surface distance.

The surface of a mask are its voxels with a face neighbour outside; beyond the image's border is outside. An axis with a
single voxel has no neighbours: an image of one slice is taken as the two-dimensional image that it is. Distances run
from voxel centre to voxel centre, in the unit of the spacing. With $d_P$ the distances from the prediction's surface to
the truth's and $d_T$ the other way:

$$\mathrm{HD95} = \max\bigl(q_{95}(d_P), q_{95}(d_T)\bigr), \qquad
  \mathrm{ASSD} = \frac{\sum d_P + \sum d_T}{|d_P| + |d_T|}, \qquad
  \mathrm{NSD}_\tau = \frac{|\{d_P \le \tau\}| + |\{d_T \le \tau\}|}{|d_P| + |d_T|},$$

with NumPy's linear percentile. Everything is computed in the box around both masks: outside of it there is no surface,
so nothing is lost, and a mask's voxel on the side of the box has an outside neighbour just as on the image's border.

Shape legend (this file): K voxels of a surface, D axes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import SimpleITK as sitk
from jaxtyping import Bool, Float, Int
from scipy.spatial import cKDTree

__all__ = [
    "SurfaceDistances",
    "assd",
    "distances_in_box",
    "hd95",
    "hd95_pooled",
    "nsd",
    "surface_distances",
    "surface_of",
]

Box = tuple[slice, ...]

# Neighbours within so many voxels are found in a tree over the surface, which beats a distance map by far; for points
# further away the tree gets slow, and the map costs the same for all.
_NEAR_VOXELS = 5
# 13 times 0.1 mm minus 3 times 0.1 mm is a little more than 1 mm in floating point, and within 1 mm nevertheless
_ROUNDING = 1e-6


class SurfaceDistances(NamedTuple):
    """Distance of each surface voxel of one mask to the nearest surface voxel of the other."""

    from_prediction: Float[np.ndarray, " K"]
    from_truth: Float[np.ndarray, " L"]


def surface_distances(
    prediction: Bool[np.ndarray, "*grid"], truth: Bool[np.ndarray, "*grid"], spacing: Sequence[int | float]
) -> SurfaceDistances | None:
    """Measure the distances between the surfaces of two masks.

    Args:
        prediction: Predicted mask, one to three axes.
        truth: True mask.
        spacing: Size of a voxel along each axis.

    Returns:
        None where a mask is empty: there is nothing to measure.

    Numerics: distances of a few voxels are float64; greater ones come from a float32 map (relative error 1e-6).
    """
    keep = [axis for axis, size in enumerate(prediction.shape) if size > 1] or [0]
    shape = [prediction.shape[axis] for axis in keep]
    prediction, truth = prediction.reshape(shape), truth.reshape(shape)
    one, two = _box(prediction), _box(truth)
    if one is None or two is None:
        return None
    box = tuple(slice(min(a.start, b.start), max(a.stop, b.stop)) for a, b in zip(one, two, strict=True))
    return distances_in_box(prediction[box], truth[box], [spacing[axis] for axis in keep])


def distances_in_box(
    prediction: Bool[np.ndarray, "*grid"], truth: Bool[np.ndarray, "*grid"], spacing: Sequence[int | float]
) -> SurfaceDistances:
    """Measure the distances between two masks that hold something, in a box beyond which neither goes on.

    Args:
        prediction: Predicted mask in the box; here an axis of a single voxel has outside neighbours on both sides.
        truth: True mask in the box.
        spacing: Size of a voxel along each axis.
    """
    sizes = np.array(spacing, dtype=np.float64)
    one, two = surface_of(prediction), surface_of(truth)
    return SurfaceDistances(_directed(one, two, sizes), _directed(two, one, sizes))


def surface_of(mask: Bool[np.ndarray, "*grid"]) -> Bool[np.ndarray, "*grid"]:
    """Return the voxels of a mask that have a face neighbour outside of it, or outside of the array."""
    inner = mask.copy()
    for axis in range(mask.ndim):
        kept, here = np.moveaxis(inner, axis, 0), np.moveaxis(mask, axis, 0)
        kept[1:] &= here[:-1]
        kept[:-1] &= here[1:]
        kept[0] = kept[-1] = False
    return mask & ~inner


def hd95(distances: SurfaceDistances) -> float:
    """Return the greater of the two directed 95th percentiles."""
    return float(max(np.percentile(directed, 95) for directed in distances))


def hd95_pooled(distances: SurfaceDistances) -> float:
    """Return the 95th percentile of both directions thrown together, as MedPy and the evaluation of TransUNet do."""
    return float(np.percentile(np.concatenate(distances), 95))


def assd(distances: SurfaceDistances) -> float:
    """Return the mean distance over the voxels of both surfaces."""
    return float(np.concatenate(distances).mean())


def nsd(distances: SurfaceDistances, tolerance: int | float) -> float:
    """Return the share of the voxels of both surfaces that lie within the tolerance of the other surface."""
    return float((np.concatenate(distances) <= tolerance * (1 + _ROUNDING)).mean())


def _box(mask: Bool[np.ndarray, "*grid"]) -> Box | None:
    """Return the tight box around a mask, None for an empty one; each axis looks only at what the last one left."""
    box: list[slice] = []
    for axis in range(mask.ndim):
        filled = np.flatnonzero(mask.any(axis=tuple(other for other in range(mask.ndim) if other != axis)))
        if not len(filled):
            return None
        box.append(slice(int(filled[0]), int(filled[-1]) + 1))
        mask = mask[(slice(None),) * axis + (box[-1],)]
    return tuple(box)


def _directed(
    source: Bool[np.ndarray, "*grid"], target: Bool[np.ndarray, "*grid"], spacing: Float[np.ndarray, " D"]
) -> Float[np.ndarray, " K"]:
    """Measure from each voxel of one surface to the nearest voxel of the other."""
    voxels = np.argwhere(source)
    apart = ~target[source]
    distances = np.zeros(len(voxels))
    if not apart.any():
        return distances
    queries = voxels[apart]
    tree = cKDTree(np.argwhere(target) * spacing, balanced_tree=False)
    found, _ = tree.query(queries * spacing, distance_upper_bound=_NEAR_VOXELS * float(spacing.max()))
    far = np.isinf(found)
    if far.any():
        found[far] = _from_map(queries[far], target, spacing)
    distances[apart] = found
    return distances


def _from_map(
    voxels: Int[np.ndarray, "K D"], target: Bool[np.ndarray, "*grid"], spacing: Float[np.ndarray, " D"]
) -> Float[np.ndarray, " K"]:
    if target.ndim == 1:  # SimpleITK has no images of one axis
        voxels, target, spacing = np.pad(voxels, ((0, 0), (1, 0))), target[None], np.array([1.0, *spacing])
    image = sitk.GetImageFromArray(target.astype(np.uint8))
    image.SetSpacing(tuple(float(size) for size in spacing[::-1]))
    distances = sitk.SignedMaurerDistanceMap(image, insideIsPositive=False, squaredDistance=False, useImageSpacing=True)
    # the view has no memory of its own: `distances` must outlive it
    return sitk.GetArrayViewFromImage(distances)[tuple(voxels.T)].astype(np.float64)
