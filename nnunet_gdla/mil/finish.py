"""After the last epoch: predictions and metrics of the best one, the bundle, the figures."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
from torch import nn

from nnunet_gdla.mil.bundle import Bundle, save_bundle
from nnunet_gdla.mil.bundle_info import BundleInfo
from nnunet_gdla.mil.device import pick_device
from nnunet_gdla.mil.evaluate import evaluate, metric_lines, predict_table, rule_lines, write_evaluation
from nnunet_gdla.mil.gate_reach import gate_lines
from nnunet_gdla.mil.metrics import pick_threshold
from nnunet_gdla.mil.predictions import to_patients
from nnunet_gdla.mil.prepare import Prepared
from nnunet_gdla.mil.report import write_figures
from nnunet_gdla.mil.run_files import RunFiles
from nnunet_gdla.mil.tasks import class_numbers
from nnunet_gdla.words import counted

__all__ = ["finish"]


def finish(
    prepared: Prepared, model: nn.Module, run: Path, *, epoch: int, metric: str, progress: bool = False
) -> list[str]:
    """Write everything that a finished run holds.

    Args:
        prepared: Data and settings.
        model: With the weights of the best epoch.
        run: Folder of the run.
        epoch: The best epoch, from 0.
        metric: What selected it.
        progress: Show bars.

    Returns:
        The lines of the summary.
    """
    train = prepared.config.train
    device = pick_device(train.accelerator)
    bundle = Bundle(prepared.info, (model.to(device).eval(),), device)

    def predicted(part: str) -> pd.DataFrame:
        return predict_table(bundle, prepared.tables[part], workers=train.workers, progress=progress)

    val = predicted("val")
    info = dataclasses.replace(
        bundle.info,
        threshold=_threshold(val, bundle.info),
        median_risk=_median_risk(predicted("train")) if bundle.info.task == "survival" else None,
        training={
            "epoch": epoch + 1,
            "selected_by": metric,
            "seed": train.seed,
            "split": dataclasses.asdict(prepared.config.split),
        },
    )
    save_bundle(run / "bundle", model, info)
    predictions = {"val": val} | ({"test": predicted("test")} if len(prepared.tables["test"]) else {})
    results = {}
    for part, table in predictions.items():
        results[part] = evaluate(table, info, bootstrap=train.bootstrap, seed=train.seed)
        write_evaluation(run, part, table, results[part], info.task)
    figures = write_figures(run)
    return [
        f"best epoch {epoch + 1} by {metric} on validation; 95 % intervals from {train.bootstrap} draws of patients",
        *([f"events are the 0 of column {info.event_column}: 1 means censored"] if info.event_is_censoring else []),
        *metric_lines(results),
        *rule_lines(predictions, info),
        *gate_lines(RunFiles(run).gates, epoch),
        f"{run}: predictions, metrics, {counted(len(figures), 'figure')}; the model is {run / 'bundle'}",
    ]


def _threshold(val: pd.DataFrame, info: BundleInfo) -> float | None:
    if len(info.classes) != 2:
        return None
    threshold = pick_threshold(np.array(class_numbers(val, info.classes)), val[f"prob_{info.classes[1]}"].to_numpy())
    return None if np.isnan(threshold) else threshold


def _median_risk(train: pd.DataFrame) -> float:
    return float(to_patients(train, "survival")["risk"].median())
