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
from nnunet_gdla.evaluation.conventions import CONVENTIONS, METRICS
from nnunet_gdla.evaluation.files import read_json_object, replaced

__all__ = ["MEAN", "METRICS_FILE", "SUMMARY_FILE", "Results", "mean_of_defined", "read_results", "write_metrics"]

MEAN = "mean over classes"
METRICS_FILE, SUMMARY_FILE = "metrics.csv", "summary.json"


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
        voxels_truth: Size of each true mask.
        voxels_prediction: Size of each predicted mask.
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


def write_metrics(results: Results, path: Path) -> None:
    """Write a row a case and class; an undefined metric is an empty cell."""
    sizes = {"voxels_truth": results.voxels_truth, "voxels_prediction": results.voxels_prediction}

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
    if name not in CONVENTIONS or not isinstance(unit, str) or not isinstance(tolerance, int | float):
        raise UserError(f"{folder / SUMMARY_FILE} was not written by nnunet-gdla evaluate; evaluate the folder again")
    cases, classes = ([*dict.fromkeys(row[key] for row in rows)] for key in ("case", "class"))
    values = {metric: np.full((len(cases), len(classes)), np.nan) for metric in METRICS}
    row_of, column_of = ({name: place for place, name in enumerate(names)} for names in (cases, classes))
    for row in rows:
        place = row_of[row["case"]], column_of[row["class"]]
        for metric in METRICS:
            values[metric][place] = float(row[metric] or "nan")
    return Results(tuple(cases), tuple(classes), values, str(name), unit, float(tolerance))


def _read_rows(path: Path) -> list[dict[str, Any]]:
    columns: Sequence[str] = ("case", "class", *METRICS)
    again = "evaluate the folder again"
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows: list[dict[str, Any]] = list(csv.DictReader(file))
        if not rows or not all(row.get(column) is not None for row in rows for column in columns):
            raise UserError(f"{path} lacks rows or columns of {', '.join(columns)}; {again}")
        for row in rows:
            for metric in METRICS:
                float(row[metric] or "nan")
    except UserError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"{path} cannot be read ({reason(error, path)}); {again}") from error
    return rows


def _cell(value: float) -> str:
    return "" if np.isnan(value) else repr(float(value))
