"""From a trained model and slides to predictions, metrics with intervals, and the table on the terminal."""

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

import pandas as pd
from tqdm import tqdm

from nnunet_gdla.errors import UserError
from nnunet_gdla.files import together
from nnunet_gdla.mil.bundle import Bundle
from nnunet_gdla.mil.bundle_info import BundleInfo, base_columns, table_metrics
from nnunet_gdla.mil.cohort import Task
from nnunet_gdla.mil.data import EverySlideOnce, bags_of, slide_loader
from nnunet_gdla.mil.files import write_csv, write_json
from nnunet_gdla.mil.predictions import to_patients
from nnunet_gdla.mil.slides.encoders import same_encoder
from nnunet_gdla.mil.statistics import bootstrap_intervals
from nnunet_gdla.words import counted

__all__ = ["LEVELS", "evaluate", "metric_lines", "predict_table", "rule_lines", "write_evaluation"]

LEVELS: Final = ("slide", "patient")
Metrics = dict[str, dict[str, dict[str, float]]]


def predict_table(bundle: Bundle, table: pd.DataFrame, *, workers: int = 0, progress: bool = False) -> pd.DataFrame:
    """Predict every slide of a cohort table once, in its order.

    Args:
        bundle: One model or several.
        table: With slide_id, patient_id, path and what is known of the answer.
        workers: Processes that read.
        progress: Show a bar.

    Raises:
        UserError: If a slide cannot be read or does not fit the model, or slides come from several encoders.
    """
    bags = bags_of(table, bundle.info, bundle.models)
    loader = slide_loader(bags, EverySlideOnce(len(bags)), workers=workers, pin_memory=False)
    steps = tqdm(loader, desc="predicting", unit="slide", disable=not progress, leave=False)
    answers, first = [], None
    for bag in steps:
        assert bag.slide is not None
        answers.append(bundle.predict(bag.slide, bag.neighbours))
        first = first or (bag.slide if bag.slide.encoder else None)
        if first is not None and not same_encoder(first.encoder, bag.slide.encoder):
            raise UserError(
                f"features of {first.slide_id} come from {first.encoder}, of {bag.slide.slide_id} from "
                f"{bag.slide.encoder}: predict with the slides of one encoder"
            )
    return pd.concat([base_columns(table, bundle.info), pd.DataFrame(answers)], axis=1)


def evaluate(predictions: pd.DataFrame, info: BundleInfo, *, bootstrap: int, seed: int = 0) -> Metrics:
    """Return metrics with 95 % intervals by patient, at slide and at patient level.

    Args:
        predictions: One row a slide, with the truth.
        info: Of the bundle: classes, thresholds and bin edges come from there.
        bootstrap: Number of draws.
        seed: Of the draws.

    Returns:
        By level and metric `value`, `low` and `high`; NaN where undefined.
    """
    tables = {"slide": predictions, "patient": to_patients(predictions, info.task)}
    return {level: _with_intervals(table, info, bootstrap, seed) for level, table in tables.items()}


def write_evaluation(folder: Path, part: str, predictions: pd.DataFrame, metrics: Metrics, task: Task) -> None:
    """Write `predictions_PART.csv`, `predictions_PART_patient.csv` (`to_patients`) and `metrics_PART.json`."""
    with together(folder):
        write_csv(folder / f"predictions_{part}.csv", predictions)
        write_csv(folder / f"predictions_{part}_patient.csv", to_patients(predictions, task))
        write_json(folder / f"metrics_{part}.json", metrics)


def metric_lines(results: Mapping[str, Metrics]) -> list[str]:
    """Return a table for the terminal: one line per metric, one column per part and level.

    Where every patient has one slide, both levels are the same and one is shown.
    """
    columns = [(part, level) for part in results for level in LEVELS if results[part][level]]
    if all(repr(levels["slide"]) == repr(levels["patient"]) for levels in results.values()):
        columns = [(part, level) for part, level in columns if level == "slide"]
    names = list(dict.fromkeys(name for part, level in columns for name in results[part][level]))
    width = max(map(len, ["metric", *names]))
    lines = ["  ".join([f"{'metric':{width}}"] + [f"{f'{part}, {level}s':20}" for part, level in columns]).rstrip()]
    for name in names:
        cells = [shown(results[part][level].get(name)) for part, level in columns]
        lines.append("  ".join([f"{name:{width}}"] + [f"{cell:20}" for cell in cells]).rstrip())
    return lines


def rule_lines(predictions: Mapping[str, pd.DataFrame], info: BundleInfo) -> list[str]:
    """Return one line for each rule that decided a number of these tables, by part; none for rules without effect."""
    patients = {part: to_patients(table, info.task) for part, table in predictions.items()}
    lines = []
    if info.task == "survival":
        rule = {"harrell": "count if exactly one is an event (Harrell)", "strict": "never count (strict, as published)"}
        lines.append(f"C-index: pairs of equal times {rule[info.c_index_ties]}")
    if any(table["patient_id"].duplicated().any() for table in predictions.values()):
        what = {"classification": "probabilities", "survival": "risks and of the survival curves"}[info.task]
        lines.append(f"a patient's answer is the mean of the {what} of all slides (predictions_PART_patient.csv)")
    for part, table in predictions.items():
        mixed = patients[part].attrs["without_patient_label"]
        if mixed:
            lines.append(f"{part}: {counted(mixed, 'patient')} with slides of several classes: at slide level only")
        levels = [(f"{part}, slides", table)] + ([(f"{part}, patients", patients[part])] if mixed else [])
        for level, rows in levels:
            absent = [name for name in info.classes if name not in set(rows["label"])]
            if absent and len(rows):
                lines.append(
                    f"{level}: nobody is of class {', '.join(absent)}, which counts 0 in the means over classes of "
                    "recall, precision and F1; AUC and average precision are undefined"
                )
    return lines


def shown(entry: Mapping[str, float] | None) -> str:
    """Return `value [low, high]`, or n/a."""
    if entry is None or _undefined(entry["value"]):
        return "n/a"
    if _undefined(entry["low"]) or _undefined(entry["high"]):
        return f"{entry['value']:.3f}"
    return f"{entry['value']:.3f} [{entry['low']:.3f}, {entry['high']:.3f}]"


def _with_intervals(table: pd.DataFrame, info: BundleInfo, bootstrap: int, seed: int) -> dict[str, dict[str, float]]:
    if not len(table):
        return {}
    metric_fn = partial(table_metrics, info=info)
    values = metric_fn(table)
    intervals = bootstrap_intervals(table, metric_fn, n=bootstrap, seed=seed)
    return {
        name: {"value": value, "low": intervals[name].low, "high": intervals[name].high}
        for name, value in values.items()
    }


def _undefined(value: float | None) -> bool:
    return value is None or math.isnan(value)
