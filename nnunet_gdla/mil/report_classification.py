"""Figures of a classification: ROC and precision-recall curves, confusion matrix, reliability.

Shape legend (this file): n slides or patients, K classes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.metrics import precision_recall_curve, roc_curve

from nnunet_gdla.mil.figures import INK, SOFT, canvas, colour, count_axis, legend_below, number, say, title
from nnunet_gdla.mil.metrics import average_precision, confusion_matrix, roc_auc
from nnunet_gdla.mil.statistics import bootstrap_intervals

__all__ = ["Scored", "class_intervals", "draw_confusion", "draw_reliability", "draw_roc_pr", "scored"]

BINS: Final = 15  # those of the calibration error
DRAWS: Final = 1000  # behind the intervals of single classes


@dataclass(frozen=True)
class Scored:
    """Predictions that can be drawn: class numbers (n), probabilities (n, K), class names, and what a row is."""

    labels: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    classes: tuple[str, ...]
    unit: str

    @property
    def count(self) -> str:
        """Return how many rows there are, in words."""
        return f"n = {len(self.labels)} {self.unit}{'' if len(self.labels) == 1 else 's'}"


def scored(predictions: pd.DataFrame, unit: str) -> Scored | str:
    """Read a table of predictions; a sentence where it cannot be drawn.

    Args:
        predictions: Columns `label` and one `prob_<class>` per class.
        unit: "slide" or "patient".
    """
    columns = [name for name in predictions.columns if name.startswith("prob_")]
    classes = tuple(name.removeprefix("prob_") for name in columns)
    if "label" not in predictions or not columns:
        return "no labels or no probabilities"
    known = predictions[predictions["label"].astype(str).isin(classes)]
    if known.empty:
        return f"no {unit} with a label"
    probabilities = known[columns].to_numpy(float)
    if not np.isfinite(probabilities).all():
        return f"{int((~np.isfinite(probabilities).all(1)).sum())} {unit}s have a probability that is not a number"
    labels = known["label"].astype(str).map({name: place for place, name in enumerate(classes)}).to_numpy(np.int64)
    return Scored(labels, probabilities, classes, unit)


def draw_roc_pr(
    data: list[Scored | str],
    intervals: Mapping[str, Mapping[str, str]],
    by_class: Mapping[tuple[str, str], Mapping[str, str]] | None = None,
) -> Figure:
    """Draw ROC and precision-recall curves: of the second of two classes, or one class against the rest.

    Args:
        data: The slides, and the patients where these are fewer (dashed).
        intervals: For each unit the text of `auc` and `auprc` with their intervals, of two classes.
        by_class: The same for each unit and class, of more than two.
    """
    entries = sum(max(1, len(each.classes) - (len(each.classes) == 2)) for each in data if not isinstance(each, str))
    figure, (roc, pr) = canvas(1, 2, width=5.6, height=6.2 + 0.45 * math.ceil(entries / 2))
    title(roc, "ROC")
    title(pr, "Precision and recall (AP: average precision)")
    for each in data:
        if isinstance(each, str):
            say(roc, each)
            say(pr, each)
            return figure
        for place in range(1, 2) if len(each.classes) == 2 else range(len(each.classes)):
            of_two = intervals.get(each.unit, {}) if len(each.classes) == 2 else {}
            _curves(roc, pr, each, place, (by_class or {}).get((each.unit, each.classes[place]), of_two))
    roc.plot([0, 1], [0, 1], color=SOFT, linestyle=":", linewidth=1)
    for axes, across, up in ((roc, "1 - specificity", "sensitivity"), (pr, "recall", "precision")):
        axes.set(xlabel=across, ylabel=up, xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        axes.set_box_aspect(1)
        axes.set_anchor("N")  # the room that a square leaves is the legend's
        legend_below(axes)
    return figure


def class_intervals(tables: Mapping[str, pd.DataFrame]) -> dict[tuple[str, str], dict[str, str]]:
    """Return the text of `auc` and `auprc` of each class against the rest, with intervals from drawing patients.

    Args:
        tables: Predictions by unit. Of two classes nothing is computed: their intervals are in the files of the run.
    """
    found = {}
    for unit, table in tables.items():
        data = scored(table, unit)
        if isinstance(data, str) or len(data.classes) == 2:
            continue
        point = _class_areas(table, data.classes)
        drawn = bootstrap_intervals(table, partial(_class_areas, classes=data.classes), n=DRAWS)
        for name in data.classes:
            keys = {metric: f"{metric} {name}" for metric in ("auc", "auprc")}
            found[unit, name] = {m: number(point[key], drawn[key].low, drawn[key].high) for m, key in keys.items()}
    return found


def _class_areas(table: pd.DataFrame, classes: tuple[str, ...]) -> dict[str, float]:
    label, areas = table["label"].astype(str).to_numpy(), {}
    for name in classes:
        score = table[f"prob_{name}"].to_numpy(float)
        areas[f"auc {name}"] = roc_auc(label == name, score)
        areas[f"auprc {name}"] = average_precision(label == name, score)
    return areas


def _curves(roc: Axes, pr: Axes, data: Scored, place: int, shown: Mapping[str, str]) -> None:
    truth, score = data.labels == place, data.probabilities[:, place]
    name = f"{data.classes[place]}: {truth.sum()} of {len(truth)} {data.unit}s"
    style: dict[str, Any] = {"color": colour(place), "linestyle": "-" if data.unit == "slide" else "--"}
    if truth.all() or not truth.any():
        for axes in (roc, pr):
            reason = f"{'only' if truth.all() else 'no'} {data.classes[place]} here"
            axes.plot([], [], **style, label=f"{name}\nn/a: {reason}")
        return
    false_positive, true_positive, _ = roc_curve(truth, score, drop_intermediate=False)
    precision, recall, _ = precision_recall_curve(truth, score)
    area = shown.get("auc") or number(roc_auc(truth, score))
    precise = shown.get("auprc") or number(average_precision(truth, score))
    roc.plot(false_positive, true_positive, **style, label=f"{name}\nAUC {area}")
    pr.plot(recall, precision, **style, drawstyle="steps-post", label=f"{name}\nAP {precise}")
    pr.axhline(truth.mean(), color=style["color"], linestyle=":", linewidth=1)


def draw_confusion(data: Scored | str, threshold: float | None) -> Figure:
    """Draw how many of each class went where; for two classes also at the threshold chosen on validation."""
    if isinstance(data, str):
        figure, (axes,) = canvas(1, 1)
        say(axes, data)
        return figure
    chosen = [("largest probability", data.probabilities.argmax(1))]
    if threshold is not None and len(data.classes) == 2:
        name = f"{data.classes[1]} from p = {threshold:.3f} on, as chosen on validation"
        chosen.append((name, (data.probabilities[:, 1] >= threshold).astype(np.int64)))
    side = max(4.4, 0.75 * len(data.classes) + 2.4)
    figure, panels = canvas(1, len(chosen), width=side, height=side)
    for axes, (name, predicted) in zip(panels, chosen, strict=True):
        counts = confusion_matrix(data.labels, predicted, len(data.classes))
        _matrix(axes, counts, data.classes)
        title(axes, f"{name}\n{data.count}")
    return figure


def _matrix(axes: Axes, counts: NDArray[np.int64], classes: tuple[str, ...]) -> None:
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    for row, column in np.ndindex(*counts.shape):
        text = f"{counts[row, column]}\n{share[row, column]:.0%}" if counts[row].sum() else "0\nn/a"
        ink = "white" if share[row, column] > 0.6 else INK
        axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=10)
    ticks = range(len(classes))
    long = max(map(len, classes)) > 6
    axes.set_xticks(ticks, classes, rotation=45 if long else 0, ha="right" if long else "center")
    axes.set_yticks(ticks, classes)
    axes.set(xlabel="predicted", ylabel="true (percent of the row)")
    axes.grid(visible=False)


def draw_reliability(data: Scored | str, ece: str | None) -> Figure:
    """Draw how often the predicted class is right against the probability that the model gave it."""
    figure, axes = canvas(2, 1, width=5.0, height=2.9)
    if isinstance(data, str):
        say(axes[0], data)
        axes[1].set_axis_off()
        return figure
    confidence, predicted = data.probabilities.max(1), data.probabilities.argmax(1)
    right = predicted == data.labels
    edges = np.linspace(0, 1, BINS + 1)
    places = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, BINS - 1)
    for place in np.unique(places):
        inside = places == place
        share, low, high = _wilson(int(right[inside].sum()), int(inside.sum()))
        error = [[share - low], [high - share]]
        axes[0].errorbar(confidence[inside].mean(), share, error, fmt="o", color=colour(0), capsize=3)
    axes[0].plot([0, 1], [0, 1], color=SOFT, linestyle=":", linewidth=1)
    axes[0].set(ylabel="share that is right", ylim=(-0.02, 1.02))
    title(axes[0], f"Reliability of the predicted class, {data.count}\nECE {ece or 'n/a'}; bars: 95 % (Wilson)")
    axes[1].hist(confidence, bins=list(edges), color=colour(0))
    axes[1].set(xlabel="probability of the predicted class", ylabel=f"{data.unit}s")
    count_axis(axes[1].yaxis)
    for each in axes:
        each.set_xlim(0, 1)
    return figure


def _wilson(hits: int, n: int) -> tuple[float, float, float]:
    """Return share and 95 % interval of `hits` of `n`."""
    z, share = 1.959964, hits / n
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    return share, min(share, float(middle - half)), max(share, float(middle + half))
