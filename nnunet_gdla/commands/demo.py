"""`nnunet-gdla demo`: make data, train a small network inside nnU-Net, predict, score and draw, in about five minutes.

Heavy imports happen in the steps: a refused folder costs no import of torch.
"""

import argparse
import contextlib
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import TextIO

from nnunet_gdla import __version__
from nnunet_gdla.errors import UserError, WriteError
from nnunet_gdla.files import write_text
from nnunet_gdla.words import counted
from nnunet_gdla.write_errors import explained

__all__ = ["DEFAULT_EPOCHS", "DEFAULT_FOLDER", "run"]

DEFAULT_FOLDER = "nnunet-gdla-demo"
DEFAULT_EPOCHS = 30

_TRAINING_CASES, _HELD_OUT_CASES = 32, 4

_MARKER = "made_by_nnunet_gdla_demo.txt"
_MASKS = "predictions"
# Everything the demo writes, and so everything --overwrite may remove.
_OURS = ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results", _MASKS, "dice.json", "demo.png", "demo.log", _MARKER)


def run(args: argparse.Namespace) -> int:
    """Run the demo.

    Args:
        args: `out` (folder), `epochs`, `seed`, `device` and `overwrite`.

    Returns:
        Exit code: 0, or 130 after Ctrl-C.

    Raises:
        UserError: If the folder holds something else, or an argument makes no sense.
    """
    if args.epochs < 1:
        raise UserError(f"--epochs {args.epochs} trains nothing: give 1 or more (default {DEFAULT_EPOCHS}).")
    if not 0 <= args.seed < 2**32:
        raise UserError(f"--seed {args.seed} is outside 0 .. {2**32 - 1}, the range of numpy's seeds.")
    if args.device != "cpu":
        _refuse_missing_device(args.device)
    folder = Path(args.out).expanduser().resolve()
    _prepare(folder, overwrite=args.overwrite)
    try:
        with explained(folder, unfinished=folder):
            _demonstrate(folder, args)
    except WriteError as error:
        raise error.going_on(f"run the same command with --overwrite, or remove {folder}") from error
    except KeyboardInterrupt:
        print(
            f"\nStopped; nothing is left running. The same command with --overwrite starts anew; or remove {folder}.",
            file=sys.stderr,
        )
        return 130
    return 0


def _prepare(folder: Path, *, overwrite: bool) -> None:
    """Make the folder, or refuse one that holds anything else than an earlier demo that may be overwritten."""
    marker = folder / _MARKER
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: give a folder with --out.")
    try:
        if marker.exists():
            if not overwrite:
                raise UserError(
                    f"{folder} already holds a demo ({marker.read_text().strip()}): choose another folder with --out, "
                    "or make it anew with --overwrite."
                )
            for name in _OURS:
                path = folder / name
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        elif folder.exists() and any(folder.iterdir()):
            raise UserError(f"{folder} is not empty and holds no earlier demo: choose another folder with --out.")
        _mark(folder, "unfinished")
    except OSError as error:
        raise UserError(f"cannot write to {folder} ({error.strerror}): choose another folder with --out.") from error


def _mark(folder: Path, state: str) -> None:
    write_text(folder / _MARKER, f"{state}\n", option="--out")


