"""`nnunet-gdla recipe NAME --runs N`: what is not done yet of N trainings, and a table of their scores."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nnunet_gdla.errors import UserError
from nnunet_gdla.evaluation.results import MEAN, SUMMARY_FILE, read_results
from nnunet_gdla.paper_settings import SEED_VARIABLE
from nnunet_gdla.recipes.catalogue import PAPER_PLANS, PATCH, PaperModel, Recipe
from nnunet_gdla.recipes.paper_plans import write_paper_plans

__all__ = ["Run", "do_runs", "table"]

_VARIABLES = ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results")


@dataclass(frozen=True)
class Run:
    """One training and its scores.

    Args:
        number: Counted from 1.
        seed: Of the training.
        dice: Mean over classes, then over test cases, in percent.
        hd95: The same of HD95, in the unit of the convention.
    """

    number: int
    seed: int
    dice: float
    hd95: float


@dataclass(frozen=True)
class _Step:
    title: str
    command: tuple[str, ...]
    is_done: Callable[[], bool]


def do_runs(
    recipe: Recipe, dataset_id: int, count: int, *, model: PaperModel, device: str, overwrite: bool = False
) -> int:
    """Do what is missing, then print the table.

    Raises:
        UserError: If a folder or the dataset is missing, one seed is set for all, or a step fails.
    """
    if os.environ.get(SEED_VARIABLE):
        raise UserError(f"{SEED_VARIABLE} is set, so every run would have the same seed; unset it")
    raw, preprocessed, results = _folders(recipe.folder_name(dataset_id))
    cases = sorted(path.name for path in (raw / "labelsTs").glob("*")) if raw.is_dir() else []
    if not cases:
        size = f" --size {PATCH}" if recipe.square else ""
        raise UserError(
            f"there is no {raw} with test cases; convert first: nnunet-gdla convert {recipe.name} SOURCE "
            f"-d {dataset_id}{size}"
        )
    planned = preprocessed / f"{model.source_plans}.json"
    _do(_Step("plan", ("nnunet-gdla", "plan", "-d", str(dataset_id), *model.plan_options), planned.is_file))
    for number in range(1, count + 1):
        write_paper_plans(recipe, dataset_id, model=model, run=number, overwrite=overwrite)
    preprocess = ("nnUNetv2_preprocess", "-d", str(dataset_id), "-plans_name", model.plans(), "-c", "2d")
    _do(_Step("preprocessing", preprocess, lambda: _is_preprocessed(raw, preprocessed)))
    runs = []
    for number in range(1, count + 1):
        fold = results / f"{model.trainer}__{model.plans(number)}__2d" / "fold_0"
        seed = recipe.settings.seed + number - 1
        which = ("-tr", model.trainer, "-p", model.plans(number), "-device", device)
        for step in _steps(recipe, str(dataset_id), which, raw, fold, cases):
            _do(step, f"run {number} of {count}, seed {seed}: ")
        scores = read_results(_evaluation(recipe, fold))
        dice, hd95 = (float(np.nanmean(scores.columns(metric)[MEAN])) for metric in ("dice", "hd95"))
        runs.append(Run(number, seed, 100 * dice, hd95))
    print("\n".join(table(recipe, model, runs)))
    return 0


def table(recipe: Recipe, model: PaperModel, runs: list[Run]) -> Iterator[str]:
    """One line a run, their mean and spread, and the paper's number."""
    with_distance = recipe.convention == "transunet"
    yield f"\n{recipe.title}, {model.trainer}, {recipe.convention} convention, test cases"
    yield "run  seed  Dice %" + "  HD95 (voxels)" * with_distance
    for run in runs:
        yield f"{run.number:>3}  {run.seed:>4}  {run.dice:6.2f}" + f"  {run.hd95:13.2f}" * with_distance
    dice = [run.dice for run in runs]
    spread = f"{np.std(dice, ddof=1):.2f}" if len(runs) > 1 else "not defined for one run"
    yield f"Dice: mean {np.mean(dice):.2f}, standard deviation {spread}, range {min(dice):.2f} to {max(dice):.2f}"
    if with_distance and len(runs) > 1:
        distances = [run.hd95 for run in runs]
        yield f"HD95: mean {np.mean(distances):.2f}, standard deviation {np.std(distances, ddof=1):.2f}"
    reference = dict(recipe.scores).get(model.title)
    yield (
        f"paper: {model.title} {reference:.2f}" if reference is not None else "paper: see its table (arXiv:2603.02727)"
    )


