"""Dice, IoU and pixel accuracy from counts of pixels.

Shape legend (this file): P label values of the prediction, T label values of the truth.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, UInt

__all__ = ["Counts", "JointCounts", "count_mask_pixels", "count_pixels", "dice", "iou", "pixel_accuracy"]

_NAN = float("nan")


class Counts(NamedTuple):
    """Pixels in both masks, in the prediction only, in the truth only, in neither."""

    both: int
    prediction_only: int
    truth_only: int
    neither: int

    @property
    def prediction(self) -> int:
        """Pixels of the predicted mask."""
        return self.both + self.prediction_only

    @property
    def truth(self) -> int:
        """Pixels of the true mask."""
        return self.both + self.truth_only


class JointCounts(NamedTuple):
    """How many pixels hold each pair of label values."""

    table: Int[np.ndarray, "P T"]
    prediction_values: tuple[int, ...]
    truth_values: tuple[int, ...]

    def of(self, values: Collection[int]) -> Counts:
        """Count the pixels of one class, which is a set of label values."""
        rows = np.isin(self.prediction_values, list(values))
        columns = np.isin(self.truth_values, list(values))
        both, prediction = int(self.table[rows][:, columns].sum()), int(self.table[rows].sum())
        truth, everything = int(self.table[:, columns].sum()), int(self.table.sum())
        return Counts(both, prediction - both, truth - both, everything - prediction - truth + both)


def count_pixels(
    prediction: UInt[np.ndarray, "*grid"],
    truth: UInt[np.ndarray, "*grid"],
    prediction_values: Sequence[int],
    truth_values: Sequence[int],
    ignore: int | None = None,
) -> JointCounts:
    """Count every pair of label values in one pass over the two masks.

    Args:
        prediction: Predicted labels.
        truth: True labels.
        prediction_values: All values that occur in `prediction`.
        truth_values: All values that occur in `truth`.
        ignore: Pixels where the truth has this value are not counted.
    """
    row_of, column_of = _positions(prediction_values), _positions(truth_values)
    size = len(prediction_values) * len(truth_values)
    counts = np.zeros(size, dtype=np.int64)
    for predicted, true in zip(prediction, truth, strict=True):  # a slice at a time: the pairs need 8 bytes a pixel
        pairs = row_of[predicted] * len(truth_values) + column_of[true]
        counts += np.bincount(pairs.ravel(), minlength=size)
    table = counts.reshape(len(prediction_values), len(truth_values))
    if ignore is not None:
        table[:, np.asarray(truth_values) == ignore] = 0
    return JointCounts(table, tuple(prediction_values), tuple(truth_values))


def count_mask_pixels(prediction: Bool[np.ndarray, "*grid"], truth: Bool[np.ndarray, "*grid"]) -> Counts:
    """Count the pixels of two binary masks."""
    both = int(np.count_nonzero(prediction & truth))
    predicted, true = int(np.count_nonzero(prediction)), int(np.count_nonzero(truth))
    return Counts(both, predicted - both, true - both, prediction.size - predicted - true + both)


def dice(counts: Counts) -> float:
    r"""Return $2|P \cap T| / (|P| + |T|)$; NaN where both masks are empty."""
    total = counts.prediction + counts.truth
    return 2 * counts.both / total if total else _NAN


def iou(counts: Counts) -> float:
    r"""Return $|P \cap T| / |P \cup T|$; NaN where both masks are empty."""
    union = counts.both + counts.prediction_only + counts.truth_only
    return counts.both / union if union else _NAN


def pixel_accuracy(counts: Counts) -> float:
    """Return the share of pixels on which the two masks agree; NaN where every pixel is ignored."""
    everything = sum(counts)
    return (counts.both + counts.neither) / everything if everything else _NAN


def _positions(values: Sequence[int]) -> Int[np.ndarray, " highest"]:
    table = np.zeros(max(values, default=0) + 1, dtype=np.int64)
    table[list(values)] = np.arange(len(values))
    return table