def _demonstrate(folder: Path, args: argparse.Namespace) -> None:
    began = time.monotonic()
    console = _Console(sys.stdout)
    console.line(f"nnunet-gdla demo in {folder}")
    console.line("A small network, trained from scratch on made-up images inside nnU-Net; Ctrl-C stops it.")
    # Line by line, so that the log tells how far it came whatever ends the run.
    with (
        (folder / "demo.log").open("w", buffering=1) as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        try:
            dice = _all_steps(folder, args, console)
        except Exception as error:
            error.add_note(f"What nnU-Net printed before is in {log.name}.")
            raise
    _mark(folder, "finished")
    console.line()
    console.table(dice)
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    console.line(
        f"\nDone in {minutes} min {seconds:02d} s. Look at {folder / 'demo.png'}\n"
        f"Numbers: {folder / 'dice.json'}; what nnU-Net printed: {folder / 'demo.log'}\n"
    )
    console.line(_by_hand(folder, args.device))


def _all_steps(folder: Path, args: argparse.Namespace, console: "_Console") -> dict[str, list[float]]:
    """Run the five steps and return the Dice of each held-out case."""
    from nnunet_gdla.commands import demo_steps as steps
    from nnunet_gdla.commands import phantom

    raw = folder / "nnUNet_raw" / phantom.DATASET_NAME
    settings = steps.Settings(epochs=args.epochs, seed=args.seed, device=args.device)
    with console.step(1, f"making {_TRAINING_CASES} training and {_HELD_OUT_CASES} held-out images"):
        phantom.write_dataset(folder / "nnUNet_raw", args.seed, num_training=_TRAINING_CASES, num_test=_HELD_OUT_CASES)
    with steps.nnunet_settings(folder):
        with console.step(2, "planning and preprocessing with nnU-Net"):
            steps.plan_and_preprocess()
        length = f"{counted(settings.epochs, 'epoch')} of {steps.ITERATIONS} iterations"
        console.line(f"3/5 training {steps.TRAINER} on {args.device}, {length}")
        model = steps.train(settings, _EpochLines(console, settings.epochs, phantom.CLASSES))
        with console.step(4, "predicting the held-out images with nnU-Net's predictor"):
            steps.predict(model, raw / "imagesTs", folder / _MASKS, args.device)
        with console.step(5, "scoring and drawing"):
            dice = steps.score(raw / "labelsTs", folder / _MASKS)
            _write_results(folder, args, dice)
    return dice


def _refuse_missing_device(device: str) -> None:
    import torch

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA raises the latter
        raise UserError(f"--device {device} cannot be used here ({error}): try --device cpu.") from error


def _write_results(folder: Path, args: argparse.Namespace, dice: dict[str, list[float]]) -> None:
    from nnunet_gdla.commands import demo_figure, phantom

    by_case = {name: dict(zip(phantom.CLASSES, values, strict=True)) for name, values in dice.items()}
    result = {
        "mean_foreground_dice": fmean(value for values in dice.values() for value in values),
        "dice_per_class": {name: fmean(values[name] for values in by_case.values()) for name in phantom.CLASSES},
        "dice_per_case": by_case,
        "epochs": args.epochs,
        "seed": args.seed,
        "device": args.device,
        "nnunet_gdla": __version__,
    }
    write_text(folder / "dice.json", json.dumps(result, indent=2) + "\n")
    raw = folder / "nnUNet_raw" / phantom.DATASET_NAME
    demo_figure.draw(folder / "demo.png", raw / "imagesTs", raw / "labelsTs", folder / _MASKS, dice)


class _Console:
    """Writes to the user's terminal while nnU-Net's own output goes to the log."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def line(self, text: str = "", end: str = "\n") -> None:
        print(text, end=end, file=self._stream, flush=True)

    @contextlib.contextmanager
    def step(self, number: int, what: str) -> Iterator[None]:
        began = time.monotonic()
        self.line(f"{number}/5 {what} ... ", end="")
        yield
        self.line(f"{time.monotonic() - began:.0f} s")

    def table(self, dice: dict[str, list[float]]) -> None:
        from nnunet_gdla.commands.phantom import CLASSES

        width = max(map(len, dice))
        rows = [*dice.items(), ("mean", [fmean(column) for column in zip(*dice.values(), strict=True)])]
        self.line(f"{'Dice':{width}}" + "".join(f"{name:>9}" for name in (*CLASSES, "mean")))
        for name, values in rows:
            self.line(f"{name:{width}}" + "".join(f"{value:9.3f}" for value in (*values, fmean(values))))


class _EpochLines:
    """Prints one line an epoch."""

    def __init__(self, console: _Console, epochs: int, classes: tuple[str, ...]) -> None:
        self._console, self._epochs, self._classes = console, epochs, classes
        self._began = time.monotonic()

    def __call__(self, epoch: int, loss: float, dice: list[float]) -> None:
        per_class = "  ".join(f"{name} {value:.2f}" for name, value in zip(self._classes, dice, strict=True))
        left = (time.monotonic() - self._began) / epoch * (self._epochs - epoch)
        self._console.line(
            f"    epoch {epoch:{len(str(self._epochs))}}/{self._epochs}  loss {loss:6.3f}  pseudo Dice: {per_class}"
            f"  left {int(left) // 60}:{int(left) % 60:02d}"
        )


def _by_hand(folder: Path, device: str) -> str:
    """Return the shell lines that do the same with nnU-Net's own commands, in a results folder of their own."""
    from nnunet_gdla.commands import demo_steps as steps
    from nnunet_gdla.commands.phantom import DATASET_ID, DATASET_NAME

    raw, masks = folder / "nnUNet_raw" / DATASET_NAME, folder / "predictions_by_hand"
    assign = "set" if os.name == "nt" else "export"
    variables = steps.folder_variables(folder) | {"NNUNET_GDLA_ENCODER_WEIGHTS": "none"}
    if device == "cpu":
        # Threads that wait at full speed for each other bring a busy machine to a standstill; passive ones do not.
        variables |= {"nnUNet_def_n_proc": "1", "nnUNet_n_proc_DA": "0", "OMP_WAIT_POLICY": "passive"}
    trainer = f"{steps.TRAINER}_5epochs"
    model = f"{DATASET_ID} {steps.CONFIGURATION} {steps.FOLD} -tr {trainer} -p {steps.PLANS} -device {device}"
    quote = shlex.quote
    return "\n".join(
        [
            "The same by hand, with nnU-Net's own commands (an epoch has 250 iterations there), from the edited plans",
            f"{folder / 'nnUNet_preprocessed' / DATASET_NAME / steps.PLANS}.json",
            *(f"  {assign} {name}={quote(value)}" for name, value in variables.items()),
            f"  nnUNetv2_preprocess -d {DATASET_ID} -plans_name {steps.PLANS} -c {steps.CONFIGURATION} -np 1",
            f"  nnUNetv2_train {model}",
            f"  nnUNetv2_predict -d {DATASET_ID} -c {steps.CONFIGURATION} -f {steps.FOLD} -tr {trainer}"
            f" -p {steps.PLANS} -device {device} -npp 0 -nps 0"
            f" -i {quote(str(raw / 'imagesTs'))} -o {quote(str(masks))}",
            f"  nnUNetv2_evaluate_folder {quote(str(raw / 'labelsTs'))} {quote(str(masks))} -np 1"
            f" -djfile {quote(str(masks / 'dataset.json'))} -pfile {quote(str(masks / 'plans.json'))}",
        ]
    )
