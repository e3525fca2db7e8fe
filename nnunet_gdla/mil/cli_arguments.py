"""The arguments of each subcommand of `nnunet-gdla-mil`. Standard library only."""

import argparse
from typing import Final

__all__ = ["check", "demo", "fit", "heatmap", "init", "predict", "sweep", "test", "validate"]

ACCELERATORS: Final = ("auto", "cpu", "gpu", "mps")


def init(parser: argparse.ArgumentParser) -> None:
    """Arguments of `init`."""
    parser.add_argument("name", metavar="NAME", nargs="?", help="which settings; without it they are listed")
    parser.add_argument("--out", metavar="FILE.yaml", help="file to write, a new one (default: NAME.yaml)")


def check(parser: argparse.ArgumentParser) -> None:
    """Arguments of `check`."""
    parser.add_argument("--config", metavar="FILE.yaml", required=True, help="settings to check with their data")
    parser.add_argument(
        "--statistics",
        metavar="FOLDER",
        help="also measure how much the slides repeat themselves locally: a table and a figure into this folder",
    )
    _changes(parser)


def fit(parser: argparse.ArgumentParser) -> None:
    """Arguments of `fit`."""
    add = parser.add_argument
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--config", metavar="FILE.yaml", help="settings of a new run")
    source.add_argument("--resume", metavar="RUN", help="go on with this run, with the settings it was started with")
    add("--out", metavar="RUN", help="folder of a new run (default: runs/NAME of the settings file)")
    _changes(parser)
    _trainer(parser)
    add("--fast", action="store_true", help="one epoch on a few slides through everything, results thrown away")
    add("--no-progress", action="store_true", help="no bar, one line per epoch")


def validate(parser: argparse.ArgumentParser) -> None:
    """Arguments of `validate`."""
    parser.add_argument("run", metavar="RUN", help="folder of a finished run")
    _device(parser)


def test(parser: argparse.ArgumentParser) -> None:
    """Arguments of `test`."""
    add = parser.add_argument
    add("--model", metavar="BUNDLE", nargs="+", required=True, help="bundle or run folder; several answer together")
    add("--cohort", metavar="TABLE.csv", required=True, help="slides with their labels, or times and events")
    add("--features", metavar="FOLDER", nargs="+", help="folder(s) of their H5 files (default: that of the table)")
    add("--out", metavar="FOLDER", help="folder for the results, new or empty (default: ./NAME_test of the table)")
    add(
        "--bootstrap",
        metavar="N",
        type=int,
        default=1000,
        help="draws behind the intervals, 2 or more (default: %(default)s)",
    )
    for name, default in (("slide", "slide_id"), ("label", "label"), ("time", "time"), ("event", "event")):
        add(f"--{name}-column", metavar="NAME", default=default, help="default: %(default)s")
    add(
        "--patient-column",
        metavar="NAME",
        help="column of patients, tcga or slide (default: patient_id if there, else slide)",
    )
    add("--label-map", metavar="OLD=NEW", nargs="+", default=[], help="new names of classes")
    add(
        "--event-map",
        metavar="ENTRY=0|1",
        nargs="+",
        default=[],
        help="what the entries of the event column mean (default: as in the training, if the column is the same)",
    )
    add(
        "--event-is-censoring",
        choices=("true", "false"),
        help="whether 1 means censored in the event column (default: as in the training, if the column is the same)",
    )
    _reading(parser)
    _device(parser)


def predict(parser: argparse.ArgumentParser) -> None:
    """Arguments of `predict`."""
    add = parser.add_argument
    # optional for the parser alone: behind `--model BUNDLE` the folder is read as one more bundle
    add("features", metavar="FOLDER", nargs="?", help="folder of H5 files, one per slide; or one such file")
    add("--model", metavar="BUNDLE", nargs="+", required=True, help="bundle or run folder; several are an ensemble")
    add("--out", metavar="FILE.csv", default="predictions.csv", help="table to write (default: %(default)s)")
    _reading(parser)
    _device(parser)


def sweep(parser: argparse.ArgumentParser) -> None:
    """Arguments of `sweep`."""
    add = parser.add_argument
    add("--config", metavar="FILE.yaml", required=True, help="settings that all runs share")
    add("--out", metavar="FOLDER", required=True, help="folder of the runs and of sweep.csv")
    add("--methods", metavar="METHOD", nargs="+", default=["none", "srp", "xsa", "diff"], help="default: %(default)s")
    add("--seeds", metavar="S", nargs="+", type=int, default=[0, 1, 2], help="default: %(default)s")
    add("--fixed-split", action="store_true", help="seeds change the training alone, all runs share one split")
    add("--metric", metavar="NAME", help="metric to compare (default: auc for two or more classes, c_index)")
    _changes(parser)
    _trainer(parser)
    add("--no-progress", action="store_true", help="no bar, one line per epoch")


def heatmap(parser: argparse.ArgumentParser) -> None:
    """Arguments of `heatmap`."""
    add = parser.add_argument
    add("features", metavar="SLIDE.h5", help="H5 file of a slide, or a folder of them")
    add("--model", metavar="BUNDLE", required=True, help="bundle or run folder")
    add("--slide", metavar="IMAGE", help="the slide itself (.svs, .tif, ...) or a picture, to draw on; or a folder")
    add("--out", metavar="FOLDER", default="heatmaps", help="folder for pictures and values (default: ./%(default)s)")
    add(
        "--mpp",
        metavar="UM",
        type=float,
        help="micrometres per pixel of the slide, for coordinates in micrometres (default: what the slide says)",
    )
    add("--geojson", action="store_true", help="also write patches with values for QuPath")
    add("--top", metavar="N", type=int, help="sheet of the N patches with most attention; needs --slide")
    add(
        "--percentile",
        metavar="P",
        type=float,
        default=99.0,
        help="colours end at this percentile of the values (default: %(default)s)",
    )
    _device(parser)


def demo(parser: argparse.ArgumentParser) -> None:
    """Arguments of `demo`."""
    add = parser.add_argument
    add("--out", metavar="FOLDER", default="nnunet-gdla-mil-demo", help="folder, new or empty (default: ./%(default)s)")
    add("--epochs", metavar="N", type=int, help="length of each training (default: a few minutes' worth)")
    add("--seed", metavar="S", type=int, default=0, help="same seed and CPU, same result (default: %(default)s)")
    add("--slides", metavar="N", type=int, help="slides to make (default: a few minutes' worth)")
    add("--overwrite", action="store_true", help="replace what an earlier demo left in the folder")


def _changes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        metavar="SECTION.KEY=VALUE",
        action="append",
        default=[],
        help="change a setting, such as train.epochs=3; can be given several times",
    )


def _trainer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--accelerator", choices=ACCELERATORS, help="default: as in the settings (train.accelerator)")
    parser.add_argument("--devices", metavar="N", type=int, help="devices that train together (default: as there)")


def _device(parser: argparse.ArgumentParser) -> None:
    choices = ("auto", "cpu", "cuda", "mps")
    parser.add_argument("--device", choices=choices, default="auto", help="default: cuda where there is one, else cpu")


def _reading(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--feature-key", metavar="KEY", help="which encoder, where the files hold several")
    parser.add_argument(
        "--workers", metavar="N", type=int, default=2, help="processes that read (default: %(default)s)"
    )
