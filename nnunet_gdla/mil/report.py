"""The figures of a run, drawn from its files alone: they can be drawn again at any time."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from nnunet_gdla.mil.figures import number, paper_style, save
from nnunet_gdla.mil.predictions import to_patients
from nnunet_gdla.mil.report_classification import (
    Scored,
    class_intervals,
    draw_confusion,
    draw_reliability,
    draw_roc_pr,
    scored,
)
from nnunet_gdla.mil.report_curves import draw_curves, draw_gates
from nnunet_gdla.mil.report_survival import draw_kaplan_meier, draw_risk
from nnunet_gdla.mil.run_files import PARTS, RunFiles

__all__ = ["write_figures"]

Drawing = tuple[str, Callable[[], Figure]]


def write_figures(run: Path) -> list[Path]:
    """Draw whatever the files of a run allow into `RUN/figures`.

    Drawn are: `curves` and `gates` of the training; for `val` and `test` in a classification `roc_pr`, `confusion` and
    `reliability`, in survival `kaplan_meier` and `risk`. A file that is not there gives no figure; numbers that allow
    no curve (one class only, no event, not a number) give a figure that says so.

    Args:
        run: Folder of a run, or of the results of an external test.

    Returns:
        The files written.

    Raises:
        UserError: If a file of the run cannot be read.
    """
    files = RunFiles(run)
    with paper_style():
        return [save(draw(), run / "figures" / f"{name}.png") for name, draw in _drawings(files)]


def _drawings(files: RunFiles) -> Iterator[Drawing]:
    history, gates = files.history, files.gates
    if history is not None:
        yield "curves", lambda: draw_curves(history, files.best_epoch)
    if gates is not None and len(gates):
        yield "gates", lambda: draw_gates(gates)
    for part in PARTS:
        predictions = files.predictions(part)
        if predictions is None:
            continue
        if "risk" in predictions:
            yield from _survival(files, part, predictions)
        elif "label" in predictions:
            yield from _classification(files, part, predictions)


def _classification(files: RunFiles, part: str, predictions: pd.DataFrame) -> Iterator[Drawing]:
    slides = scored(predictions, "slide")
    data: list[Scored | str] = [slides]
    tables = {"slide": predictions}
    if not isinstance(slides, str) and predictions["patient_id"].nunique() < len(predictions):
        tables["patient"] = to_patients(predictions, "classification")
        data.append(scored(tables["patient"], "patient"))
    intervals = {
        unit: {name: number(*files.metric(part, unit, name)) for name in ("auc", "auprc")}
        for unit in ("slide", "patient")
        if files.metric(part, unit, "auc")[0] is not None
    }
    yield f"roc_pr_{part}", lambda: draw_roc_pr(data, intervals, class_intervals(tables))
    yield f"confusion_{part}", lambda: draw_confusion(slides, files.bundle_number("threshold"))
    yield f"reliability_{part}", lambda: draw_reliability(slides, number(*files.metric(part, "slide", "ece")))


def _survival(files: RunFiles, part: str, predictions: pd.DataFrame) -> Iterator[Drawing]:
    patients = to_patients(predictions, "survival")
    cut = files.bundle_number("median_risk")
    c_index = number(*files.metric(part, "patient", "c_index"))
    yield f"kaplan_meier_{part}", lambda: draw_kaplan_meier(patients, cut, c_index)
    yield f"risk_{part}", lambda: draw_risk(patients, cut)
