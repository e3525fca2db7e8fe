"""Datasets planned by nnU-Net and by us, side by side: patch, batch, memory, seconds per iteration, Dice.

    python -m benchmarks.planning --folder planned
    python -m benchmarks.planning --folder planned --datasets 904 --train-seconds 300
    python -m benchmarks.planning --folder planned --datasets 112 113 --train-seconds 900 --train-batch 2

Reads the datasets from nnUNet_raw and writes everything else into the folder. The seconds are of training steps on
made-up images through each trainer's own `train_step`, in float32 on this CPU with the batch lowered to 2 for every
plan, since no CPU trains the planned batches in reasonable time. Stock memory is the figure by which nnU-Net sizes its
batches, ours that of the memory model; neither was measured on a GPU. All seconds are CPU seconds of this process on
one thread, which other work on the machine disturbs least. With --train-seconds each plan is preprocessed and trained
from scratch on fold 0 for as many steps as fit the time, then validated as nnU-Net does. Finished rows are read back
from planning.jsonl in the folder: a stopped script goes on.
"""

import argparse
import contextlib
import io
import json
import math
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

PLANNERS = ("ExperimentPlanner", "nnUNetPlannerGDLA", "nnUNetPlannerGDLA_B0")
BATCH = 2
EPOCHS = 5


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for preprocessed data, results and the table")
    parser.add_argument("--datasets", type=int, nargs="+", default=[904, 112, 113])
    parser.add_argument("--planners", nargs="+", default=PLANNERS)
    parser.add_argument("--gpu-memory-target", type=float, default=8, metavar="GB")
    parser.add_argument(
        "--steps", type=int, default=3, help="timed steps, after one that is not (default: %(default)s)"
    )
    parser.add_argument("--train-seconds", type=float, default=0, metavar="S", help="also train, this long a plan")
    parser.add_argument("--train-batch", type=int, default=12, help="at most this batch (default: %(default)s)")
    arguments = parser.parse_args()
    settings = {"nnUNet_n_proc_DA": "1", "nnUNet_compile": "f", "NNUNET_GDLA_ENCODER_WEIGHTS": "none"}
    folders = {name: str(arguments.folder / name) for name in ("nnUNet_preprocessed", "nnUNet_results")}
    os.environ |= settings | folders
    arguments.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    results = arguments.folder / "planning.jsonl"
    for dataset in arguments.datasets:
        for planner in arguments.planners:
            key = {
                "dataset": dataset,
                "planner": planner,
                "target": arguments.gpu_memory_target,
                "budget": arguments.train_seconds,
            }
            if not any(key.items() <= row.items() for row in finished(results)):
                row = key | compare(dataset, planner, arguments)
                with results.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    print_table(finished(results))


def finished(path: Path) -> list[dict[str, Any]]:
    """Rows that the results file holds."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def compare(dataset: int, name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One row: plan, time, and train if asked to."""
    from nnunetv2.experiment_planning import plan_and_preprocess_api as api
    from nnunetv2.experiment_planning.experiment_planners.default_experiment_planner import ExperimentPlanner

    from nnunet_gdla import plans as ours

    print(f"{dataset} {name}", flush=True)
    api.extract_fingerprint_dataset(dataset, num_processes=1, clean=False, verbose=False)
    planner_class = ExperimentPlanner if name == "ExperimentPlanner" else getattr(ours, name)
    planner = planner_class(dataset, gpu_memory_target_in_gb=arguments.gpu_memory_target)
    with contextlib.redirect_stdout(io.StringIO()):
        plans = planner.plan_experiment()
    flat = plans["configurations"]["2d"]
    row = {
        "patch": [int(edge) for edge in flat["patch_size"]],
        "batch": int(flat["batch_size"]),
        "memory": predicted_memory(planner, flat),
        "seconds": seconds_per_step(planner, plans, BATCH, arguments.steps),
    }
    if arguments.train_seconds:
        row |= train(dataset, planner, plans, arguments)
    return row


