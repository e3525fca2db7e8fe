"""`nnunet-gdla doctor`: will everything work, and if not, what has to be done."""

import argparse
import functools
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from nnunet_gdla.commands import checks, registration_check
from nnunet_gdla.commands.findings import BREAKAGES, Finding, Level, run_check
from nnunet_gdla.commands.signatures import PLANNER_HOOKS, TRAINER_HOOKS
from nnunet_gdla.words import counted

__all__ = ["run"]

MAX_THREADS = 8

Check = tuple[str, Callable[[], Iterable[Finding]]]


def run(args: argparse.Namespace) -> int:
    """Print a line for each finding and a summary; return 1 if anything failed, else 0.

    Args:
        args: `dataset` (number, name or None), `plans`, `configuration`, `trainer`, `device` (None: cuda where there is
            one, else cpu).
    """
    counts: Counter[Level] = Counter()
    with warnings.catch_warnings():
        # What the imported packages say about their own future would stand between the findings.
        warnings.simplefilter("ignore", category=FutureWarning)
        warnings.simplefilter("ignore", category=DeprecationWarning)
        for finding in _findings(args):
            print(finding, flush=True)
            counts[finding.level] += 1
    verdict = f"{counts[Level.PASS]} passed, {counted(counts[Level.WARN], 'warning')}, {counts[Level.FAIL]} failed"
    print(f"\n{verdict}: {_conclusion(counts, args.dataset)}")
    return 1 if counts[Level.FAIL] else 0


def _conclusion(counts: Counter[Level], dataset: str | None) -> str:
    if counts[Level.FAIL]:
        return "mend the FAIL lines first, from the top, and run this again"
    if dataset is None:
        return "ready; `nnunet-gdla doctor -d DATASET` checks a dataset too"
    return "ready to train"


def _findings(args: argparse.Namespace) -> Iterator[Finding]:
    device = args.device or _best_device()
    for title, check in _environment(args.trainer, device):
        yield from run_check(title, check)
    if args.dataset is not None:
        yield from run_check("dataset", functools.partial(_dataset, args, device))


def _best_device() -> str:
    try:
        import torch
    except BREAKAGES:
        return "cpu"  # the check of torch will say what is wrong with it
    return "cuda" if torch.cuda.is_available() else "cpu"


def _environment(trainer: str, device: str) -> list[Check]:
    return [
        ("Python", checks.check_interpreter),
        ("nnunetv2", checks.check_nnunet),
        ("torch", functools.partial(checks.check_torch, device)),
        ("timm", checks.check_timm),
        ("folders", checks.check_folders),
        ("processes", functools.partial(checks.check_processes, device)),
        ("registration", registration_check.check_registration),
        ("own trainers", registration_check.check_external_folders),
        ("trainers", functools.partial(_trainers, trainer)),
        ("planners", _planners),
        ("hooks", _hooks),
        ("encoder weights", functools.partial(_weights, trainer)),
        ("torch.compile", functools.partial(checks.check_compile, device)),
        ("training step", functools.partial(checks.check_training_step, device)),
    ]


def _trainers(asked: str) -> Iterator[Finding]:
    from nnunet_gdla.trainers import EXAMPLES

    return registration_check.check_trainers(list(dict.fromkeys([asked, *EXAMPLES])))


def _planners() -> Iterator[Finding]:
    from nnunet_gdla.plans import PLANNERS

    return registration_check.check_planners(PLANNERS)


def _hooks() -> Iterator[Finding]:
    from nnunetv2.experiment_planning.experiment_planners.default_experiment_planner import ExperimentPlanner
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

    from nnunet_gdla import plans, trainers

    ours = [trainers.resolve("nnUNetTrainerGDLA"), trainers.resolve("nnUNetTrainerGDLA_B0_DiceCE_NoMirroring_1epoch")]
    yield from registration_check.check_signatures(ours, nnUNetTrainer, TRAINER_HOOKS)
    planners = [getattr(plans, name) for name in plans.PLANNERS]
    yield from registration_check.check_signatures(planners, ExperimentPlanner, PLANNER_HOOKS)


def _weights(trainer_name: str) -> Iterator[Finding]:
    from nnunet_gdla.commands.plans_check import usual_encoder

    trainer = registration_check.find_trainer(trainer_name)
    if not isinstance(trainer, Finding):  # where it is one, the look-up has reported it already
        yield from checks.check_weights(usual_encoder(trainer))


def _dataset(args: argparse.Namespace, device: str) -> Iterator[Finding]:
    from nnunet_gdla.commands.dataset_check import check_dataset, find_dataset
    from nnunet_gdla.commands.plans_check import check_plans
    from nnunet_gdla.commands.weights_compare import check_models

    folder = find_dataset(args.dataset)
    if isinstance(folder, Finding):
        yield folder
        return
    threads = min(MAX_THREADS, os.cpu_count() or 1)
    yield from run_check("dataset", lambda: check_dataset(folder, num_threads=threads))
    plans = functools.partial(check_plans, folder.name, args.plans, args.configuration, args.trainer, device)
    yield from run_check("plans", plans)
    yield from run_check("models", functools.partial(check_models, folder.name))
