"""Classification metrics: golden numbers, scikit-learn, and what is undefined."""

import math
import warnings
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sk

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.metrics import (
    any_class_metrics,
    average_precision,
    calibration_error,
    classification_metrics,
    pick_threshold,
    roc_auc,
)
from tests.srp_golden import SrpFile, srp_params
from tests.unchecked import unchecked

Array = np.ndarray[Any, Any]
golden_file = pytest.mark.parametrize("golden", srp_params("metrics_schedule"))
TOLERANCE = 5e-6
NAMES = {
    "acc": "accuracy",
    "precision": "macro_precision",
    "recall": "macro_recall",
    "f1": "macro_f1",
    "auc": "auc",
    "kappa_quad": "quadratic_kappa",
    "kappa_lin": "linear_kappa",
    "balanced_acc": "balanced_accuracy",
    "macro_f1": "macro_f1",
    "macro_auc": "auc",
    "binary_f1": "any_f1",
    "binary_auc": "any_auc",
}


def _sample(classes: int, n: int = 150, *, ties: bool = True) -> tuple[Array, Array]:
    rng = np.random.default_rng(classes)
    labels = rng.integers(0, classes, n)
    probabilities = rng.dirichlet(np.ones(classes), n) + np.eye(classes)[labels] * rng.random((n, 1))
    if ties:
        probabilities = np.round(probabilities, 1) + 0.05
    return labels, probabilities / probabilities.sum(1, keepdims=True)


@golden_file
def test_equals_golden(golden: SrpFile) -> None:
    a = golden.arrays
    compared = 0
    for labelled in [name for name in a if name.endswith("_y")]:
        kind = labelled.removesuffix("_y")
        found = classification_metrics(a[labelled], a[f"{kind}_prob"])
        found |= any_class_metrics(a[labelled], a[f"{kind}_prob"])
        for name, expected in a.items():
            if name.startswith(f"{kind}_") and name.removeprefix(f"{kind}_") not in ("y", "prob"):
                ours = NAMES[name.removeprefix(f"{kind}_").removeprefix("ordinal_")]
                assert found[ours] == pytest.approx(float(expected), rel=TOLERANCE, nan_ok=True), name
                compared += 1
    assert compared >= 20


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_equals_scikit_learn(classes: int) -> None:
    labels, p = _sample(classes)
    found, predicted, every = classification_metrics(labels, p), p.argmax(1), list(range(classes))
    precision, recall, f1, _ = sk.precision_recall_fscore_support(labels, predicted, labels=every, average="macro")
    score = p[:, 1] if classes == 2 else p
    one_hot = labels if classes == 2 else np.eye(classes)[labels]
    expected = {
        "accuracy": sk.accuracy_score(labels, predicted),
        "balanced_accuracy": sk.balanced_accuracy_score(labels, predicted),
        "macro_precision": precision,
        "macro_recall": recall,
        "macro_f1": f1,
        "auc": sk.roc_auc_score(labels, score, multi_class="ovr"),
        "auprc": sk.average_precision_score(one_hot, score, average="macro"),
        "quadratic_kappa": sk.cohen_kappa_score(labels, predicted, weights="quadratic"),
        "linear_kappa": sk.cohen_kappa_score(labels, predicted, weights="linear"),
    }
    assert found == pytest.approx(expected | {"ece": found["ece"]}, rel=1e-10)


def test_calibration_error_by_hand() -> None:
    # confidences .95 (right), .95 (wrong) and .55 (wrong): bins .933-1 and .533-.6
    p = np.array([[0.95, 0.05], [0.95, 0.05], [0.45, 0.55]])
    found = calibration_error(np.array([0, 1, 0]), p)
    assert found == pytest.approx((abs(1 - 2 * 0.95) + 0.55) / 3)


def test_an_absent_class_counts_0_in_every_mean_of_what_it_can_have() -> None:
    labels, p = _sample(4)
    labels = np.where(labels == 3, 0, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = classification_metrics(labels, p)
    assert {name for name, value in found.items() if math.isnan(value)} == {"auc", "auprc"}
    kinds = sk.precision_recall_fscore_support(labels, p.argmax(1), labels=range(4), average="macro", zero_division=0)
    expected = dict(zip(("macro_precision", "macro_recall", "macro_f1"), kinds, strict=False))
    expected["balanced_accuracy"] = expected["macro_recall"]
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-10)


