"""Why the study came out as it did: exploratory runs, made after its results were known.

    python -m benchmarks.srp_followup --results srp_followup.jsonl

Two questions to the cohorts of `benchmarks.srp_study`, on its own seeds, so that differences are paired:
1. Is it the gate or the projection? A coefficient fixed at 1 (the neighbours' direction is always removed) in the place
   of the gate, at every level.
2. Is it the budget? Base, Gated SRP, XSA and the fixed coefficient with four times the epochs, at redundancy 0.75.
Finished runs are read back.
"""

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from benchmarks import srp_study as study

FIXED: Final = {"fixed1": {"correction": "fixed:1.0"}}
LONG_EPOCHS: Final = 4 * study.SETTINGS["epochs"]
LONG_LEVEL: Final = 0.75
LONG_SEEDS: Final = study.SEEDS[:10]


def main() -> None:
    """Run what is missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("srp_followup.jsonl"))
    parser.add_argument("--study", type=Path, default=Path("srp_study.jsonl"), help="results of the study itself")
    parser.add_argument("--processes", type=int, default=2, help="each with one thread (default: %(default)s)")
    arguments = parser.parse_args()
    tasks = [(seed, level, "fixed1", study.SETTINGS["epochs"]) for level in study.STRENGTHS for seed in study.SEEDS]
    methods = ("base", "srp", "xsa", "fixed1")
    tasks += [(seed, LONG_LEVEL, method, LONG_EPOCHS) for seed in LONG_SEEDS for method in methods]
    done = {(run["seed"], run["level"], run["method"], run["epochs"]) for run in finished(arguments.results)}
    with ProcessPoolExecutor(arguments.processes) as pool:
        for run in pool.map(run_one, [task for task in tasks if task not in done]):
            with arguments.results.open("a") as file:
                file.write(json.dumps(run) + "\n")
    print_tables(finished(arguments.results), study.finished(arguments.study))


def finished(path: Path) -> list[dict[str, Any]]:
    """Return the runs of the results file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def run_one(task: tuple[int, float, str, int]) -> dict[str, Any]:
    """Run one method with one seed and level for so many epochs."""
    seed, level, method, epochs = task
    torch.set_num_threads(1)
    study.METHODS.update(FIXED)
    study.SETTINGS["epochs"] = epochs
    result = study.train(method, study.make_parts(level, study.STRENGTHS[level], seed)[0], seed)
    return {"seed": seed, "level": level, "method": method, "epochs": epochs} | result


def print_tables(runs: list[dict[str, Any]], results: list[dict[str, Any]]) -> None:
    """Print differences of the fixed coefficient at every level, and of all methods with the longer training."""
    short = [run for run in runs if run["epochs"] != LONG_EPOCHS]
    print("| redundancy | fixed beta 1 | minus base [95 %] | minus Gated SRP | minus XSA |\n|---|---|---|---|---|")
    for level in study.STRENGTHS:
        print(f"| {level} | {row(short + results, level, 'fixed1', ('base', 'srp', 'xsa'))} |")
    print(f"\n{LONG_EPOCHS} epochs, redundancy {LONG_LEVEL}, {len(LONG_SEEDS)} seeds:")
    print("\n| method | AUC | training AUC | minus base [95 %] |\n|---|---|---|---|")
    long = [run for run in runs if run["epochs"] == LONG_EPOCHS]
    for method in ("base", "srp", "xsa", "fixed1"):
        fit = np.mean([run["train_auc"] for run in long if run["method"] == method])
        auc, *difference = row(long, LONG_LEVEL, method, ("base",)).split(" | ")
        print(f"| {method} | {auc} | {fit:.3f} | {difference[0] if method != 'base' else ''} |")


def row(runs: list[dict[str, Any]], level: float, method: str, others: tuple[str, ...]) -> str:
    """Return mean and standard deviation of a method, and its differences to others with intervals."""
    values = [run["auc"] for run in runs if run["level"] == level and run["method"] == method]
    cells = [f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"]
    for other in others:
        mean, low, high = study.interval(study.differences(runs, level, method, other))
        cells.append(f"{mean:+.3f} ({low:+.3f} to {high:+.3f})")
    return " | ".join(cells)


if __name__ == "__main__":
    main()
