"""Counts of pixels against scikit-learn."""

import math

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, jaccard_score

from nnunet_gdla.evaluation.overlap import Counts, count_mask_pixels, count_pixels, dice, iou, pixel_accuracy

VALUES = (0, 1, 2, 7, 255)


@pytest.mark.parametrize("values", [(1,), (2, 7), (255,), (1, 2, 7, 255)])
@pytest.mark.parametrize("ignore", [None, 7])
def test_metrics_equal_scikit_learn(values: tuple[int, ...], ignore: int | None) -> None:
    rng = np.random.default_rng(0)
    prediction, truth = (rng.choice(np.array(VALUES, dtype=np.uint8), (4, 9, 8)) for _ in range(2))
    counts = count_pixels(prediction, truth, VALUES, VALUES, ignore).of(values)
    kept = truth != ignore if ignore is not None else np.ones(truth.shape, dtype=bool)
    one, two = (np.isin(labels[kept], values) for labels in (prediction, truth))
    assert dice(counts) == pytest.approx(f1_score(two, one), rel=1e-12)
    assert iou(counts) == pytest.approx(jaccard_score(two, one), rel=1e-12)
    assert pixel_accuracy(counts) == pytest.approx(accuracy_score(two, one), rel=1e-12)
    assert counts == count_mask_pixels(one, two)
    assert (counts.prediction, counts.truth) == (one.sum(), two.sum())


def test_values_of_one_mask_only() -> None:
    prediction, truth = np.array([[0, 3]], dtype=np.uint8), np.array([[5, 5]], dtype=np.uint16)
    pairs = count_pixels(prediction, truth, (0, 3), (5,))
    assert pairs.of((3,)) == Counts(0, 1, 0, 1)
    assert pairs.of((5,)) == Counts(0, 0, 2, 0)
    assert pairs.of((3, 5)) == Counts(1, 0, 1, 0)
    assert pairs.of((9,)) == Counts(0, 0, 0, 2)


def test_what_is_undefined_is_nan() -> None:
    nothing = Counts(0, 0, 0, 5)
    assert math.isnan(dice(nothing))
    assert math.isnan(iou(nothing))
    assert pixel_accuracy(nothing) == 1
    assert math.isnan(pixel_accuracy(Counts(0, 0, 0, 0)))
    assert dice(Counts(0, 3, 0, 2)) == iou(Counts(0, 0, 3, 2)) == 0
