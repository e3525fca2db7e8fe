"""`nnunet-gdla-mil demo`: make slides, train the base model and Gated SRP on the same splits, compare, draw."""

import argparse
import shutil
import time
from pathlib import Path
from typing import Any, Final

import pandas as pd
import torch

from nnunet_gdla.errors import UserError, WriteError
from nnunet_gdla.mil.bundle import load_bundle
from nnunet_gdla.mil.commands.heatmap import explain_slide
from nnunet_gdla.mil.commands.shared import say
from nnunet_gdla.mil.config import config_from_dict, save_config
from nnunet_gdla.mil.config_schema import Config
from nnunet_gdla.mil.files import read_csv, write_csv, write_text
from nnunet_gdla.mil.redundancy_stats import write_redundancy
from nnunet_gdla.mil.slides import read_slide
from nnunet_gdla.mil.sweep import Sweep, compare, comparison_lines, read_method, run_sweep
from nnunet_gdla.mil.synthetic import SyntheticCohort, TissueModel, make_cohort
from nnunet_gdla.write_errors import explained

__all__ = ["DEFAULT_EPOCHS", "DEFAULT_SLIDES", "run"]

DEFAULT_SLIDES: Final = 240
DEFAULT_EPOCHS: Final = 10
FEWEST_SLIDES: Final = 24
_REDUNDANCY, _SIGNAL, _RARE = 0.75, 4.0, 8
_MARKER: Final = "made_by_nnunet_gdla_mil_demo.txt"
# Everything the demo writes, and so everything --overwrite may remove.
_OURS: Final = ("cohort", "runs", "heatmap", "redundancy", "settings.yaml", "comparison.csv", _MARKER)


def run(args: argparse.Namespace) -> int:
    """Run the demo.

    Args:
        args: `out` (folder), `epochs` and `slides` (None: a few minutes' worth), `seed`, `overwrite`.

    Returns:
        Exit code 0.

    Raises:
        UserError: If the folder holds something else, or an argument makes no sense.
    """
    epochs = DEFAULT_EPOCHS if args.epochs is None else args.epochs
    slides = DEFAULT_SLIDES if args.slides is None else args.slides
    if epochs < 1:
        raise UserError(f"--epochs {epochs} trains nothing: give 1 or more (default {DEFAULT_EPOCHS})")
    if slides < FEWEST_SLIDES:
        raise UserError(f"--slides {slides} cannot be split: give {FEWEST_SLIDES} or more (default {DEFAULT_SLIDES})")
    if args.seed < 0:
        raise UserError(f"--seed {args.seed} is negative: give 0 or more")
    folder = Path(args.out).expanduser().resolve()
    _prepare(folder, overwrite=args.overwrite)
    try:
        with explained(folder, unfinished=folder):
            _demonstrate(folder, epochs, slides, args.seed)
    except WriteError as error:
        raise error.going_on(f"run the same command with --overwrite, or remove {folder}") from error
    except KeyboardInterrupt:
        say(f"\nStopped; nothing is left running. The same command with --overwrite starts anew; or remove {folder}.")
        raise
    return 0


def _demonstrate(folder: Path, epochs: int, slides: int, seed: int) -> None:
    began = time.monotonic()
    say(f"nnunet-gdla-mil demo in {folder}; Ctrl-C stops it")
    say(f"1/4 making {slides} slides: patches share {_REDUNDANCY:.0%} of their variance with those around them,")
    say(f"    {_RARE} patches of each slide carry its class")
    tissue = TissueModel(patches=80, dim=16, rare=_RARE)
    cohort = make_cohort(
        folder / "cohort", seed=seed, slides=slides, redundancy=_REDUNDANCY, signal=_SIGNAL, tissue=tissue
    )
    paths = sorted(cohort.features.iterdir())
    write_redundancy(folder / "redundancy", (read_slide(path) for path in paths))
    settings = _settings(folder, cohort, epochs, seed)
    say("2/4 training the base model (none), then Gated SRP (srp), on the same split")
    sweep = _trained(settings, folder, seed)
    say("3/4 comparing on the test slides")
    table = compare(sweep, bootstrap=settings.train.bootstrap, fixed_split=True)
    write_csv(folder / "comparison.csv", table)
    best = folder / "runs" / "srp" / f"seed_{seed}"
    say("4/4 heat map of a test slide")
    lines = _heat_map(folder, best, cohort)
    say("")
    for line in [*comparison_lines(table), "", *lines]:
        say(line)
    say("One seed says nothing about which is better: the interval is about these test slides only.")
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    write_text(folder / _MARKER, "finished\n")
    say(f"\nDone in {minutes} min {seconds:02d} s. Look at {best / 'figures'}, {folder / 'redundancy'} and")
    say(f"{folder / 'heatmap'}. With slides of your own:")
    say(f"  nnunet-gdla-mil check --config {folder / 'settings.yaml'}")
    say(f"  nnunet-gdla-mil fit --config {folder / 'settings.yaml'} --out run")


