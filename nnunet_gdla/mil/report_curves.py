"""Figures of a training: losses, validation metrics, learning rate, and what the gates did from epoch to epoch."""

from typing import Final

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nnunet_gdla.mil.figures import INK, SOFT, canvas, colour, legend_below, line_style, mark_epochs, say, title
from nnunet_gdla.mil.gates import REGIMES

__all__ = ["draw_curves", "draw_gates"]

# Darker is stronger: pushed away, left alone, projected out, mirrored.
_REGIME_COLOURS: Final = {"anti": "#D55E00", "identity": "#D9D9D9", "projection": "#56B4E9", "reflection": "#0072B2"}
_REGIME_NAMES: Final = {
    "anti": "anti (β ≤ -0.5)",
    "identity": "near identity (-0.5 to 0.5)",
    "projection": "projection (0.5 to 1.5)",
    "reflection": "reflection (β > 1.5)",
}


def draw_curves(history: pd.DataFrame, best_epoch: float | None = None) -> Figure:
    """Draw losses, validation metrics and the learning rate over the epochs.

    Args:
        history: One row per epoch, columns as in `logs/metrics.csv`.
        best_epoch: Epoch of the weights that were kept, counted from 1 as in the figure.
    """
    names = [name for name in history.columns if name.startswith("val_") and name != "val_loss"]
    figure, (losses, metrics, rates) = canvas(1, 3, height=4.2 + 0.11 * len(names))
    _lines(losses, history, [name for name in ("train_loss", "val_loss") if name in history], "loss (nats per slide)")
    _lines(metrics, history, names, "value on validation")
    rate = next((name for name in history.columns if name == "lr" or name.startswith("lr")), None)
    _lines(rates, history, [rate] if rate else [], "learning rate at the end of the epoch")
    rates.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    for axes, text in ((losses, "Loss"), (metrics, "Validation metrics"), (rates, "Learning rate")):
        title(axes, text)
        if best_epoch is not None and axes.axison:
            axes.axvline(best_epoch, color=SOFT, linestyle=":", linewidth=1.2, zorder=0, label="kept weights")
            legend_below(axes)
    return figure


def draw_gates(gates: pd.DataFrame) -> Figure:
    """Draw the mean coefficient of every active block over the epochs, and the shares of the four regimes.

    Args:
        gates: Columns as in `gates.csv`: validation slides, every slide counting once.
    """
    blocks = sorted(map(int, gates["block"].unique()))
    columns = min(4, 1 + max(1, len(blocks)))
    figure, axes = canvas(int(np.ceil((1 + max(1, len(blocks))) / columns)), columns, width=4.2, height=4.2)
    for spare in axes[1 + max(1, len(blocks)) :]:
        spare.set_axis_off()
    if not blocks:
        for each in axes[:2]:
            say(each, "this model has no gates, or no epoch is finished")
        return figure
    _trajectories(axes[0], gates, blocks)
    for place, (each, block) in enumerate(zip(axes[1:], blocks, strict=False)):
        _shares(each, gates[gates["block"] == block].sort_values("epoch"), block, legend=place == 0)
    figure.legend(
        *axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=4, title="share of heads and patches"
    )
    return figure


def _lines(axes: Axes, history: pd.DataFrame, names: list[str], label: str) -> None:
    drawn = 0
    for place, name in enumerate(names):
        values = pd.to_numeric(history[name], errors="coerce")
        seen = np.isfinite(values)
        if seen.any():
            shown = name.removeprefix("val_") if label.endswith("on validation") else name
            axes.plot(
                history["epoch"][seen] + 1, values[seen], **line_style(place), marker="o", markersize=3, label=shown
            )
            drawn += 1
    if not drawn:
        say(axes, "nothing was logged")
        return
    axes.set_ylabel(label)
    mark_epochs(axes)
    legend_below(axes)


def _trajectories(axes: Axes, gates: pd.DataFrame, blocks: list[int]) -> None:
    for place, block in enumerate(blocks):
        rows = gates[gates["block"] == block].sort_values("epoch")
        epoch, mean, spread = (rows[name].to_numpy(float) for name in ("epoch", "mean", "std"))
        epoch = epoch + 1
        axes.plot(epoch, mean, **line_style(place), marker="o", markersize=3, label=f"block {block}")
        axes.fill_between(epoch, mean - spread, mean + spread, color=colour(place), alpha=0.15, linewidth=0)
    for border in (-0.5, 0.5, 1.5):
        axes.axhline(border, color=SOFT, linewidth=0.8, linestyle=":")
    axes.axhline(0, color=INK, linewidth=0.8)
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, -0.6), max(high, 0.6))
    axes.set_ylabel("β: mean, band ± 1 s.d.")
    mark_epochs(axes)
    legend_below(axes, columns=3)
    title(axes, "Gate coefficients")


def _shares(axes: Axes, rows: pd.DataFrame, block: int, *, legend: bool) -> None:
    epoch = rows["epoch"].to_numpy(float) + 1
    shares = np.nan_to_num(np.stack([rows[name].to_numpy(float) for name in REGIMES]))
    floor = np.zeros_like(epoch)
    for name, share in zip(REGIMES, shares, strict=True):
        label = _REGIME_NAMES[name] if legend else None
        axes.bar(epoch, share, bottom=floor, width=0.9, color=_REGIME_COLOURS[name], label=label)
        floor += share
    axes.set_ylim(0, 1)
    axes.set_ylabel("share")
    mark_epochs(axes)
    title(axes, f"Block {block}")
