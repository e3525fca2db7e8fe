"""The command `nnunet-gdla-mil`. Standard library only until a subcommand runs, so that `--help` answers at once."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

from nnunet_gdla.command_line import Command, make_parser, run_command
from nnunet_gdla.mil import cli_arguments as arguments

__all__ = ["EXTRA", "main"]

EXTRA: Final = "pip install 'nnunet-gdla[mil]'"
_NEEDED: Final = ("h5py", "lightning", "jsonargparse", "pandas", "sklearn")
DESCRIPTION = "Slide models from patch features: trains, tests and explains them, with Gated SRP or its comparators."
EXAMPLES = """\
examples:
  nnunet-gdla-mil demo --out demo                          made-up slides, a few minutes on two CPU cores
  nnunet-gdla-mil init own_classification --out mine.yaml  a commented settings file to fill in
  nnunet-gdla-mil check --config mine.yaml                 are all slides and labels fit for a training?
  nnunet-gdla-mil fit --config mine.yaml --out runs/first
  nnunet-gdla-mil test --model runs/first --cohort other.csv --features other_h5 --out other_results
  nnunet-gdla-mil heatmap --model runs/first other_h5/slide.h5 --out heatmaps
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code, see `run_command`."""
    return run_command(_parser(), argv, _run)


def _parser() -> argparse.ArgumentParser:
    return make_parser("nnunet-gdla-mil", DESCRIPTION, EXAMPLES, COMMANDS)


def _run(args: argparse.Namespace) -> int:
    if any(map(_missing, _NEEDED)):
        print(EXTRA, file=sys.stderr)
        return 2
    code: int = importlib.import_module(f"nnunet_gdla.mil.commands.{args.command}").run(args)
    return code


def _missing(name: str) -> bool:
    # sys.modules holds None for a module whose import is blocked
    return sys.modules.get(name, ...) is None or (name not in sys.modules and find_spec(name) is None)


COMMANDS = {
    "init": Command(
        "writes a commented settings file",
        """\
Without a name: lists what there is. Fill in the paths and column names, then run `check`.

examples:
  nnunet-gdla-mil init
  nnunet-gdla-mil init own_survival --out mine.yaml""",
        arguments.init,
    ),
    "check": Command(
        "looks at every slide, label and split before hours are lost on them",
        """\
Reads the table and opens all files: missing slides, widths, encoders, NaN, strides, patches without neighbours, labels,
events, and patients on both sides of a split. Prints PASS, WARN or FAIL lines; the exit code is 1 if anything failed.

examples:
  nnunet-gdla-mil check --config mine.yaml""",
        arguments.check,
    ),
    "fit": Command(
        "trains a model, tests its best epoch and exports it",
        """\
Checks the cohort, trains, predicts validation and test slides with the best epoch, and writes metrics with intervals,
figures and the bundle into the run's folder. Ctrl-C stops it; --resume goes on at the last finished epoch.

examples:
  nnunet-gdla-mil fit --config mine.yaml --out runs/first
  nnunet-gdla-mil fit --config mine.yaml --out runs/xsa --set model.correction=xsa --set train.epochs=10
  nnunet-gdla-mil fit --config mine.yaml --fast
  nnunet-gdla-mil fit --resume runs/first""",
        arguments.fit,
    ),
    "validate": Command(
        "computes the validation metrics of a run again",
        """\
Predicts the validation slides with the bundle of the run and prints the metrics; nothing is written.

examples:
  nnunet-gdla-mil validate runs/first""",
        arguments.validate,
    ),
    "test": Command(
        "tests a trained model on another cohort, without refitting anything",
        """\
Classes, thresholds, bin edges and the median risk come from the bundle. Several bundles answer together.

examples:
  nnunet-gdla-mil test --model runs/first --cohort other.csv --features other_h5 --out other_results
  nnunet-gdla-mil test --model runs/fold0 runs/fold1 --cohort other.csv --features other_h5 --out other_results""",
        arguments.test,
    ),
    "predict": Command(
        "predicts slides without labels",
        """\
One row per slide. Several bundles are an ensemble: the mean of their answers.

examples:
  nnunet-gdla-mil predict --model runs/first new_h5 --out predictions.csv
  nnunet-gdla-mil predict --model runs/fold0 runs/fold1 runs/fold2 new_h5 --out predictions.csv""",
        arguments.predict,
    ),
    "sweep": Command(
        "compares methods over seeds on identical splits",
        """\
Runs every method with every seed; what is finished is read back, so the same command goes on after a stop. Prints mean
and standard deviation per method, and differences to the first one. A method is a known name, or NAME:KEY=VALUE[,...]
with settings of its own.

examples:
  nnunet-gdla-mil sweep --config mine.yaml --out sweeps/first --methods none srp xsa diff --seeds 0 1 2 3 4
  nnunet-gdla-mil sweep --config mine.yaml --out sweeps/delta --methods none wide:model.delta=2.0 --seeds 0 1 2""",
        arguments.sweep,
    ),
    "heatmap": Command(
        "shows where a model looks, and what its gates do there",
        """\
Attention of the class token and the gate's coefficient per block, on the slide's image or on the lattice of patches;
raw values as H5 and CSV in file order.

examples:
  nnunet-gdla-mil heatmap --model runs/first h5/slide.h5 --out heatmaps
  nnunet-gdla-mil heatmap --model runs/first h5/slide.h5 --slide slide.svs --out heatmaps --geojson --top 16""",
        arguments.heatmap,
    ),
    "demo": Command(
        "trains and compares two models on made-up slides, without any download",
        """\
Makes slides with planted redundancy and a rare signal, trains a model without and with Gated SRP on the same splits,
prints the comparison and writes the figures. Ctrl-C stops it cleanly.

examples:
  nnunet-gdla-mil demo
  nnunet-gdla-mil demo --out /tmp/demo --epochs 2""",
        arguments.demo,
    ),
}


if __name__ == "__main__":
    sys.exit(main())