def _settings(folder: Path, cohort: SyntheticCohort, epochs: int, seed: int) -> Config:
    """Write and return settings of a small model."""
    tree: dict[str, Any] = {
        "data": {
            "table": str(cohort.table),
            "features": str(cohort.features),
            "task": "classification",
            "patient": "patient_id",
        },
        "split": {"scheme": "holdout", "seed": seed},
        "model": {
            "width": 48,
            "depth": 3,
            "num_heads": 4,
            "num_landmarks": 16,
            "delta": 1.0,
            "gate_hidden": 16,
        },
        "train": {
            "seed": seed,
            "epochs": epochs,
            "accumulate": 4,
            "lr": 4e-3,
            "workers": 0,
            "accelerator": "cpu",
            "grad_checkpointing": False,
            "bootstrap": 500,
        },
    }
    config = config_from_dict(tree, where="demo")
    save_config(folder / "settings.yaml", config)
    return config


def _trained(settings: Config, folder: Path, seed: int) -> Sweep:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the model is small: more threads only wait for each other
    try:
        methods = [read_method(name) for name in ("none", "srp")]
        return run_sweep(settings, methods, [seed], folder / "runs", fixed_split=True, say=_shortly)
    finally:
        torch.set_num_threads(threads)


def _shortly(line: str) -> None:
    """Print what changes while one waits; the rest of a run's report is in its `summary.txt`."""
    if line.startswith(("none, ", "srp, ", "epoch ", "best epoch ")):
        say(f"    {line}")


def _heat_map(folder: Path, run: Path, cohort: SyntheticCohort) -> list[str]:
    """Explain the first test slide and say where its rare patches are among the others by attention."""
    slide_id = read_csv(run / "predictions_test.csv")["slide_id"].iloc[0]
    bundle = load_bundle(run)
    explain_slide(bundle, cohort.features / f"{slide_id}.h5", folder / "heatmap", geojson=True)
    scores = pd.read_csv(folder / "heatmap" / f"{slide_id}.csv")
    rare = read_csv(cohort.rare).query("slide_id == @slide_id")["row"].to_numpy(int)
    places = ", ".join(f"{place:.0f}" for place in sorted(scores["attention_percentile"].to_numpy()[rare]))
    return [
        f"Heat map of {slide_id}: its {len(rare)} rare patches are at percentiles {places} of the attention.",
        "Low ones are no mistake: by the last block their message can lie in other patches. Attention is no proof.",
    ]


def _prepare(folder: Path, *, overwrite: bool) -> None:
    """Make the folder, or refuse one that holds anything else than an earlier demo that may be overwritten."""
    marker = folder / _MARKER
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: give a folder with --out")
    try:
        if marker.exists():
            if not overwrite:
                raise UserError(
                    f"{folder} already holds a demo ({marker.read_text().strip()}): choose another folder with --out, "
                    "or make it anew with --overwrite"
                )
            for name in _OURS:
                path = folder / name
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        elif folder.exists() and any(folder.iterdir()):
            raise UserError(f"{folder} is not empty and holds no earlier demo: choose another folder with --out")
        write_text(marker, "unfinished\n", option="--out")
    except OSError as error:
        raise UserError(f"cannot write to {folder} ({error.strerror}): choose another folder with --out") from error
