"""What all figures share: colours, sizes that can be read on paper, "n/a" where nothing can be drawn, atomic files."""

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from nnunet_gdla.mil.files import replaced

__all__ = [
    "COLOURS",
    "INK",
    "SOFT",
    "canvas",
    "colour",
    "count_axis",
    "distinct",
    "legend_below",
    "line_style",
    "mark_epochs",
    "number",
    "paper_style",
    "save",
    "say",
    "title",
]

# Okabe and Ito: told apart with any kind of colour vision, and on grey.
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
DASHES: Final = ("-", "--", ":", "-.")
INK: Final = "#222222"
SOFT: Final = "#8A8A8A"
DPI: Final = 150
_BELOW_LABEL: Final = 42  # points under an axis: its numbers and its label

_STYLE: Final[Any] = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.labelsize": 11,
    "legend.fontsize": 9.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "lines.linewidth": 1.8,
    "figure.facecolor": "white",
}


@contextmanager
def paper_style() -> Iterator[None]:
    """Draw in our style whatever the process has set before; the settings come back at the end."""
    with style.context(["default", _STYLE]):
        yield


def canvas(rows: int, columns: int, *, width: float = 4.6, height: float = 3.8) -> tuple[Figure, list[Axes]]:
    """Return an empty figure of `rows` x `columns` axes of the given size in inches, the axes row by row."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.flat)


def colour(place: int) -> str:
    """Return the colour of line number `place`; they come again after eight."""
    return COLOURS[place % len(COLOURS)]


def line_style(place: int) -> dict[str, Any]:
    """Return colour and dashes of line number `place`: as many different lines as there are pairs of the two."""
    return {"color": colour(place), "linestyle": DASHES[place // len(COLOURS) % len(DASHES)]}


def legend_below(axes: Axes, *, columns: int = 2) -> None:
    """Put the legend under an axis and its label, where it hides nothing; the layout makes room."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    below = axes.transAxes + ScaledTranslation(0, -_BELOW_LABEL / 72, figure.dpi_scale_trans)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0), bbox_transform=below, ncols=columns, borderaxespad=0)


def count_axis(axis: Axis) -> None:
    """Label an axis of counts: whole numbers only."""
    axis.set_major_locator(MaxNLocator(integer=True))


def distinct(values: Sequence[float], *, least: int = 2, most: int = 6) -> list[str]:
    """Write numbers with as few digits as tell different ones apart, at least and at most so many."""
    for digits in range(least, most + 1):
        texts = [f"{value:.{digits}g}" for value in values]
        if len(set(texts)) == len(set(values)):
            break
    return texts


def say(axes: Axes, reason: str) -> None:
    """Write why there is nothing to draw into an empty panel."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, f"n/a\n{reason}", ha="center", va="center", wrap=True, color=SOFT, transform=axes.transAxes)


def title(axes: Axes, text: str) -> None:
    """Write a panel's title, in lines that fit its width."""
    axes.set_title(text, wrap=True)


def number(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """Write a number with its interval: `0.812 (0.744 to 0.871)`; undefined is n/a."""
    if value is None or not math.isfinite(value):
        return "n/a"
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return f"{value:.3f}"
    return f"{value:.3f} ({low:.3f} to {high:.3f})"


def mark_epochs(axes: Axes) -> None:
    """Label an axis of epochs: whole numbers only."""
    axes.set_xlabel("epoch")
    count_axis(axes.xaxis)


def save(figure: Figure, path: Path) -> Path:
    """Write a PNG that appears whole or not at all."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a slide's name may be in any script
        replaced(path, lambda unfinished: figure.savefig(unfinished, format="png", dpi=DPI))
    return path
