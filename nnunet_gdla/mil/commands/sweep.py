"""`nnunet-gdla-mil sweep`: methods against seeds on identical splits."""

import argparse
from pathlib import Path

from nnunet_gdla.mil.commands.shared import bar_wanted, device_changes, say
from nnunet_gdla.mil.config import load_config
from nnunet_gdla.mil.files import write_csv
from nnunet_gdla.mil.sweep import compare, comparison_lines, read_method, run_sweep

__all__ = ["run"]


def run(args: argparse.Namespace) -> int:
    """Run what is missing, then print and write the comparison."""
    changes = [*args.set, *device_changes(args)]
    config = load_config(args.config, changes)
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
    say(f"{out}: sweep.csv with every run, comparison.csv with this table")
    return 0
