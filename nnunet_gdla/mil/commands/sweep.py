"""`nnunet-gdla-mil sweep`: methods against seeds on identical splits."""

import argparse
from pathlib import Path
from typing import Final

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.commands.shared import bar_wanted, device_changes, say
from nnunet_gdla.mil.config import LARGEST_SEED, load_config
from nnunet_gdla.mil.config_schema import Config
from nnunet_gdla.mil.files import write_csv
from nnunet_gdla.mil.gate_reach import seed_lines
from nnunet_gdla.mil.run_files import RunFiles
from nnunet_gdla.mil.sweep import Sweep, compare, comparison_lines, read_method, run_sweep

__all__ = ["METRICS", "run"]

METRICS: Final = {
    "classification": (
        *("accuracy", "balanced_accuracy", "macro_precision", "macro_recall", "macro_f1", "auc", "auprc"),
        *("quadratic_kappa", "linear_kappa", "ece", "sensitivity", "specificity"),
    ),
    "survival": ("c_index", "ibs", "auc_edges"),  # and auc_edge1, ... for each edge of the time bins
}


def run(args: argparse.Namespace) -> int:
    """Run what is missing, then print and write the comparison."""
    for seed in args.seeds:
        if not 0 <= seed <= LARGEST_SEED:
            raise UserError(f"--seeds {seed}: a seed must lie between 0 and {LARGEST_SEED}")
    changes = [*args.set, *device_changes(args)]
    config = load_config(args.config, changes)
    _refuse_metric(config, args.metric)
    out = Path(args.out)
    try:
        sweep = run_sweep(
            config,
            [read_method(text) for text in args.methods],
            args.seeds,
            out,
            fixed_split=args.fixed_split,
            say=say,
            progress=bar_wanted(args.no_progress),
        )
    except KeyboardInterrupt:
        print("\nthe same command goes on from here")
        raise
    table = compare(sweep, args.metric, bootstrap=config.train.bootstrap, fixed_split=args.fixed_split)
    write_csv(out / "comparison.csv", table)
    print()
    for line in comparison_lines(table):
        say(line)
    for line in _gate_lines(sweep):
        say(line)
    say(f"{out}: sweep.csv with every run, comparison.csv with this table")
    return 0


def _gate_lines(sweep: Sweep) -> list[str]:
    lines = []
    for method in sweep.methods:
        files = {seed: RunFiles(sweep.runs[method, seed].folder) for seed in sweep.seeds}
        ended = {seed: (run.gates, int(run.best_epoch or 1) - 1) for seed, run in files.items()}
        lines += seed_lines(method, ended)
    return lines


def _refuse_metric(config: Config, metric: str | None) -> None:
    """Before the first run: the last one would be a long time to wait for this."""
    known = METRICS[config.data.task]
    if config.data.task == "survival":
        known += tuple(f"auc_edge{edge}" for edge in range(1, config.train.num_bins))
    if metric is not None and metric not in known:
        raise UserError(f"no metric {metric!r} for {config.data.task}; choose one of {', '.join(known)}")
