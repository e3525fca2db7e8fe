"""`nnunet-gdla doctor`: will everything work, and if not, what has to be done."""

import argparse
import functools
import json
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from nnunet_gdla.commands import checks, registration_check
from nnunet_gdla.commands.doctor import forms
from nnunet_gdla.commands.findings import BREAKAGES, Finding, Level, run_check
from nnunet_gdla.commands.signatures import PLANNER_HOOKS, TRAINER_HOOKS
from nnunet_gdla.words import counted

__all__ = ["run"]

MAX_THREADS = 8

Check = tuple[str, Callable[[], Iterable[Finding]]]


def run(args: argparse.Namespace) -> int:
    """Print a line for each finding and a summary; return 1 if anything failed, else 0.

    Args:
        args: `dataset` (number, name or None), `plans` (None: the stock ones, if there are any), `configuration`,
            `fold` (number, "all" or None for any), `trainer`, `device` (None: cuda where there is one, else cpu),
            `resume`, `full`, `json`, which prints one JSON object instead, and `gpu` (check and time the GPU's kernels,
            nothing else).
    """
    if getattr(args, "gpu", False):
        from nnunet_gdla.commands.doctor import gpu

        return gpu.run()
    found: list[Finding] = []
    with warnings.catch_warnings():
        # What the imported packages say about their own future would stand between the findings.
        warnings.simplefilter("ignore", category=FutureWarning)
        warnings.simplefilter("ignore", category=DeprecationWarning)
        for finding in _findings(args):
            found.append(finding)
            if not args.json:
                print(finding, flush=True)
    counts = Counter(finding.level for finding in found)
    conclusion, ready = _conclusion(found, args)
    if args.json:
        json.dump(_report(found, counts, conclusion, ready=ready), sys.stdout, indent=2)
        print()
    else:
        verdict = f"{counts[Level.PASS]} passed, {counted(counts[Level.WARN], 'warning')}, {counts[Level.FAIL]} failed"
        print(f"\n{verdict}: {conclusion}")
    return 1 if counts[Level.FAIL] else 0


def _conclusion(found: list[Finding], args: argparse.Namespace) -> tuple[str, bool]:
    """The verdict in words, and whether a training can start now."""
    if any(finding.level is Level.FAIL for finding in found):
        return "fix the FAIL items first, top to bottom, and run this again", False
    if args.dataset is None:
        return "ready; `nnunet-gdla doctor -d DATASET` checks a dataset too", False
    steps = [finding.fix for finding in found if finding.pending]
    if steps:
        return f"the raw data are in order, plans and preprocessed data are missing; {steps[0]}", False
    return "ready to train", True


def _report(found: list[Finding], counts: Counter[Level], conclusion: str, *, ready: bool) -> dict[str, object]:
    return {
        "findings": [
            {
                "level": str(finding.level),
                "title": finding.title,
                "text": f"{finding.title}: {finding.detail}",
                "advice": finding.fix,
            }
            for finding in found
        ],
        "passed": counts[Level.PASS],
        "warnings": counts[Level.WARN],
        "failed": counts[Level.FAIL],
        "ready_to_train": ready,
        "verdict": conclusion,
    }


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
        ("torch.compile", functools.partial(_where_usable, device, checks.check_compile)),
        ("forms", forms.check_forms),
        ("matrix products", functools.partial(forms.check_products, device)),
        ("training step", functools.partial(_where_usable, device, _training_step)),
    ]


def _where_usable(device: str, check: Callable[[str], Iterator[Finding]]) -> Iterator[Finding]:
    """Run a check of a device, unless there is none, which `checks.check_torch` has said."""
    if checks.is_usable(device):
        yield from check(device)


def _training_step(device: str) -> Iterator[Finding]:
    """Take a training step, unless no form of the operators can be chosen, which `forms.check_forms` has said."""
    if all(finding.level is not Level.FAIL for finding in forms.check_forms()):
        yield from checks.check_training_step(device)


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
    from nnunet_gdla.commands.doctor.training import Training, check_training
    from nnunet_gdla.commands.weights_compare import check_models

    folder = find_dataset(args.dataset)
    if isinstance(folder, Finding):
        yield folder
        return
    threads = min(MAX_THREADS, os.cpu_count() or 1)
    raw = yield from run_check("dataset", lambda: check_dataset(folder, num_threads=threads))
    training = Training(args.plans, args.configuration, args.fold, args.trainer, device, args.resume, args.full)
    yield from run_check("training", lambda: check_training(folder.name, training, raw))
    yield from run_check("models", functools.partial(check_models, folder.name))
