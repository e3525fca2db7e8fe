"""One case: two files, or two arrays of labels, to the metrics of every class."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import UInt
from scipy import ndimage

from nnunet_gdla.errors import UserError
from nnunet_gdla.evaluation.classes import LabelScheme, MaskClass, classes_of_values
from nnunet_gdla.evaluation.conventions import LEAVE_OUT, Convention, convention, score
from nnunet_gdla.evaluation.masks import Mask, check_same_grid, read_mask
from nnunet_gdla.evaluation.overlap import Counts, count_pixels
from nnunet_gdla.evaluation.surface import distances_in_box

__all__ = ["CaseJob", "CaseScores", "ClassScores", "evaluate_case", "evaluate_labels"]

_MOST_VALUES = 1000


@dataclass(frozen=True)
class CaseJob:
    """What is needed to evaluate one case; travels to a process of its own.

    Args:
        name: The case.
        prediction: File of the predicted mask.
        truth: File of the true mask.
        scheme: Labels of the dataset; None: every value of the two masks is a class.
        convention: Name of the convention.
        tolerance: Of NSD, in the convention's unit.
        missed: What becomes of distances to an empty mask.
    """

    name: str
    prediction: Path
    truth: Path
    scheme: LabelScheme | None
    convention: str
    tolerance: float
    missed: str = LEAVE_OUT


@dataclass(frozen=True)
class ClassScores:
    """One class of one case: its metrics (NaN where undefined) and its pixels."""

    metrics: dict[str, float]
    counts: Counts


@dataclass(frozen=True)
class CaseScores:
    """One case.

    Args:
        name: The case.
        classes: Scores by class name.
        pixels: How many pixels were counted.
        prediction_values: Label values in the prediction.
        truth_values: Label values in the truth.
        has_spacing: Whether a file says how large a voxel is.
        remark: Something the user should look at.
    """

    name: str
    classes: dict[str, ClassScores]
    pixels: int
    prediction_values: frozenset[int]
    truth_values: frozenset[int]
    has_spacing: bool
    remark: str | None


def evaluate_case(job: CaseJob) -> CaseScores:
    """Read and compare the two masks of a case.

    Raises:
        UserError: If a file cannot be read, is no mask, holds undeclared values, or the grids differ.
    """
    prediction, truth = read_mask(job.prediction), read_mask(job.truth)
    remark = check_same_grid(prediction, truth)
    if remark is None and prediction.spacing and not truth.spacing:
        remark = f"{job.name}: the true mask says no voxel size, so that of the prediction is taken"
    found = [_values(mask, job.scheme) for mask in (prediction, truth)]
    classes = job.scheme.classes if job.scheme else classes_of_values({*found[0], *found[1]})
    spacing = truth.spacing or prediction.spacing
    scores = evaluate_labels(
        prediction.labels,
        truth.labels,
        classes,
        spacing=spacing or (1.0, 1.0, 1.0),
        ignore=job.scheme.ignore if job.scheme else None,
        rules=convention(job.convention, job.missed),
        tolerance=job.tolerance,
    )
    pixels = sum(next(iter(scores.values())).counts) if scores else truth.labels.size
    values = [frozenset(values) for values in found]
    return CaseScores(job.name, scores, pixels, values[0], values[1], spacing is not None, remark)


def evaluate_labels(
    prediction: UInt[np.ndarray, "*grid"],
    truth: UInt[np.ndarray, "*grid"],
    classes: Sequence[MaskClass],
    *,
    spacing: Sequence[int | float],
    ignore: int | None,
    rules: Convention,
    tolerance: int | float,
) -> dict[str, ClassScores]:
    """Compare two arrays of label values.

    Args:
        prediction: Predicted labels.
        truth: True labels.
        classes: What to evaluate.
        spacing: Size of a voxel along each axis, in mm.
        ignore: Where the truth has this value, both masks count as not there, as beyond the image's border.
        rules: The convention.
        tolerance: Of NSD, in the convention's unit.

    Returns:
        Scores by class name.
    """
    pairs = count_pixels(prediction, truth, _present(prediction), _present(truth), ignore)
    # axes of a single voxel go first: afterwards a cropped box may have such axes too, and there they count
    keep = [axis for axis, size in enumerate(truth.shape) if size > 1] or [0]
    shape, sizes = [truth.shape[axis] for axis in keep], [spacing[axis] for axis in keep]
    if rules.in_voxels:
        sizes = [1.0] * len(sizes)
    masks = [prediction.reshape(shape), truth.reshape(shape)]
    if ignore is not None:
        masks = [np.where(masks[1] == ignore, 0, mask).astype(mask.dtype) for mask in masks]
    boxes = [ndimage.find_objects(mask) for mask in masks]
    diagonal = math.hypot(*(length * size for length, size in zip(shape, sizes, strict=True)))
    scores = {}
    for each in classes:
        counts = pairs.of(each.values)
        distances = None
        if counts.prediction and counts.truth:
            box = _around([found[value - 1] for found in boxes for value in each.values if 0 < value <= len(found)])
            one, two = (np.isin(mask[box], each.values) for mask in masks)
            distances = distances_in_box(one, two, sizes)
        metrics = score(counts, distances, rules, tolerance=tolerance, diagonal=diagonal)
        scores[each.name] = ClassScores(metrics, counts)
    return scores


def _around(boxes: Sequence[tuple[slice, ...] | None]) -> tuple[slice, ...]:
    """Join the boxes of labels, None being that of a label that does not occur."""
    present = [box for box in boxes if box is not None]
    return tuple(
        slice(min(side.start for side in sides), max(side.stop for side in sides))
        for sides in zip(*present, strict=True)
    )


def _present(labels: UInt[np.ndarray, "*grid"]) -> list[int]:
    highest = int(labels.max())
    seen = np.zeros(highest + 1, dtype=bool)
    for part in labels:  # a slice at a time: counting needs 8 bytes a pixel
        seen |= np.bincount(part.ravel(), minlength=highest + 1).astype(bool)
    return [int(value) for value in np.flatnonzero(seen)]


def _values(mask: Mask, scheme: LabelScheme | None) -> list[int]:
    values = _present(mask.labels)
    if len(values) > _MOST_VALUES:
        raise UserError(f"{mask.path} holds {len(values)} different values: an image, not a mask; check the folder")
    unknown = [value for value in values if scheme and value not in scheme.known]
    if scheme and unknown:
        shown = ", ".join(map(str, unknown[:5])) + (", ..." if len(unknown) > 5 else "")
        known = ", ".join(map(str, sorted(scheme.known)))
        fix = "divide the masks by 255" if unknown == [255] else "map the values, or give the right --dataset-json"
        raise UserError(f"{mask.path} holds the value {shown}, but {scheme.source} declares {known}; {fix}")
    return values
