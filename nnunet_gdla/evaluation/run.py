"""A folder of predictions against a folder of truth: find the pairs, measure them side by side, put them together."""

import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
from tqdm import tqdm

from nnunet_gdla.errors import UserError
from nnunet_gdla.evaluation.cases import CaseJob, CaseScores, ClassScores, evaluate_case
from nnunet_gdla.evaluation.classes import LabelScheme, classes_of_values
from nnunet_gdla.evaluation.conventions import LEAVE_OUT, METRICS, Convention, convention, score
from nnunet_gdla.evaluation.masks import list_masks
from nnunet_gdla.evaluation.overlap import Counts
from nnunet_gdla.evaluation.results import Results
from nnunet_gdla.processes import OwnProcesses, ctrl_c_held_back, ignore_ctrl_c
from nnunet_gdla.words import counted

__all__ = ["default_processes", "evaluate_folders"]

_SHOWN = 5


def default_processes() -> int:
    """Return how many cases are measured side by side unless the user says otherwise."""
    return min(8, os.cpu_count() or 1)


def evaluate_folders(
    predictions: Path,
    truth: Path,
    *,
    scheme: LabelScheme | None = None,
    rules: str = "standard",
    tolerance: int | float = 1.0,
    missed: str = LEAVE_OUT,
    processes: int = 1,
) -> Results:
    """Evaluate every case that both folders have.

    Args:
        predictions: Folder of predicted masks.
        truth: Folder of true masks; a case's files have the same name, but for the ending.
        scheme: Labels of the dataset; None: every label value but 0 is a class.
        rules: Name of the convention.
        tolerance: Of NSD, in mm (in voxels by the rules of "transunet").
        missed: "leave-out", or "worst", which counts distances to an empty mask as the image's diagonal.
        processes: How many cases side by side.

    Raises:
        UserError: If the folders do not fit together, or a mask cannot be used.
    """
    counting = convention(rules, missed)
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise UserError(f"the tolerance is {tolerance}; give a distance of 0 or more with --tolerance")
    found, wanted = list_masks(predictions), list_masks(truth)
    names = sorted(found.keys() & wanted.keys())
    if not names:
        raise UserError(
            f"{predictions} and {truth} have no case in common (such as {next(iter(found.values())).name} and "
            f"{next(iter(wanted.values())).name}); a case's prediction and truth must have the same name"
        )
    jobs = [CaseJob(name, found[name], wanted[name], scheme, rules, tolerance, missed) for name in names]
    scores = list(tqdm(_measure(jobs, processes), total=len(jobs), desc="evaluating", unit="case", disable=None))
    return _put_together(
        scores,
        scheme,
        counting,
        tolerance,
        missing=tuple(sorted(wanted.keys() - found.keys())),
        extra=tuple(sorted(found.keys() - wanted.keys())),
    )


def _measure(jobs: Sequence[CaseJob], processes: int) -> Iterator[CaseScores]:
    if min(processes, len(jobs)) <= 1:
        yield from map(evaluate_case, jobs)
        return
    own = OwnProcesses()
    pool = ProcessPoolExecutor(min(processes, len(jobs)), own, initializer=ignore_ctrl_c)
    try:
        with ctrl_c_held_back():
            scores = pool.map(evaluate_case, jobs)  # hands all jobs over, and starts the processes with them
        yield from scores
    except BrokenProcessPool as error:
        raise UserError("a process was ended from outside, most likely for lack of memory; use -np 1") from error
    except (KeyboardInterrupt, GeneratorExit):  # the latter where the progress bar was stopped
        own.terminate()  # or the cases that they are at would be waited for
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _put_together(
    scores: Sequence[CaseScores],
    scheme: LabelScheme | None,
    rules: Convention,
    tolerance: int | float,
    *,
    missing: tuple[str, ...],
    extra: tuple[str, ...],
) -> Results:
    names = [each.name for each in scheme.classes] if scheme else _found_classes(scores)
    rows = [[_of_class(case, name, rules, tolerance) for name in names] for case in scores]
    unit = "mm" if not rules.in_voxels and any(case.has_spacing for case in scores) else "voxels"
    return Results(
        cases=tuple(case.name for case in scores),
        classes=tuple(names),
        values={metric: np.array([[each.metrics[metric] for each in row] for row in rows]) for metric in METRICS},
        convention=rules.name,
        unit=unit,
        tolerance=tolerance,
        voxels_truth=np.array([[float(each.counts.truth) for each in row] for row in rows]),
        voxels_prediction=np.array([[float(each.counts.prediction) for each in row] for row in rows]),
        missed=rules.missed,
        missing=missing,
        extra=extra,
        remarks=(
            *_in_no_truth(names, rows),
            *_mixed_units(scores, unit),
            *(case.remark for case in scores if case.remark),
        ),
    )


def _found_classes(scores: Sequence[CaseScores]) -> list[str]:
    predicted: set[int] = set().union(*(case.prediction_values for case in scores)) - {0}
    true: set[int] = set().union(*(case.truth_values for case in scores)) - {0}
    if not predicted | true:
        raise UserError("every mask is empty, so the classes are unknown; name them with --dataset-json")
    if predicted and true and not predicted & true:
        values = [", ".join(map(str, sorted(values)[:5])) for values in (predicted, true)]
        raise UserError(
            f"the predictions hold the label values {values[0]}, the truth {values[1]}: no class in common; "
            "write both with the same values"
        )
    return [each.name for each in classes_of_values(predicted | true)]


def _in_no_truth(names: Sequence[str], rows: Sequence[Sequence[ClassScores]]) -> Iterator[str]:
    absent = [place for place in range(len(names)) if not any(row[place].counts.truth for row in rows)]
    for predicted, said in (
        (True, "in no true mask, yet in the means where a score is defined"),
        (False, "in no mask, so nnU-Net's foreground_mean is undefined"),
    ):
        found = [names[place] for place in absent if any(row[place].counts.prediction for row in rows) == predicted]
        if found:
            yield f"{said}: {', '.join(found[:_SHOWN])}{', ...' if len(found) > _SHOWN else ''}"


def _mixed_units(scores: Sequence[CaseScores], unit: str) -> tuple[str, ...]:
    without = [case.name for case in scores if not case.has_spacing] if unit == "mm" else []
    return (f"no voxel size in {counted(len(without), 'case')} ({without[0]} ...): 1 mm taken",) if without else ()


def _of_class(case: CaseScores, name: str, rules: Convention, tolerance: int | float) -> ClassScores:
    """Return a class's scores; without a dataset.json, a value that only other cases hold is empty here."""
    if name in case.classes:
        return case.classes[name]
    nothing = Counts(0, 0, 0, case.pixels)
    return ClassScores(score(nothing, None, rules, tolerance=tolerance), nothing)
