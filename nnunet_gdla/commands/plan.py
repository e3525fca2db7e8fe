"""`nnunet-gdla plan`: fit patch and batch of our network to a dataset and a device, and say how to train."""

import argparse
import contextlib
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnunet_gdla.errors import UserError
from nnunet_gdla.in_use import one_at_a_time

if TYPE_CHECKING:
    from nnunet_gdla.plans.nnunet_planner_gdla import nnUNetPlannerGDLA

__all__ = ["check_patch_size", "run"]

_DEFAULT_GB = 8.0


def run(args: argparse.Namespace) -> int:
    """Plan one dataset.

    Args:
        args: `dataset`, `gpu_memory_target`, `encoder`, `device`, `memory`, `preprocess`, `plans_name`, `overwrite`,
            `patch_size`, `batch_size`, `processes`.

    Returns:
        Exit code 0.

    Raises:
        UserError: If an argument makes no sense, the dataset is missing or unfit, its data were made with other
            settings, or somebody else's plans have this name.
    """
    target = _memory_target(args)
    _check_numbers(args)
    name = _find_dataset(args.dataset)
    processes = args.processes or _usual_processes()
    # Not before the folders are known to be set: nnU-Net reads the variables, and complains, when it is imported.
    from nnunet_gdla.commands.plan_fingerprint import ensure_fingerprint
    from nnunet_gdla.files import made_folder
    from nnunet_gdla.plans.nnunet_gdla_reuse import read_json

    folder = Path(os.environ["nnUNet_preprocessed"]) / name
    with made_folder(folder, option="nnUNet_preprocessed"), one_at_a_time(folder, lambda: _say_waiting(name)):
        ensure_fingerprint(name, processes)
        planner = _planner(args, name, target, processes)
        earlier = read_json(folder / f"{planner.plans_identifier}.json")
        _refuse_other_plans(planner, earlier, overwrite=args.overwrite)
        with contextlib.redirect_stdout(io.StringIO()):  # the same numbers as in our table, as nnU-Net prints them
            plans = planner.plan_experiment()
    plan = plans["configurations"]["2d"]
    for note in (*planner.notes, *_changes(planner.plans_identifier, earlier, plan)):
        print(note)
    print(_table(args, planner, plan))
    return 0


def _memory_target(args: argparse.Namespace) -> float:
    given, other = args.gpu_memory_target, args.memory
    if args.device == "cpu":
        given, other = other, given
    if other is not None:
        raise UserError(
            "-gpu_memory_target is for --device cuda and --memory for --device cpu: give the one that fits the device."
        )
    from nnunet_gdla.plans.nnunet_gdla_memory import check_target

    target = _DEFAULT_GB if given is None else float(given)
    check_target(target)
    return target


def _check_numbers(args: argparse.Namespace) -> None:
    check_patch_size(args.patch_size or ())
    for option, value in (("--batch-size", args.batch_size), ("-np", args.processes)):
        if value is not None and value < 1:
            raise UserError(f"{option} {value} must be at least 1.")
    name = args.plans_name
    if name is not None and (not name or "__" in name or set(name) & set("/\\") or name.startswith(".")):
        raise UserError(f"--plans-name {name!r} must be a plain name without '__', by which nnU-Net cuts folder names.")


def check_patch_size(edges: Sequence[int]) -> None:
    """Refuse a patch that the encoder cannot halve down to its last stage.

    Args:
        edges: Height and width in pixels; none at all is allowed.

    Raises:
        UserError: If one is no multiple of 32.
    """
    from nnunet_gdla.plans.nnunet_gdla_patch import PATCH_MULTIPLE

    if any(edge < PATCH_MULTIPLE or edge % PATCH_MULTIPLE for edge in edges):
        raise UserError(
            f"--patch-size {' '.join(map(str, edges))} must be multiples of {PATCH_MULTIPLE} above 0, by which the "
            "encoder reduces its image."
        )


def _find_dataset(dataset: str) -> str:
    from nnunet_gdla.commands.dataset_check import find_dataset
    from nnunet_gdla.commands.findings import Finding

    for variable in ("nnUNet_raw", "nnUNet_preprocessed"):
        if not os.environ.get(variable):
            raise UserError(f"{variable} is not set: export {variable}=/path/to/{variable}.")
    folder = find_dataset(dataset)
    if isinstance(folder, Finding):
        raise UserError(f"{folder.detail}: {folder.fix}.")
    if not (folder / "dataset.json").is_file():
        raise UserError(f"{folder} has no dataset.json: add it, `nnunet-gdla doctor -d {dataset}` looks at the rest.")
    return folder.name


