"""Work that several tests build on, done once in a test run, by whichever worker needs it first."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from filelock import FileLock

from tests.integration.datasets import copy_small, edit_plans, find_dataset
from tests.integration.workspace import HERE, Workspace

__all__ = [
    "GDLA",
    "PREDICT_OPTIONS",
    "SHORT_GDLA_PLANS",
    "SHORT_PLANS",
    "once",
    "plan",
    "predict",
    "prepared",
    "run_together",
    "train",
    "trained",
]

PLAN: Final = ("nnunetv2.experiment_planning.plan_and_preprocess_entrypoints", "plan_and_preprocess_entry")
GDLA: Final = "nnUNetTrainerGDLAShort"
SHORT_PLANS: Final = "shortPlans"  # from stock plans
SHORT_GDLA_PLANS: Final = "shortGDLAPlans"  # from nnUNetPlannerGDLA's, with the smallest encoder
# Training and validation cases to keep. Predicting whole images, four times mirrored, is what takes the time.
CASES: Final = {"classes": (8, 1), "regions": (6, 1), "ignore": (3, 1), "odd": (4, 1)}
PREDICT_OPTIONS: Final = ("-device", "cpu", "-npp", "0", "-nps", "0", "--save_probabilities", "--disable_progress_bar")
# Longest edges, and by how much edges shrink: volumes keep the planned patch (56 x 40 in the hippocampus sets by stock
# plans), that of pictures becomes no multiple of 32.
PATCH: Final = {
    "classes": ((64, 64), 0),
    "regions": ((64, 64), 0),
    "ignore": ((136, 104), 8),
    "odd": ((104, 136), 8),
}


def once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Let `make` fill `folder`, unless that has been done.

    Raises:
        AssertionError: If it has failed before, so that it is not tried once a test.
    """
    done, failed = folder / "done", folder.with_name(f"{folder.name}.failed")
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        if done.exists():
            return folder
        assert not failed.exists(), f"{folder} could not be made: see the first test that needed it"
        failed.touch()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        make(folder)
        done.touch()
        failed.unlink()
    return folder


def prepared(base: Path, kind: str) -> tuple[Workspace, str]:
    """Return a workspace that holds a preprocessed dataset of a kind with short plans, and the dataset's name.

    The set with classes is planned by nnU-Net's planner and by ours, with nnU-Net's command; the others by ours alone,
    and without the new interpreters that the command starts.
    """
    source = find_dataset(kind)

    def make(root: Path) -> None:
        workspace = Workspace.below(root)
        copy_small(source, workspace.raw, *CASES[kind])
        planners = {"nnUNetPlannerGDLA": ("nnUNetGDLAPlans", SHORT_GDLA_PLANS, "pvt_v2_b0")}
        if kind == "classes":
            planners["ExperimentPlanner"] = ("nnUNetPlans", SHORT_PLANS, "")
        folder = workspace.preprocessed / source.name
        for planner, (plans, short, encoder) in planners.items():
            if kind == "classes":
                plan(workspace, source.name, planner, "--verify_dataset_integrity")
            else:
                run_together(workspace, [(*PLAN, *_plan_arguments(source.name, planner))])
            shutil.copy(workspace.raw / source.name / "splits_final.json", folder)
            largest, shrink = PATCH[kind]
            edit_plans(folder, plans, short, largest_patch=largest, shrink=shrink, encoder=encoder or None)

    return Workspace.below(once(base / kind, make)), source.name


def plan(workspace: Workspace, dataset: str, planner: str, *options: str) -> None:
    """Run nnU-Net's planning and preprocessing of the 2d configuration, which asks for one process or more."""
    arguments = _plan_arguments(dataset, planner)
    workspace.run("nnUNetv2_plan_and_preprocess", *arguments, *options, variables={"nnUNet_n_proc_DA": "1"})


def run_together(workspace: Workspace, calls: Sequence[Sequence[str]]) -> None:
    """Run several of nnU-Net's commands in one process, see `together.py`; a call is module, function, arguments."""
    listed = workspace.logs / "calls.json"
    listed.write_text(json.dumps(calls))
    workspace.run("python", HERE / "together.py", listed)


def _plan_arguments(dataset: str, planner: str) -> tuple[str, ...]:
    return ("-d", str(int(dataset[7:10])), "-pl", planner, "-c", "2d", "-np", "1", "-npfp", "1")


def train(
    workspace: Workspace,
    dataset: str,
    trainer: str,
    plans: str,
    *options: object,
    variables: Mapping[str, str] | None = None,
) -> str:
    """Run nnUNetv2_train with fold 0 on the CPU and return what it printed."""
    called = (dataset, "2d", "0", "-tr", trainer, "-p", plans, "-device", "cpu", *options)
    return workspace.run("nnUNetv2_train", *called, variables=variables)


def predict(workspace: Workspace, dataset: str, trainer: str, plans: str, masks: Path) -> str:
    """Run nnUNetv2_predict with fold 0 on the dataset's `imagesTs`, with probabilities; return what it printed."""
    return workspace.run(
        "nnUNetv2_predict",
        *("-d", dataset, "-c", "2d", "-f", "0", "-tr", trainer, "-p", plans),
        *("-i", workspace.raw / dataset / "imagesTs", "-o", masks),
        *PREDICT_OPTIONS,
    )


def trained(base: Path) -> tuple[Workspace, str]:
    """Return a workspace with our trainer's model of the set with classes, and the dataset's name.

    The folder `predicted` beside its results holds what nnUNetv2_predict made of the dataset's `imagesTs`.
    """
    data, dataset = prepared(base, "classes")

    def make(root: Path) -> None:
        workspace = Workspace.below(root, like=data)
        train(workspace, dataset, GDLA, SHORT_PLANS, "--npz")
        predict(workspace, dataset, GDLA, SHORT_PLANS, root / "predicted")

    return Workspace.below(once(base / "trained", make), like=data), dataset
