"""How fast each network learns a small dataset on a CPU, against nnU-Net's own 2D U-Net on the same plan.

    nnUNetv2_plan_and_preprocess -d 904 -c 2d
    python -m benchmarks.learning -d 904 --results learning.jsonl

Trains every trainer with every seed for a fixed number of iterations on fold 0 (stock plan, batch size edited), through
nnU-Net's own training loop, and prints the pseudo Dice of the last epoch per class, their mean over seeds and the
seconds of 60 iterations. Finished runs are read back from the results file: a stopped script goes on.
"""

import argparse
import json
import os
import random
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch

TRAINERS = ("nnUNetTrainer", "nnUNetTrainerGDLA_B0", "nnUNetTrainerGDLA", "nnUNetTrainerGDLA_B0_DiceCE")


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-d", "--dataset", type=int, default=904)
    parser.add_argument("--trainers", nargs="+", default=TRAINERS)
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    parser.add_argument("--iterations", type=int, default=480)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--results", type=Path, default=Path("learning.jsonl"))
    arguments = parser.parse_args()
    os.environ["nnUNet_n_proc_DA"] = "0"
    os.environ["NNUNET_GDLA_ENCODER_WEIGHTS"] = "none"
    torch.set_num_threads(arguments.threads)
    for seed in arguments.seeds:
        for trainer in arguments.trainers:
            key = {"dataset": arguments.dataset, "trainer": trainer, "seed": seed, "iterations": arguments.iterations}
            if not any(key.items() <= run.items() for run in finished(arguments.results)):
                result = key | train(trainer, seed, arguments)
                with arguments.results.open("a") as file:
                    file.write(json.dumps(result) + "\n")
    print_table(finished(arguments.results), arguments)


def finished(path: Path) -> list[dict[str, Any]]:
    """Runs that the results file holds."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def train(name: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One training through nnU-Net's loop."""
    from nnunetv2.paths import nnUNet_preprocessed
    from nnunetv2.utilities.dataset_name_id_conversion import maybe_convert_to_dataset_name
    from nnunetv2.utilities.find_objects import recursive_find_trainer_class_by_name

    folder = Path(str(nnUNet_preprocessed)) / maybe_convert_to_dataset_name(arguments.dataset)
    plans = json.loads((folder / "nnUNetPlans.json").read_text())
    plans["plans_name"] = f"learning{arguments.batch}seed{seed}"
    plans["configurations"]["2d"]["batch_size"] = arguments.batch
    plans["continue_training"] = False
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - nnU-Net's augmentation draws from the global generator
    torch.manual_seed(seed)
    trainer = recursive_find_trainer_class_by_name(name)(
        deepcopy(plans), "2d", 0, json.loads((folder / "dataset.json").read_text()), torch.device("cpu")
    )
    trainer.num_epochs, trainer.num_iterations_per_epoch = arguments.iterations // 60, 60
    trainer.num_val_iterations_per_epoch = 25
    start = time.perf_counter(), time.process_time()
    trainer.run_training()
    wall, cpu = time.perf_counter() - start[0], time.process_time() - start[1]
    epochs = [
        end - begin
        for begin, end in zip(
            trainer.logger.get_value("epoch_start_timestamps", None),
            trainer.logger.get_value("epoch_end_timestamps", None),
            strict=True,
        )
    ]
    return {
        "dice": [float(dice) for dice in trainer.logger.get_value("dice_per_class_or_region", -1)],
        "curve": [float(dice) for dice in trainer.logger.get_value("mean_fg_dice", None)],
        "epoch_s": float(np.median(epochs)),
        "wall_s": wall,
        "cpu_s": cpu,
    }


def print_table(runs: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    """Markdown: one row a trainer, the seeds of each class beside each other."""
    print("\n| trainer | pseudo Dice per class, seeds | mean | median epoch s | CPU s a run |\n|---|---|---|---|---|")
    for trainer in arguments.trainers:
        mine = [r for r in runs if r["trainer"] == trainer and r["iterations"] == arguments.iterations]
        if not mine:
            continue
        dice = np.array([run["dice"] for run in mine])
        seeds = "; ".join(" ".join(f"{value:.3f}" for value in column) for column in dice.T)
        print(
            f"| {trainer} | {seeds} | {' / '.join(f'{value:.3f}' for value in dice.mean(0))} | "
            f"{np.median([run['epoch_s'] for run in mine]):.1f} | {np.mean([run['cpu_s'] for run in mine]):.0f} |"
        )


if __name__ == "__main__":
    main()
