"""The table of results: every metric of every class of every case, and its files.

Shape legend (this file): N cases, C classes.
"""

import csv
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from nnunet_gdla.damage import reason
from nnunet_gdla.errors import UserError
from nnunet_gdla.evaluation.conventions import CONVENTIONS, LEAVE_OUT, METRICS, MISSED
from nnunet_gdla.evaluation.files import read_json_object, replaced

__all__ = [
    "MEAN",
    "METRICS_FILE",
    "SUMMARY_FILE",
    "Results",
    "foreground_mean",
    "mean_of_defined",
    "read_results",
    "write_metrics",
]

MEAN = "mean over classes"
METRICS_FILE, SUMMARY_FILE = "metrics.csv", "summary.json"
_SIZES = ("voxels_truth", "voxels_prediction")


@dataclass(frozen=True)
class Results:
    """All numbers of one evaluation.

    Args:
        cases: Case names.
        classes: Class names.
        values: Of each metric, one row a case and one column a class; NaN where undefined.
        convention: Name of the convention.
        unit: Of distances, "mm" or "voxels".
        tolerance: Of NSD, in this unit.
        voxels_truth: Size of each true mask; None where the file of results does not say.
        voxels_prediction: Size of each predicted mask.
        missed: What became of distances to an empty mask, "leave-out" or "worst".
        missing: Cases without a prediction.
        extra: Predictions without a truth.
        remarks: What the user should look at.
    """

    cases: tuple[str, ...]
    classes: tuple[str, ...]
    values: dict[str, Float[np.ndarray, "N C"]]
    convention: str
    unit: str
    tolerance: float
    voxels_truth: Float[np.ndarray, "N C"] | None = None
    voxels_prediction: Float[np.ndarray, "N C"] | None = None
    missed: str = LEAVE_OUT
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    remarks: tuple[str, ...] = field(default=())

    def columns(self, metric: str) -> dict[str, Float[np.ndarray, " N"]]:
        """Return one metric by class, and last its mean over the defined classes of each case."""
        table = self.values[metric]
        columns = {name: table[:, column] for column, name in enumerate(self.classes)}
        return {**columns, MEAN: mean_of_defined(table.T)}


def mean_of_defined(table: Float[np.ndarray, "C N"]) -> Float[np.ndarray, " N"]:
    """Average each case over its defined classes; NaN where it has none."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Mean of empty slice", RuntimeWarning)  # NaN is what is wanted there
        means: Float[np.ndarray, " N"] = np.nanmean(table, axis=0)
        return means


def foreground_mean(results: Results) -> dict[str, float]:
    """Return what nnU-Net calls foreground_mean, of Dice and IoU: classes averaged over cases, then over classes.

    As in nnU-Net's summary.json a case is left out for a class only where both masks are empty, whatever the
    convention, and a class that no case has makes the mean NaN.
    """
    iou = results.values["iou"].copy()
    if results.voxels_truth is not None and results.voxels_prediction is not None:
        iou[(results.voxels_truth == 0) & (results.voxels_prediction > 0)] = 0.0  # some conventions leave these out
    return {name: float(mean_of_defined(table).mean()) for name, table in (("Dice", 2 * iou / (1 + iou)), ("IoU", iou))}


def write_metrics(results: Results, path: Path) -> None:
    """Write a row a case and class; an undefined metric is an empty cell."""
    sizes = dict(zip(_SIZES, (results.voxels_truth, results.voxels_prediction), strict=True))

    def write(unfinished: Path) -> None:
        with unfinished.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["case", "class", *METRICS, *sizes])
            for row, case in enumerate(results.cases):
                for column, name in enumerate(results.classes):
                    numbers = [_cell(results.values[metric][row, column]) for metric in METRICS]
                    counts = ["" if table is None else int(table[row, column]) for table in sizes.values()]
                    writer.writerow([case, name, *numbers, *counts])

    replaced(path, write)


def read_results(folder: Path) -> Results:
    """Read what `evaluate` wrote.

    Raises:
        UserError: If the files are missing or were not written by it.
    """
    summary = read_json_object(folder / SUMMARY_FILE)
    rows = _read_rows(folder / METRICS_FILE)
    name, unit, tolerance = (summary.get(key) for key in ("convention", "unit", "tolerance"))
    missed = summary.get("missed", LEAVE_OUT)  # results of before the option have no such key
    if (
        name not in CONVENTIONS
        or missed not in MISSED
        or not isinstance(unit, str)
        or not isinstance(tolerance, int | float)
    ):
        raise UserError(f"{folder / SUMMARY_FILE} was not written by nnunet-gdla evaluate; evaluate the folder again")
    cases, classes = ([*dict.fromkeys(row[key] for row in rows)] for key in ("case", "class"))
    values = {column: np.full((len(cases), len(classes)), np.nan) for column in (*METRICS, *_SIZES)}
    row_of, column_of = ({name: place for place, name in enumerate(names)} for names in (cases, classes))
    for row in rows:
        place = row_of[row["case"]], column_of[row["class"]]
        for column, table in values.items():
            table[place] = float(row.get(column) or "nan")
    true, predicted = (None if np.isnan(table).any() else table for table in map(values.pop, _SIZES))
    return Results(tuple(cases), tuple(classes), values, str(name), unit, float(tolerance), true, predicted, missed)


def _read_rows(path: Path) -> list[dict[str, Any]]:
    columns: Sequence[str] = ("case", "class", *METRICS)
    again = "evaluate the folder again"
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows: list[dict[str, Any]] = list(csv.DictReader(file))
        if not rows or not all(row.get(column) is not None for row in rows for column in columns):
            raise UserError(f"{path} lacks rows or columns of {', '.join(columns)}; {again}")
        for row in rows:
            for column in (*METRICS, *_SIZES):
                float(row.get(column) or "nan")
    except UserError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"{path} cannot be read ({reason(error, path)}); {again}") from error
    return rows


def _cell(value: float) -> str:
    return "" if np.isnan(value) else repr(float(value))
