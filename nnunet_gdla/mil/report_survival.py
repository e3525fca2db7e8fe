"""Figures of a survival model: Kaplan-Meier of low and high risk, distribution of the risk."""

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from nnunet_gdla.mil.figures import INK, SOFT, canvas, colour, count_axis, legend_below, number, say, title
from nnunet_gdla.mil.survival_metrics import kaplan_meier, log_rank
from nnunet_gdla.words import counted

__all__ = ["draw_kaplan_meier", "draw_risk"]

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


def draw_kaplan_meier(patients: pd.DataFrame, cut: float | None, c_index: str) -> Figure:
    """Draw survival of the patients above and below the median risk of the training patients.

    Args:
        patients: Columns `time`, `event`, `risk`, one row per patient.
        cut: That median; None where the bundle does not hold it.
        c_index: C-index with interval as text.
    """
    figure, (axes,) = canvas(1, 1, width=9.4, height=5.2)
    rows = _usable(patients)
    if isinstance(rows, str) or cut is None:
        say(axes, rows if isinstance(rows, str) else "the bundle holds no median risk of the training patients")
        return figure
    time, event, risk = (rows[name].to_numpy(float) for name in ("time", "event", "risk"))
    high, seen = risk > cut, event > 0
    lines = []
    for place, (name, group) in enumerate((("low risk", ~high), ("high risk", high))):
        if not group.any():
            lines.append(f"{name}: no patient")
            continue
        label = f"{name}: n = {group.sum()}, {counted(int(seen[group].sum()), 'event')}"
        _curve(axes, time[group], seen[group], {"color": colour(place), "linestyle": ("-", "--")[place]}, label)
    p = log_rank(time, seen, high)
    lines.append(f"log-rank p {_p_text(p)}")
    lines.append(f"C-index {c_index}")
    axes.set(xlabel="time (unit of the table)", ylabel="share without event", ylim=(-0.02, 1.05))
    axes.set_xlim(left=0)
    # beside the axes: no corner is free of curves, bands and censoring marks in every cohort
    axes.legend(title="\n".join(lines), loc="upper left", bbox_to_anchor=(1.02, 1), alignment="left", borderaxespad=0)
    title(
        axes, f"Kaplan-Meier, {counted(len(rows), 'patient')}, cut at the training median risk ({cut:.3f}); bands: 95 %"
    )
    _at_risk(axes, time, {"low": ~high, "high": high})
    return figure


def draw_risk(patients: pd.DataFrame, cut: float | None) -> Figure:
    """Draw how the risks are spread, with and without event."""
    figure, (axes,) = canvas(1, 1, width=5.6, height=4.3)
    rows = _usable(patients)
    if isinstance(rows, str):
        say(axes, rows)
        return figure
    risk, seen = rows["risk"].to_numpy(float), rows["event"].to_numpy(float) > 0
    low, high = float(risk.min()), float(risk.max())
    edges = list(np.linspace(low, high if high > low else low + 1e-6, 21))
    labels = [f"event (n = {int(seen.sum())})", f"censored (n = {int((~seen).sum())})"]
    axes.hist([risk[seen], risk[~seen]], bins=edges, stacked=True, color=[colour(1), colour(0)], label=labels)
    if cut is not None:
        axes.axvline(cut, color=INK, linestyle="--", linewidth=1.2, label="training median")
    axes.set(xlabel="risk (minus the sum of the survival chances; higher is worse)", ylabel="patients")
    count_axis(axes.yaxis)
    legend_below(axes, columns=3)
    title(axes, f"Risk, {counted(len(rows), 'patient')}")
    return figure


def _usable(patients: pd.DataFrame) -> pd.DataFrame | str:
    if not {"time", "event", "risk"} <= set(patients.columns):
        return "the predictions hold no time, event and risk"
    rows = patients[["time", "event", "risk"]].apply(pd.to_numeric, errors="coerce")
    if rows["risk"].isna().any() or not np.isfinite(rows["risk"]).all():
        return f"{counted(int((~np.isfinite(rows['risk'])).sum()), 'patient')} with a risk that is not a number"
    rows = rows.dropna()
    return rows if len(rows) else "no patient with time and event"


def _curve(axes: Axes, time: Floats, event: Bools, style: dict[str, Any], label: str) -> None:
    ink = style["color"]
    curve = kaplan_meier(time, event)
    low, high = (np.where(np.isnan(bound), curve.survival, bound) for bound in (curve.low, curve.high))
    axes.fill_between(curve.time, low, high, step="post", color=ink, alpha=0.15, linewidth=0)
    axes.step(curve.time, curve.survival, where="post", **style, label=label)
    lost = time[~event]
    axes.plot(lost, curve.survival[np.searchsorted(curve.time, lost)], "|", color=ink, markersize=7)


def _at_risk(axes: Axes, time: Floats, groups: dict[str, Bools]) -> None:
    """Write under the axis how many patients of each group are still followed."""
    ticks = [tick for tick in axes.get_xticks() if 0 <= tick <= time.max()]
    axes.set_xticks(ticks)
    for line, (name, group) in enumerate(groups.items()):
        below = -0.2 - 0.06 * line
        across = axes.get_xaxis_transform()
        axes.text(-0.04, below, f"{name}, at risk", ha="right", transform=axes.transAxes, color=SOFT, fontsize=9)
        for tick in ticks:
            count = str(int((time[group] >= tick).sum()))
            axes.text(tick, below, count, ha="center", transform=across, color=INK, fontsize=9)


def _p_text(p: float) -> str:
    if math.isnan(p):
        return "n/a"
    return "< 0.001" if p < 0.001 else f"= {number(p)}"