def _folders(dataset: str) -> tuple[Path, Path, Path]:
    missing = [name for name in _VARIABLES if not os.environ.get(name)]
    if missing:
        raise UserError(f"{missing[0]} is not set: export {missing[0]}=FOLDER")
    raw, preprocessed, results = (Path(os.environ[name]) / dataset for name in _VARIABLES)
    return raw, preprocessed, results


def _is_preprocessed(raw: Path, preprocessed: Path) -> bool:
    """Whether every training case is there."""
    names = {path.name.removesuffix(".gz").rpartition(".")[0] for path in (raw / "labelsTr").glob("*")}
    return all((preprocessed / f"{PAPER_PLANS}_2d" / f"{name}.pkl").is_file() for name in names)


def _steps(
    recipe: Recipe, dataset_id: str, which: tuple[str, ...], raw: Path, fold: Path, cases: list[str]
) -> Iterator[_Step]:
    """The steps of one run, in order; what a step finds is looked at when its turn has come."""
    final, best = fold / "checkpoint_final.pth", fold / "checkpoint_best.pth"
    goes_on = ("--c",) if any(fold.glob("checkpoint_*.pth")) else ()
    yield _Step("training", ("nnUNetv2_train", dataset_id, "2d", "0", *which, *goes_on), final.is_file)
    predictions = fold / "predictions_test"
    masks = [predictions / name for name in cases]
    chosen = ("-chk", best.name, "--disable_tta", "-i", str(raw / "imagesTs"), "-o", str(predictions))
    yield _Step(
        "prediction",
        ("nnUNetv2_predict", "-d", dataset_id, "-c", "2d", "-f", "0", *which, *chosen),
        lambda: _newer(masks, best),
    )
    evaluated = _evaluation(recipe, fold)
    options = ("--dataset-json", str(raw / "dataset.json"), "--convention", recipe.convention, "--out", str(evaluated))
    yield _Step(
        "evaluation",
        ("nnunet-gdla", "evaluate", str(predictions), str(raw / "labelsTs"), *options),
        lambda: _newer([evaluated / SUMMARY_FILE], masks[0]),
    )


def _evaluation(recipe: Recipe, fold: Path) -> Path:
    return fold / f"evaluation_test_{recipe.convention}"


def _newer(files: list[Path], source: Path) -> bool:
    """Whether all files are there and none is older than what it was made from."""
    if not all(path.is_file() for path in (*files, source)):
        return False
    return min(path.stat().st_mtime_ns for path in files) >= source.stat().st_mtime_ns


def _do(step: _Step, run: str = "") -> None:
    if step.is_done():
        print(f"# {run}{step.title} is done already", flush=True)
        return
    print(f"# {run}{step.title}\n{shlex.join(step.command)}", flush=True)
    program, *arguments = step.command
    beside = shutil.which(program, path=str(Path(sys.executable).parent)) or shutil.which(program)
    if beside is None:
        raise UserError(f"the command {program} is neither beside {sys.executable} nor in PATH; install nnunetv2 there")
    code = subprocess.run([beside, *arguments], check=False).returncode
    if code != 0 or not step.is_done():
        raise UserError(
            f"{run}{step.title} ended with exit code {code} and is not complete; see its messages above, and give the "
            "same recipe command again to go on from there"
        )