def _usual_processes() -> int:
    from nnunetv2.configuration import default_num_processes

    return min(int(default_num_processes), os.cpu_count() or 1)


def _say_waiting(name: str) -> None:
    print(f"waiting for another nnunet-gdla plan of {name} to end", flush=True)


def _planner(args: argparse.Namespace, name: str, target: float, processes: int) -> "nnUNetPlannerGDLA":
    from nnunet_gdla.plans.nnunet_planner_gdla_variants import planner_of

    named: dict[str, Any] = {} if args.plans_name is None else {"plans_name": args.plans_name}
    planner = planner_of(args.encoder)(name, gpu_memory_target_in_gb=target, **named)
    planner.device = args.device
    planner.fixed_patch, planner.fixed_batch = args.patch_size, args.batch_size
    planner.reuse_data = True
    if args.preprocess:
        planner.preprocess = lambda plans_name: _preprocess(name, plans_name, processes)
    return planner


def _refuse_other_plans(planner: "nnUNetPlannerGDLA", earlier: dict[str, Any] | None, *, overwrite: bool) -> None:
    maker = type(planner).__name__ if earlier is None else earlier.get("experiment_planner_used", "another program")
    if maker != type(planner).__name__ and not overwrite:
        raise UserError(
            f"there are plans {planner.plans_identifier} already, made by {maker}: choose another --plans-name, or add "
            "--overwrite to replace them."
        )


def _changes(name: str, earlier: dict[str, Any] | None, plan: dict[str, Any]) -> Iterator[str]:
    """Say what planning again under the same name has changed; a model trained with the earlier plans has the old."""
    before = (earlier or {}).get("configurations", {}).get("2d")
    if before is not None:
        rows = [
            (what, before.get(key), plan[key])
            for what, key in (
                ("patch", "patch_size"),
                ("batch", "batch_size"),
                ("spacing", "spacing"),
                ("data", "data_identifier"),
            )
        ]
        old, new = (
            (each.get("architecture") or {}).get("arch_kwargs", {}).get("encoder", "none of ours")
            for each in (before, plan)
        )
        changed = [f"{what} {one} -> {two}" for what, one, two in (*rows, ("encoder", old, new)) if one != two]
        if changed:
            yield (
                f"{name} was there and is now another: {', '.join(changed)}. Trainings that run keep what they have "
                "read; one that is continued with --c takes the new plans."
            )


def _preprocess(name: str, plans_name: str, processes: int) -> None:
    from nnunetv2.experiment_planning.plan_and_preprocess_api import preprocess_dataset

    from nnunet_gdla.commands.plan_fingerprint import foreign_errors

    with foreign_errors(name), contextlib.redirect_stdout(io.StringIO()):  # the progress bar is on stderr
        preprocess_dataset(int(name[7:10]), plans_name, ("2d",), num_processes=(processes,))


def _table(args: argparse.Namespace, planner: "nnUNetPlannerGDLA", plan: dict[str, Any]) -> str:
    from nnunet_gdla.plans.nnunet_gdla_memory import GIB

    number = int(planner.dataset_name[7:10])
    memory = planner.memory
    assert memory is not None  # planning has just set it
    parts = ", ".join(
        f"{what} {value / GIB:.1f}"
        for what, value in (
            ("activations", memory.activations),
            ("weights and optimiser", memory.parameters),
            ("rest", memory.outputs + memory.workspace + memory.overhead),
        )
    )
    precision = "float16 autocast, not measured on a GPU" if planner.device == "cuda" else "float32, RAM"
    data = plan["data_identifier"]
    if not planner.data_ready:
        data += f" (to be made: nnUNetv2_preprocess -d {number} -plans_name {planner.plans_identifier} -c 2d)"
    size = " x ".join(f"{edge:g}" for edge in map(float, plan["median_image_size_in_voxels"]))
    trainer = type(planner).__name__.replace("Planner", "Trainer")  # both are named by the encoder
    training = f"nnUNetv2_train {number} 2d 0 -tr {trainer} -p {planner.plans_identifier}"
    rows = [
        ("plans", f"{planner.plans_identifier} of {planner.dataset_name}, encoder {args.encoder}"),
        ("median image", size),
        ("patch", " x ".join(map(str, plan["patch_size"]))),
        ("batch", str(plan["batch_size"])),
        ("memory", f"about {memory.total / GIB:.1f} GiB of {planner.UNet_vram_target_GB:g} ({parts}; {precision})"),
        ("data", data),
        ("train", training + (" -device cpu" if planner.device == "cpu" else "")),
    ]
    return "\n".join(f"{what:13} {value}" for what, value in rows)
