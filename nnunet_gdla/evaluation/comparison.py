"""Two models on the same cases: differences, intervals, tests, and their files.

Shape legend (this file): N cases, C classes.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from nnunet_gdla.errors import UserError
from nnunet_gdla.evaluation.conventions import METRICS
from nnunet_gdla.evaluation.figures import Columns, draw_differences
from nnunet_gdla.evaluation.files import OPTION, replaced
from nnunet_gdla.evaluation.missed import why_not_comparable, wrapped
from nnunet_gdla.evaluation.report import align, metric_name, metric_title
from nnunet_gdla.evaluation.results import MEAN, Results, mean_of_defined
from nnunet_gdla.evaluation.small_samples import pairs_remark, table_notes
from nnunet_gdla.evaluation.statistics import Comparison, compare_paired, holm
from nnunet_gdla.files import together

__all__ = [
    "COMPARISON_FILE",
    "DIFFERENCES_FILE",
    "Line",
    "check_same_truth",
    "compare_results",
    "comparison_notes",
    "comparison_table",
    "write_comparison",
]

COMPARISON_FILE, DIFFERENCES_FILE = "comparison.csv", "differences.png"

_HIGHER_IS_BETTER = {"dice": True, "iou": True, "hd95": False, "assd": False, "nsd": True, "pixel_accuracy": True}
_LEVEL = 0.05
Pair = tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]
_COLUMNS = (
    *("metric", "class", "mean_a", "mean_b", "difference", "ci95_low", "ci95_high", "p", "p_holm", "better"),
    *("n", "n_left_out", "remark"),
)


@dataclass(frozen=True)
class Line:
    """One metric of one class.

    Args:
        metric: The metric.
        name: The class.
        found: Its comparison.
        p_holm: p adjusted for the number of classes; NaN where there is no test. For the mean over classes it is p.
        better: "A" or "B" where p_holm is below 0.05, else "".
        refused: Why no difference is called; empty where one is.
    """

    metric: str
    name: str
    found: Comparison
    p_holm: float
    better: str
    refused: str = ""


def compare_results(a: Results, b: Results, *, draws: int, seed: int) -> tuple[list[Line], dict[str, Columns]]:
    """Compare two evaluations case by case.

    No difference is called where a case drops out for one of the two only: it may be the one that this model missed.

    Args:
        a: First model.
        b: Second model.
        draws: Resamples of the bootstrap of pairs.
        seed: Its seed.

    Returns:
        A line a metric and class, and the differences behind them, by metric and class.

    Raises:
        UserError: If the two were counted by different rules, or have no cases or other classes in common.
    """
    _check_comparable(a, b)
    cases = [case for case in a.cases if case in set(b.cases)]
    rows_a, rows_b = ([results.cases.index(case) for case in cases] for results in (a, b))
    lines: list[Line] = []
    differences: dict[str, Columns] = {}
    for metric in METRICS:
        columns_a, columns_b = a.columns(metric), b.columns(metric)
        pairs = {name: (columns_a[name][rows_a], columns_b[name][rows_b]) for name in a.classes}
        names = a.classes
        if len(names) > 1:
            names, pairs[MEAN] = (*names, MEAN), _means(list(pairs.values()))
        refused = why_not_comparable(a, b, cases, metric)
        if refused:
            refused[MEAN] = "not so for every class"
        found = {name: compare_paired(*pair, draws=draws, seed=seed) for name, pair in pairs.items()}
        found |= {name: _withheld(found[name]) for name in refused if name in found}
        adjusted = dict(zip(a.classes, holm([found[name].p for name in a.classes]), strict=True))
        for name in names:
            p_holm = adjusted.get(name, found[name].p)
            better = _better(metric, found[name], p_holm)
            lines.append(Line(metric, name, found[name], p_holm, better, refused.get(name, "")))
        gaps = {name: pairs[name][0] - pairs[name][1] for name in a.classes}
        differences[metric] = {name: gap[~np.isnan(gap) & (name not in refused)] for name, gap in gaps.items()}
    return lines, differences


def check_same_truth(a: Results, b: Results) -> None:
    """Refuse results that were evaluated against different true masks, as far as the sizes of objects tell.

    Raises:
        UserError: If an object has another size for A than for B.
    """
    if a.voxels_truth is None or b.voxels_truth is None:
        return
    for name in a.classes:
        sizes = [
            dict(zip(each.cases, table[:, each.classes.index(name)], strict=True))
            for each, table in ((a, a.voxels_truth), (b, b.voxels_truth))
            if name in each.classes
        ]
        for case in sizes[0] if len(sizes) > 1 else ():
            one, two = sizes[0][case], sizes[1].get(case, sizes[0][case])
            if one != two and not np.isnan([one, two]).any():
                raise UserError(
                    f"the true mask of {case} has {one:.0f} voxels of {name} for A, {two:.0f} for B; "
                    "evaluate both against the same true masks"
                )


def write_comparison(
    a: Results, lines: list[Line], differences: dict[str, Columns], folder: Path, *, title: str
) -> None:
    """Write comparison.csv and differences.png, or none of them.

    Args:
        a: The first model, for units and classes.
        lines: A row of the table each; differences are A minus B, in the metric's unit.
        differences: The points of the figure, by metric and class.
        folder: Where to; made if need be.
        title: Above the figure.

    Raises:
        WriteError: If the folder or a file cannot be written.
    """

    def write(unfinished: Path) -> None:
        with unfinished.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(_COLUMNS)
            for line in lines:
                found = line.found
                numbers = (found.mean_a, found.mean_b, found.difference, found.low, found.high, found.p, line.p_holm)
                cells = ["" if np.isnan(number) else repr(number) for number in numbers]
                remark = f"not compared: {line.refused}" if line.refused else pairs_remark(found.n)
                writer.writerow([line.metric, line.name, *cells, line.better, found.n, found.undefined, remark])

    with together(folder, option=OPTION):
        replaced(folder / COMPARISON_FILE, write)
        draw_differences(a, differences, title, folder / DIFFERENCES_FILE)


def comparison_table(a: Results, lines: list[Line]) -> str:
    """Return the comparison for the terminal: the metrics below each other, a row a class."""
    rows = [["", "A", "B", "A - B [95 % CI]", "p", "p (Holm)", "better", "pairs"]]
    metric = None
    for line in lines:
        if line.metric != metric:
            metric = line.metric
            rows.append([metric_title(metric, a.unit, a.tolerance), *[""] * 7])
        rows.append([f"  {line.name}", *_row(line)])
    return align(rows)


def comparison_notes(lines: list[Line]) -> str:
    """Return, for below the table, which differences are not called, and what so few pairs cannot show."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        if line.refused and line.name != MEAN:
            by_reason.setdefault((line.name, line.refused), []).append(metric_name(line.metric))
    refused = [
        wrapped(f"{', '.join(metrics)} of {name} not compared: {why}") for (name, why), metrics in by_reason.items()
    ]
    return ("\n\n" + "\n".join(refused) if refused else "") + table_notes(
        (line.found.n for line in lines if not line.refused), pairs_remark
    )


