"""What an evaluation leaves: metrics.csv, summary.json, boxplot.png, and a table for the terminal."""

import math
from pathlib import Path
from typing import Any

from nnunet_gdla.evaluation.conventions import METRICS, convention
from nnunet_gdla.evaluation.figures import draw_boxes
from nnunet_gdla.evaluation.files import OPTION, write_json
from nnunet_gdla.evaluation.missed import missed_notes, outcomes_as_json
from nnunet_gdla.evaluation.results import MEAN, METRICS_FILE, SUMMARY_FILE, Results, foreground_mean, write_metrics
from nnunet_gdla.evaluation.small_samples import interval_remark, table_notes
from nnunet_gdla.evaluation.statistics import Summary, summarise
from nnunet_gdla.files import together

__all__ = [
    "FIGURE_FILE",
    "Summaries",
    "align",
    "metric_name",
    "metric_title",
    "summarise_results",
    "summary_notes",
    "summary_table",
    "write_report",
]

FIGURE_FILE = "boxplot.png"
_WIDTH = 120
Summaries = dict[str, dict[str, Summary]]

_TITLES = {"dice": "Dice", "iou": "IoU", "hd95": "HD95", "assd": "ASSD", "nsd": "NSD", "pixel_accuracy": "accuracy"}


def metric_name(metric: str) -> str:
    """Return the name of a metric, one of `METRICS`, without its unit."""
    return _TITLES[metric]


def metric_title(metric: str, unit: str, tolerance: int | float) -> str:
    """Return the name of a metric for tables and figures, with its unit.

    Args:
        metric: One of `METRICS`.
        unit: Of distances, "mm" or "voxels".
        tolerance: Of NSD, in this unit.
    """
    title = _TITLES[metric]
    if metric in {"hd95", "assd"}:
        return f"{title} {unit}"
    return f"{title} {tolerance:g} {unit}" if metric == "nsd" else title


def summarise_results(results: Results, *, draws: int, seed: int) -> Summaries:
    """Summarise every metric over cases, for each class and for the mean over classes.

    Args:
        results: All numbers.
        draws: Resamples of the bootstrap that intervals come from.
        seed: Same seed, same intervals.

    Returns:
        By class, then by metric.
    """
    columns = {metric: results.columns(metric) for metric in METRICS}
    return {
        name: {metric: summarise(columns[metric][name], draws=draws, seed=seed) for metric in METRICS}
        for name in (*results.classes, MEAN)
    }


def write_report(results: Results, summaries: Summaries, folder: Path, *, draws: int, seed: int) -> None:
    """Write all files, or none of them.

    Args:
        results: All numbers.
        summaries: Of these results.
        folder: Where to; made if need be.
        draws: Resamples that the intervals come from.
        seed: Their seed.

    Raises:
        WriteError: If one cannot be written.
    """
    content: dict[str, Any] = {
        "convention": results.convention,
        "rules": convention(results.convention, results.missed).rules,
        "unit": results.unit,
        "tolerance": results.tolerance,
        "missed": results.missed,
        "cases": len(results.cases),
        "remarks": results.remarks,
        "cases_without_prediction": results.missing,
        "predictions_without_truth": results.extra,
        "interval": {"level": 0.95, "method": "percentile bootstrap over cases", "draws": draws, "seed": seed},
        "classes": {name: _as_json(summaries[name]) for name in results.classes},
        "mean_over_classes": _as_json(summaries[MEAN]),
        "foreground_mean_as_in_nnunet": foreground_mean(results),
        "objects": outcomes_as_json(results),
    }
    with together(folder, option=OPTION):
        write_metrics(results, folder / METRICS_FILE)
        draw_boxes(results, folder / FIGURE_FILE)
        write_json(folder / SUMMARY_FILE, content)


def summary_table(results: Results, summaries: Summaries) -> str:
    """Return the means and their intervals; with a single class its row is the mean over classes too.

    Where all metrics side by side would be wider than a terminal, there are two tables or more below each other.
    """
    names = results.classes if len(results.classes) == 1 else (*results.classes, MEAN)
    header = ["class", *(metric_title(metric, results.unit, results.tolerance) for metric in METRICS)]
    rows = [header, *([name, *(_cell(summaries[name][metric]) for metric in METRICS)] for name in names)]
    return "\n\n".join(align(part) for part in _narrowed(rows))


def summary_notes(results: Results, summaries: Summaries) -> str:
    """Return, for below the table, which mean is which, what was missed, and which intervals are not to be trusted."""
    nnunets = foreground_mean(results)
    numbers = ", ".join(
        f"{name} " + ("undefined" if math.isnan(mean) else f"{mean:.3f}") for name, mean in nnunets.items()
    )
    means = "nnU-Net's foreground_mean, every class averaged over its cases, then over classes"
    if len(results.classes) > 1:
        means = f"{MEAN}: every case averaged over the classes defined in it, then over cases\n{means}"
    return (
        f"\n\n{means}: {numbers}"
        + missed_notes(results)
        + table_notes((metric.n for metrics in summaries.values() for metric in metrics.values()), interval_remark)
    )


def align(rows: list[list[str]]) -> str:
    """Set the cells of a table under each other, two spaces apart."""
    widths = _widths(rows)
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _narrowed(rows: list[list[str]]) -> list[list[list[str]]]:
    """Divide a table into as few as fit the width, evenly; the first column stands in each."""
    first, *others = _widths(rows)
    for parts in range(1, len(others) + 1):
        size = math.ceil(len(others) / parts)
        starts = range(0, len(others), size)
        if all(first + sum(2 + width for width in others[start : start + size]) <= _WIDTH for start in starts):
            break
    return [[[row[0], *row[1 + start : 1 + start + size]] for row in rows] for start in starts]


def _widths(rows: list[list[str]]) -> list[int]:
    return [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]


def _cell(summary: Summary) -> str:
    if not summary.n:
        return "undefined"
    digits = 3 if abs(summary.mean) < 10 else 1
    text = f"{summary.mean:.{digits}f}"
    if summary.n > 1:
        text += f" [{summary.low:.{digits}f}, {summary.high:.{digits}f}]"
    return text + (f" ({summary.undefined} undef.)" if summary.undefined else "")


def _as_json(metrics: dict[str, Summary]) -> dict[str, Any]:
    return {
        metric: {
            "mean": summary.mean,
            "median": summary.median,
            "sd": summary.sd,
            "n": summary.n,
            "n_undefined": summary.undefined,
            "ci95": [summary.low, summary.high],
            "ci95_remark": interval_remark(summary.n),
        }
        for metric, summary in metrics.items()
    }
