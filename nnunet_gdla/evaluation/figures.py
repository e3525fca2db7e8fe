"""Figures: a box a class for one evaluation, paired differences for two.

Shape legend (this file): N cases.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from nnunet_gdla.evaluation.conventions import METRICS
from nnunet_gdla.evaluation.files import replaced
from nnunet_gdla.evaluation.missed import left_out, outcomes
from nnunet_gdla.evaluation.results import Results
from nnunet_gdla.words import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_boxes", "draw_differences"]

Columns = dict[str, Float[np.ndarray, " N"]]

_BOX, _POINT, _MARK = "#56B4E9", "#333333", "#D55E00"  # Okabe and Ito
_DPI = 130
_WIDEST = 40.0
_LABELS = {
    "dice": "Dice",
    "iou": "IoU",
    "hd95": "HD95 ({unit})",
    "assd": "ASSD ({unit})",
    "nsd": "NSD at {tolerance:g} {unit}",
    "pixel_accuracy": "pixel accuracy",
}


def draw_boxes(results: Results, path: Path) -> None:
    """Draw a panel a metric with a box a class and a point a case; it appears whole or not at all."""

    def panel(axes: "Axes", metric: str) -> None:
        columns = {name: results.values[metric][:, column] for column, name in enumerate(results.classes)}
        defined = {place: values[~np.isnan(values)] for place, values in enumerate(columns.values())}
        filled = {place: values for place, values in defined.items() if len(values)}
        if filled:
            style = {"facecolor": _BOX, "alpha": 0.6}
            axes.boxplot(
                list(filled.values()),
                positions=list(filled),
                widths=0.6,
                showfliers=False,
                patch_artist=True,
                boxprops=style,
                medianprops={"color": _MARK, "linewidth": 2},
            )
        for place, values in filled.items():
            axes.scatter(_spread(place, len(values)), values, s=8, color=_POINT, alpha=0.5, linewidths=0, zorder=3)

    title = f"{counted(len(results.cases), 'case')}, {results.convention} convention"
    _draw(results, title, panel, path)


def draw_differences(results: Results, differences: dict[str, Columns], title: str, path: Path) -> None:
    """Draw a panel a metric with the paired differences of each class, their mean, and a line at zero.

    Args:
        results: Of the first model, for units and classes.
        differences: By metric and class, defined pairs only.
        title: Above the figure.
        path: PNG to write; it appears whole or not at all.
    """

    def panel(axes: "Axes", metric: str) -> None:
        axes.axhline(0, color="#999999", linewidth=1)
        for place, values in enumerate(differences[metric].values()):
            if len(values):
                axes.scatter(_spread(place, len(values)), values, s=10, color=_BOX, linewidths=0)
                axes.plot([place - 0.3, place + 0.3], [values.mean()] * 2, color=_MARK, linewidth=2)

    _draw(results, title, panel, path)


def _draw(results: Results, title: str, panel: Callable[["Axes", str], None], path: Path) -> None:
    from matplotlib import style

    # nnU-Net's progress plot changes matplotlib's settings for the whole process
    with style.context("default"):
        _draw_panels(results, title, panel, path)


def _draw_panels(results: Results, title: str, panel: Callable[["Axes", str], None], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    many = len(results.classes)
    width = min(_WIDEST, 3 * max(3.4, 1.2 + 0.55 * many))
    figure = Figure(figsize=(width, 7.2), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(_plain(title))
    for axes, metric in zip(figure.subplots(2, 3).flat, METRICS, strict=True):
        panel(axes, metric)
        axes.set_title(_title(results, metric), fontsize=11)
        _label_classes(axes, results.classes)
        if not axes.collections:
            axes.text(0.5, 0.5, "undefined, or not comparable", transform=axes.transAxes, ha="center", color="#666666")
    options: dict[str, Any] = {"format": "png", "dpi": _DPI}
    replaced(path, lambda unfinished: figure.savefig(unfinished, **options))


def _title(results: Results, metric: str) -> str:
    """Name a metric; a second line says how many objects it leaves out because they were missed or false positives."""
    title = _LABELS[metric].format(unit=results.unit, tolerance=results.tolerance)
    found = outcomes(results)
    hidden = 0 if found is None else int((left_out(results, metric) & (found.missed | found.false)).sum())
    return f"{title}\n{hidden} missed or false left out" if hidden else title


def _label_classes(axes: "Axes", classes: Sequence[str]) -> None:
    slanted = max(map(len, classes)) * len(classes) > 24
    axes.set_xticks(range(len(classes)))
    axes.set_xticklabels(
        [_plain(name) for name in classes],
        rotation=45 if slanted else 0,
        ha="right" if slanted else "center",
        fontsize=9 if len(classes) <= 40 else 6,
    )
    axes.set_xlim(-0.6, len(classes) - 0.4)
    axes.grid(axis="y", color="#e5e5e5")
    axes.set_axisbelow(True)


def _plain(text: str) -> str:
    return text.replace("$", r"\$")  # a name is no formula


def _spread(place: int, count: int) -> Float[np.ndarray, " N"]:
    """Set points beside each other, the same way every time."""
    return place + np.random.default_rng(0).uniform(-0.18, 0.18, count)