def predicted_memory(planner: Any, flat: dict[str, Any]) -> float:  # noqa: ANN401
    """Gigabytes: our model's, or nnU-Net's feature-map elements over its reference of 12 times 85 million at 8 GB."""
    if getattr(planner, "memory", None) is not None:
        return float(planner.memory.total / 2**30)
    architecture = flat["architecture"]
    elements = planner.static_estimate_VRAM_usage(
        flat["patch_size"],
        len(planner.dataset_json["channel_names"]),
        len(planner.dataset_json["labels"]),
        architecture["network_class_name"],
        architecture["arch_kwargs"],
        architecture["_kw_requires_import"],
    )
    reference = planner.UNet_reference_val_2d * planner.UNet_reference_val_corresp_bs_2d
    return float(elements * flat["batch_size"] / reference * planner.UNet_reference_val_corresp_GB)


def make_trainer(planner: Any, plans: dict[str, Any], batch: int) -> Any:  # noqa: ANN401
    """The trainer that belongs to a plan, with another batch."""
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

    from nnunet_gdla.trainers import resolve

    changed = json.loads(json.dumps(plans)) | {"continue_training": False}
    changed["configurations"]["2d"]["batch_size"] = batch
    is_ours = type(planner).__name__.startswith("nnUNetPlannerGDLA")
    trainer_class = resolve("nnUNetTrainerGDLA") if is_ours else nnUNetTrainer
    return trainer_class(changed, "2d", 0, planner.dataset_json, device=torch.device("cpu"))


def seconds_per_step(planner: Any, plans: dict[str, Any], batch: int, steps: int) -> float:  # noqa: ANN401
    """Median CPU seconds of training steps on made-up images."""
    torch.manual_seed(0)
    with contextlib.redirect_stdout(io.StringIO()):
        trainer = make_trainer(planner, plans, batch)
    # What `initialize` does, which also asks for preprocessed data.
    manager = trainer.configuration_manager
    channels = len(planner.dataset_json["channel_names"])
    heads = trainer.label_manager.num_segmentation_heads
    trainer.network = trainer.build_network_architecture(trainer.plans_manager, manager, channels, heads, True)
    trainer.network.train()
    trainer.optimizer, trainer.lr_scheduler = trainer.configure_optimizers()
    trainer.loss = trainer._build_loss()
    shape = (batch, channels, *manager.patch_size)
    scales = trainer._get_deep_supervision_scales()
    sizes = [[round(edge * part) for edge, part in zip(shape[2:], scale, strict=True)] for scale in scales]
    target = [torch.randint(0, heads, (batch, 1, *size)).float() for size in sizes]
    times = []
    for _ in range(steps + 1):
        began = time.process_time()
        trainer.train_step({"data": torch.randn(shape), "target": target})
        times.append(time.process_time() - began)
    return statistics.median(times[1:])


def train(dataset: int, planner: Any, plans: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:  # noqa: ANN401
    """Preprocess, train for the time given and validate."""
    from nnunetv2.experiment_planning.plan_and_preprocess_api import preprocess_dataset

    batch = min(int(plans["configurations"]["2d"]["batch_size"]), arguments.train_batch)
    steps = max(EPOCHS, int(arguments.train_seconds / seconds_per_step(planner, plans, batch, arguments.steps)))
    preprocess_dataset(dataset, planner.plans_identifier, ("2d",), num_processes=(1,))
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - the augmentation draws from it
    trainer = make_trainer(planner, plans, batch)
    trainer.num_epochs, trainer.num_iterations_per_epoch = EPOCHS, math.ceil(steps / EPOCHS)
    trainer.num_val_iterations_per_epoch = 1
    began = time.process_time()
    trainer.run_training()
    trained = time.process_time() - began
    trainer.perform_actual_validation(save_probabilities=False)
    summary = json.loads((Path(trainer.output_folder) / "validation" / "summary.json").read_text())
    steps = EPOCHS * trainer.num_iterations_per_epoch
    return {"dice": summary["foreground_mean"]["Dice"], "trained": trained, "steps": steps, "train_batch": batch}


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print the rows as a table in Markdown."""
    print("\n| dataset | planner | target GB | patch | batch | predicted GB | CPU s per step, batch 2 | Dice after |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        patch = " x ".join(map(str, row["patch"]))
        dice = (
            f"{row['dice']:.3f} ({row['trained']:.0f} CPU s, {row['steps']} steps of {row['train_batch']})"
            if "dice" in row
            else "-"
        )
        print(
            f"| {row['dataset']} | {row['planner']} | {row['target']:g} | {patch} | {row['batch']} "
            f"| {row['memory']:.1f} | {row['seconds']:.2f} | {dice} |"
        )


if __name__ == "__main__":
    main()