def _row(line: Line) -> list[str]:
    found = line.found
    pairs = f"{found.n}, {found.undefined} left out" if found.undefined else str(found.n)
    if line.refused or not found.n:
        return [*["n/a"] * 5, "", pairs]
    digits = 4 if max(abs(found.mean_a), abs(found.mean_b)) < 10 else 2
    interval = f" [{found.low:+.{digits}f}, {found.high:+.{digits}f}]" if found.n > 1 else ""
    means = [f"{mean:.{digits}f}" for mean in (found.mean_a, found.mean_b)]
    difference = f"{found.difference:+.{digits}f}{interval}"
    return [*means, difference, _p(found.p), _p(line.p_holm), line.better, pairs]


def _check_comparable(a: Results, b: Results) -> None:
    for what, one, two in (
        ("convention", a.convention, b.convention),
        ("unit of distances", a.unit, b.unit),
        ("tolerance of NSD", a.tolerance, b.tolerance),
        ("way to count missed objects (--missed)", a.missed, b.missed),
    ):
        if one != two:
            raise UserError(f"the {what} of A is {one}, that of B {two}; evaluate both in the same way")
    if set(a.classes) != set(b.classes):
        raise UserError(
            f"A has the classes {', '.join(a.classes)}, B {', '.join(b.classes)}; "
            "evaluate both with the same --dataset-json"
        )
    if not set(a.cases) & set(b.cases):
        raise UserError(
            f"A (such as {a.cases[0]}) and B (such as {b.cases[0]}) have no case in common; compare models on the same "
            "cases"
        )


def _means(pairs: list[Pair]) -> Pair:
    """Average each case over the classes that are defined for both models: other classes are other problems."""
    tables: Float[np.ndarray, "C 2 N"] = np.array(pairs)
    tables[np.isnan(tables).any(axis=1, keepdims=True).repeat(2, axis=1)] = np.nan
    a, b = (mean_of_defined(table) for table in (tables[:, 0], tables[:, 1]))
    return a, b


def _withheld(found: Comparison) -> Comparison:
    nan = float("nan")
    return Comparison(nan, nan, nan, nan, nan, nan, found.n, found.undefined)


def _better(metric: str, found: Comparison, p: float) -> str:
    if np.isnan(p) or p >= _LEVEL or not found.difference:
        return ""
    return "A" if (found.difference > 0) == _HIGHER_IS_BETTER[metric] else "B"


def _p(p: float) -> str:
    return "n/a" if np.isnan(p) else f"{p:.4f}" if p >= 0.0001 else f"{p:.1e}"
