"""HD95 against distance maps of the full volume by SimpleITK.

    python -m benchmarks.surface_distance

Three pairs of masks of 100 x 512 x 512 voxels: an organ of 40 x 90 x 90 voxels and its shifted copy; the same with a
piece of the prediction at the other end of the volume, where the box around both is almost everything; and an organ
that fills the volume. The rival pads the volume by a voxel (so that the image's border is surface there too), takes
SimpleITK's label contours and its Maurer distance maps of both, and reads each at the other's contour. Both start from
the same two arrays and end with HD95, which is compared first.
"""

import sys
from collections.abc import Sequence

import numpy as np
import SimpleITK as sitk
import torch
from jaxtyping import Bool

from benchmarks.measure import Table, alternate, at_least, compare_outputs
from benchmarks.script import run_script
from nnunet_gdla.evaluation.surface import hd95, surface_distances

SHAPE = (100, 512, 512)
SPACING = (2.5, 0.8, 0.8)
ORGAN = (40, 90, 90)
Mask = Bool[np.ndarray, "slices rows columns"]


def table(quick: bool = True) -> Table:
    """Measure every pair."""
    repeats = 1 if quick else 5
    sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(torch.get_num_threads())
    found = Table(
        "Evaluation: HD95 of a volume",
        f"{' x '.join(map(str, SHAPE))} voxels. Medians of processor time over {repeats} round(s), both in turn.",
        "python -m benchmarks.surface_distance",
    )
    for name, make in (("organ", organ), ("organ and far piece", far_piece), ("fills the volume", filling)):
        print(f"  {name}", file=sys.stderr, flush=True)
        pair = make(SHAPE)
        compare_outputs(full_volume(*pair), ours(*pair), 1e-6)
        times = alternate({"rival": lambda: full_volume(*pair), "ours": lambda: ours(*pair)}, repeats)  # noqa: B023
        found.add_times(name, times["rival"], times["ours"], at_least(50) if name == "organ" else None)
    return found


def ours(prediction: Mask, truth: Mask) -> float:
    """Return HD95 as `nnunet-gdla evaluate` computes it."""
    distances = surface_distances(prediction, truth, SPACING)
    assert distances is not None
    return hd95(distances)


def full_volume(prediction: Mask, truth: Mask) -> float:
    """Return HD95 from distance maps of the whole volume."""
    contours, maps = [], []
    for mask in (prediction, truth):
        image = sitk.GetImageFromArray(mask.astype(np.uint8))
        image.SetSpacing(SPACING[::-1])
        contour = sitk.LabelContour(sitk.ConstantPad(image, [1] * 3, [1] * 3, 0), fullyConnected=False)
        distance = sitk.SignedMaurerDistanceMap(contour, squaredDistance=False, useImageSpacing=True)
        contours.append(sitk.GetArrayViewFromImage(contour).astype(bool))
        maps.append(np.abs(sitk.GetArrayViewFromImage(distance)))
    return float(max(np.percentile(maps[1][contours[0]], 95), np.percentile(maps[0][contours[1]], 95)))


def organ(shape: Sequence[int]) -> tuple[Mask, Mask]:
    """Return an ellipsoid as large as the organ, and its copy two or three voxels away."""
    centre, radii = [size * 0.45 for size in shape], [size / 2 for size in ORGAN]
    return ellipsoid(shape, [place + 2.5 for place in centre], radii, 2), ellipsoid(shape, centre, radii, 2)


def far_piece(shape: Sequence[int]) -> tuple[Mask, Mask]:
    """Return the organ, its prediction with a piece in the far corner."""
    prediction, truth = organ(shape)
    prediction[-12:-4, -60:-20, -60:-20] = True
    return prediction, truth


def filling(shape: Sequence[int]) -> tuple[Mask, Mask]:
    """Return a rounded box that touches all sides of the volume, and its shifted copy."""
    centre, radii = [(size - 1) / 2 for size in shape], [size / 2 for size in shape]
    return ellipsoid(shape, [place + 3 for place in centre], radii, 6), ellipsoid(shape, centre, radii, 6)


def ellipsoid(shape: Sequence[int], centre: Sequence[float], radii: Sequence[float], power: int) -> Mask:
    """Return a filled ellipsoid; a higher power makes it a box with round corners."""
    axes = np.ogrid[tuple(slice(0, size) for size in shape)]
    terms = [np.abs((axis - c) / r).astype(np.float32) ** power for axis, c, r in zip(axes, centre, radii, strict=True)]
    inside: Mask = terms[0] + terms[1] + terms[2] <= 1
    return inside


if __name__ == "__main__":
    run_script(table, __doc__)
