"""Numbers that describe predictions; one that is undefined for the data at hand is NaN, never a made-up value.

Shape legend (this file): n slides or patients, K classes or time bins.
Written out in numpy, because the bootstrap calls them a thousand times; the tests compare them with scikit-learn.
"""

from collections.abc import Collection
from typing import Final

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil._vectors import Array, Vector, as_vector
from nnunet_gdla.mil.survival_metrics import kaplan_meier, log_rank, survival_metrics
from nnunet_gdla.words import counted

__all__ = [
    "any_class_metrics",
    "average_precision",
    "calibration_error",
    "classification_metrics",
    "cohen_kappa",
    "confusion_matrix",
    "kaplan_meier",
    "log_rank",
    "pick_threshold",
    "roc_auc",
    "survival_metrics",
]

NAN: Final = float("nan")
SUM_TOLERANCE: Final = 1e-6


def classification_metrics(
    labels: Int[Array, " n"],
    probabilities: Float[Array, "n K"],
    *,
    threshold: float | None = None,
    not_drawn: Collection[int] = (),
) -> dict[str, float]:
    """All numbers of a classification.

    Args:
        labels: Class per row, 0 to K-1.
        probabilities: Per class; a row that does not sum to 1 is divided by its sum first.
        threshold: With two classes: rows whose p1 is at or above it count as positive for `sensitivity` and
            `specificity`. Choose it on other data (`pick_threshold`). None leaves the two out.
        not_drawn: Classes that the means over classes leave out: those that a resample of the rows happens not to show
            (`nnunet_gdla.mil.statistics.bootstrap_intervals`).

    Returns:
        `accuracy`; `macro_precision`, `macro_recall`, `macro_f1`, and `balanced_accuracy`, another name of macro
        recall; `auc` and `auprc` (average precision): of p1 with two classes, else the mean of one against the rest.
        Every mean is one over all K classes, as in published tables: a class that no row is of counts 0 in recall,
        precision and F1, and has no AUC, which makes `auc` and `auprc` NaN.
        `quadratic_kappa` and `linear_kappa` (classes in order), NaN where labels and predictions are all one class;
        `ece` (`calibration_error`); `sensitivity`, `specificity`. The predicted class is the most probable one, the
        first of equals. All are NaN without rows.

    Raises:
        UserError: If a probability is not finite (the model has diverged).
        ValueError: If shapes do not fit, a label is no class or a probability is negative.
    """
    share = _checked(labels, probabilities)
    classes = share.shape[1]
    matrix = confusion_matrix(labels, share.argmax(1), classes)
    kept = ~np.isin(np.arange(classes), list(not_drawn))
    metrics = _from_confusion(matrix, kept)
    one_against_rest = [(labels == k, share[:, k]) for k in ([1] if classes == 2 else np.flatnonzero(kept))]
    metrics["auc"] = _mean([roc_auc(positive, score) for positive, score in one_against_rest])
    metrics["auprc"] = _mean([average_precision(positive, score) for positive, score in one_against_rest])
    metrics["quadratic_kappa"] = cohen_kappa(matrix, power=2)
    metrics["linear_kappa"] = cohen_kappa(matrix, power=1)
    metrics["ece"] = calibration_error(labels, share)
    if threshold is not None and classes == 2:
        positive, above = labels == 1, share[:, 1] >= threshold
        known = not np.isnan(threshold)
        metrics["sensitivity"] = _mean(above[positive]) if known else NAN
        metrics["specificity"] = _mean(~above[~positive]) if known else NAN
    return metrics


def any_class_metrics(labels: Int[Array, " n"], probabilities: Float[Array, "n K"]) -> dict[str, float]:
    """Grades read as absent (class 0) or present (any other): `any_f1` of the predicted class, `any_auc` of 1 - p0.

    Raises:
        UserError, ValueError: As `classification_metrics`.
    """
    share = _checked(labels, probabilities)
    present, predicted = labels > 0, share.argmax(1) > 0
    total = int(present.sum() + predicted.sum())
    f1 = 2 * int((present & predicted).sum()) / total if total else NAN
    return {"any_f1": f1, "any_auc": roc_auc(present, 1 - share[:, 0])}


def pick_threshold(labels: Int[Array, " n"], p: Float[Array, " n"]) -> float:
    """Choose the threshold with the largest Youden index (sensitivity + specificity - 1), on validation data.

    Args:
        labels: 0 or 1.
        p: Probability of class 1.

    Returns:
        The middle between the lowest p that counts as positive and the next lower one, so that new data need not hit a
        value exactly; of several equally good ones the most sensitive. NaN where a class is absent.

    Raises:
        UserError: If a probability is not finite.
        ValueError: If lengths differ.
    """
    _checked(labels, np.stack([1 - p, p], 1))
    positive = labels == 1
    if positive.all() or not positive.any():
        return NAN
    values, where = np.unique(p, return_inverse=True)
    hits = np.bincount(where, positive, len(values))
    alarms = np.bincount(where, ~positive, len(values))
    # index i: values[i] and above are positive; values[0] would call everything positive, Youden 0
    youden = hits[::-1].cumsum()[::-1] / hits.sum() - alarms[::-1].cumsum()[::-1] / alarms.sum()
    best = int(np.argmax(np.round(youden, 12)))
    return float(values[0] if best == 0 else (values[best - 1] + values[best]) / 2)


