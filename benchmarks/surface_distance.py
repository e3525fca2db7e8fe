"""Time of HD95 against distance maps of the full volume by SimpleITK, alternating in one process.

    python -m benchmarks.surface_distance [--shape 100 512 512] [--rounds 3] [--threads 2]

Three pairs of masks: an organ of 40 x 90 x 90 voxels and its shifted copy; the same with a piece of the prediction at
the other end of the volume, where the box around both is almost everything; and an organ that fills the volume.
The other side pads the volume by a voxel (so that the image's border is surface there too), takes SimpleITK's label
contours and its Maurer distance maps of both, and reads each at the other's contour. Both start from the same two
arrays and end with HD95. Prints medians in seconds, their ratio, both HD95 in mm, and the peak memory of the process.
"""

import argparse
import os
import resource
import time
from collections.abc import Sequence
from statistics import median

import numpy as np
import SimpleITK as sitk
from jaxtyping import Bool

from nnunet_gdla.evaluation.surface import hd95, surface_distances

SPACING = (2.5, 0.8, 0.8)
ORGAN = (40, 90, 90)
Mask = Bool[np.ndarray, "slices rows columns"]


def main() -> None:
    """Measure every pair and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=int, nargs=3, default=[100, 512, 512])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(arguments.threads)
    shape = tuple(arguments.shape)
    print(f"{' x '.join(map(str, shape))} voxels, {arguments.threads} threads, median of {arguments.rounds}")
    print(f"{'masks':<22}{'full volume s':>14}{'ours s':>9}{'ratio':>8}{'full HD95':>11}{'our HD95':>10}")
    for name, make in (("organ", organ), ("organ and far piece", far_piece), ("fills the volume", filling)):
        prediction, truth = make(shape)
        seconds: dict[str, list[float]] = {"full": [], "ours": []}
        found = {}
        for _ in range(arguments.rounds):
            for key, function in (("full", full_volume), ("ours", ours)):
                began = time.perf_counter()
                found[key] = function(prediction, truth)
                seconds[key].append(time.perf_counter() - began)
        full, mine = median(seconds["full"]), median(seconds["ours"])
        print(f"{name:<22}{full:>14.3f}{mine:>9.4f}{full / mine:>8.1f}{found['full']:>11.4f}{found['ours']:>10.4f}")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.1f} GB")


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
    main()