def test_balanced_accuracy_and_macro_recall_are_one_number() -> None:
    """Three classes, the third absent; one of two rows of each of the others is right."""
    p = np.array([[0.8, 0.1, 0.1], [0.1, 0.1, 0.8], [0.1, 0.8, 0.1], [0.8, 0.1, 0.1]])
    found = classification_metrics(np.array([0, 0, 1, 1]), p)
    assert found["balanced_accuracy"] == found["macro_recall"] == pytest.approx(1 / 3)
    assert found["macro_precision"] == 0.5
    assert found["macro_f1"] == pytest.approx((0.5 + 2 / 3) / 3)


def test_one_class_only_and_no_row_at_all() -> None:
    all_right = classification_metrics(np.zeros(3, int), np.array([[0.9, 0.1]] * 3), threshold=0.5)
    undefined = {name for name, value in all_right.items() if math.isnan(value)}
    assert undefined == {"auc", "auprc", "quadratic_kappa", "linear_kappa", "sensitivity"}
    empty = classification_metrics(np.zeros(0, int), np.zeros((0, 3)))
    assert all(math.isnan(value) for value in empty.values())
    assert math.isnan(any_class_metrics(np.zeros(0, int), np.zeros((0, 3)))["any_f1"])


def test_probabilities_are_shares() -> None:
    labels, p = _sample(3, ties=False)
    assert classification_metrics(labels, 7 * p) == pytest.approx(classification_metrics(labels, p))


def test_threshold_with_the_best_youden_index() -> None:
    labels, p = _sample(2, ties=False)
    threshold = pick_threshold(labels, p[:, 1])
    found = classification_metrics(labels, p, threshold=threshold)
    false_positive, sensitivity, _ = sk.roc_curve(labels, p[:, 1], drop_intermediate=False)
    assert found["sensitivity"] + found["specificity"] - 1 == pytest.approx((sensitivity - false_positive).max())
    assert threshold not in p[:, 1]


@pytest.mark.parametrize(
    ("labels", "p", "expected"),
    [
        ([0, 0, 1, 1], [0.1, 0.2, 0.6, 0.8], 0.4),
        ([0, 1, 0, 1], [0.1, 0.3, 0.5, 0.7], 0.2),  # .3 and .7 are equally good: the sensitive one
        ([1, 1, 0, 0], [0.1, 0.2, 0.6, 0.8], 0.1),  # upside down: everything is positive
        ([1, 1], [0.2, 0.8], math.nan),
        ([], [], math.nan),
    ],
)
def test_threshold_by_hand(labels: list[int], p: list[float], expected: float) -> None:
    found = pick_threshold(np.array(labels, int), np.array(p, float))
    assert found == pytest.approx(expected, nan_ok=True)


def test_undefined_threshold_gives_undefined_numbers() -> None:
    labels, p = _sample(2)
    found = classification_metrics(labels, p, threshold=math.nan)
    assert math.isnan(found["sensitivity"])
    assert math.isnan(found["specificity"])
    assert "sensitivity" not in classification_metrics(labels, p)
    assert "sensitivity" not in classification_metrics(*_sample(3), threshold=0.5)


def test_equal_scores_count_half() -> None:
    positive, score = np.array([True, False]), np.array([0.5, 0.5])
    assert roc_auc(positive, score) == 0.5
    assert average_precision(positive, score) == 0.5


def test_a_diverged_model_has_no_metrics() -> None:
    with pytest.raises(UserError, match="1 of 2 rows are not finite"):
        classification_metrics(np.array([0, 1]), np.array([[0.5, 0.5], [math.nan, 0.5]]))


@pytest.mark.parametrize(
    ("labels", "p", "message"),
    [
        ([0, 2], [[0.5, 0.5]] * 2, r"labels must lie in 0\.\.1, got 0 to 2"),
        ([0, 1], [[0.5, -0.5]] * 2, "must not be negative"),
        ([0, 1], [[0.0, 0.0]] * 2, "one above zero"),
        ([0], [[0.5, 0.5]] * 2, r"labels \(1,\) and probabilities \(2, 2\)"),
    ],
)
def test_wrong_input_is_refused(labels: list[int], p: list[list[float]], message: str) -> None:
    with unchecked(), pytest.raises(ValueError, match=message):
        classification_metrics(np.array(labels), np.array(p))