def confusion_matrix(
    labels: Int[Array, " n"],
    predicted: Int[Array, " n"],
    classes: int,
) -> Int[Array, "K K"]:
    """Count rows by label (first axis) and predicted class (second axis)."""
    return np.bincount(labels * classes + predicted, minlength=classes**2).reshape(classes, classes)


def roc_auc(positive: Shaped[Array, " n"], score: Float[Array, " n"]) -> float:
    """Chance that a positive scores above a negative, equal scores 1/2; NaN without both kinds."""
    total = int(positive.sum())
    if not 0 < total < len(score):
        return NAN
    values, where = np.unique(score, return_inverse=True)
    hits, all_rows = np.bincount(where, positive, len(values)), np.bincount(where, minlength=len(values))
    misses = all_rows - hits
    below = misses.cumsum() - misses
    return float((hits * (below + 0.5 * misses)).sum() / (total * (len(score) - total)))


def average_precision(positive: Shaped[Array, " n"], score: Float[Array, " n"]) -> float:
    """Mean precision at the positives, the area under the step-wise precision-recall curve; NaN without both kinds."""
    total = int(positive.sum())
    if not 0 < total < len(score):
        return NAN
    values, where = np.unique(score, return_inverse=True)
    hits = np.bincount(where, positive, len(values))[::-1]
    all_rows = np.bincount(where, minlength=len(values))[::-1]
    return float((hits / total * (hits.cumsum() / all_rows.cumsum())).sum())


def cohen_kappa(matrix: Int[Array, "K K"], *, power: int) -> float:
    """Agreement above chance of ordered classes, disagreements weighted by their distance to this power (1 or 2)."""
    index = np.arange(len(matrix))
    weight = np.abs(index[:, None] - index).astype(np.float64) ** power
    total = matrix.sum()
    expected = (weight * np.outer(matrix.sum(1), matrix.sum(0))).sum()
    # both marginals in one and the same class: no disagreement is possible, and no agreement above chance
    return float(1 - total * (weight * matrix).sum() / expected) if expected else NAN


def calibration_error(
    labels: Int[Array, " n"],
    probabilities: Float[Array, "n K"],
    *,
    bins: int = 15,
) -> float:
    """Expected calibration error: mean over rows of |accuracy - mean confidence| of the row's bin of confidence.

    Confidence is the highest probability of a row; `bins` bins of equal width between 0 and 1, closed above.
    Reference: Guo et al. 2017 (arXiv:1706.04599).
    """
    if not len(labels):
        return NAN
    confidence = probabilities.max(1)
    right = probabilities.argmax(1) == labels
    where = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    gap = np.bincount(where, right - confidence, bins)
    return float(np.abs(gap).sum() / len(labels))


def _checked(labels: Array, probabilities: Array) -> Array:
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1] or probabilities.shape[1] < 2:
        raise ValueError(
            f"labels {labels.shape} and probabilities {probabilities.shape} must be (n,) and (n, K), K > 1"
        )
    classes = probabilities.shape[1]
    if bad := int((~np.isfinite(probabilities).all(1)).sum()):
        raise UserError(
            f"the probabilities of {bad} of {counted(len(labels), 'row')} are not finite: the model has diverged"
        )
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        raise ValueError(f"labels must lie in 0..{classes - 1}, got {labels.min()} to {labels.max()}")
    total = probabilities.astype(np.float64).sum(1, keepdims=True)
    if (probabilities < 0).any() or (total <= 0).any():
        raise ValueError("probabilities must not be negative, and every row must have one above zero")
    # what is a share already stays as it is: dividing by 1 - 1e-16 would tear equal probabilities apart
    share: Array = probabilities / np.where(np.abs(total - 1) > SUM_TOLERANCE, total, 1.0)
    return share


def _from_confusion(matrix: Int[Array, "K K"], kept: Bool[Array, " K"]) -> dict[str, float]:
    hits, labelled, predicted = np.diag(matrix), matrix.sum(1), matrix.sum(0)
    if not matrix.sum():
        return dict.fromkeys(("accuracy", "balanced_accuracy", "macro_precision", "macro_recall", "macro_f1"), NAN)
    recall = hits / np.maximum(labelled, 1)
    return {
        "accuracy": float(hits.sum() / matrix.sum()),
        "balanced_accuracy": float(recall[kept].mean()),
        "macro_precision": float((hits / np.maximum(predicted, 1))[kept].mean()),
        "macro_recall": float(recall[kept].mean()),
        "macro_f1": float((2 * hits / np.maximum(labelled + predicted, 1))[kept].mean()),
    }


def _mean(values: Vector) -> float:
    vector = as_vector(values, "values")
    return float(vector.mean()) if len(vector) else NAN
