"""`nnunet-gdla weights fetch`: the encoders' ImageNet weights, for machines whose compute nodes have no internet."""

import argparse
import os
import shlex
import shutil
from pathlib import Path

import huggingface_hub

from nnunet_gdla.errors import UserError
from nnunet_gdla.files import replaced
from nnunet_gdla.networks import PVTGDLA
from nnunet_gdla.networks.weights import (
    WEIGHTS_VARIABLE,
    fetch_encoder_weights,
    load_encoder_weights,
)

__all__ = ["run"]


def run(args: argparse.Namespace) -> int:
    """Fetch each encoder's file, look whether it fits, and say where it is; return 0.

    Args:
        args: `encoder` (list of names), `to` (folder or None).

    Raises:
        UserError: If a file cannot be had, does not fit or cannot be copied.
    """
    for encoder in dict.fromkeys(args.encoder):
        file = _fetch(encoder)
        if args.to is None:
            print(f"{encoder}: {file}")
        else:
            copy = _copy(file, Path(args.to), encoder)
            print(f"{encoder}: {copy}\n  for trainings with this encoder: export {WEIGHTS_VARIABLE}={_quoted(copy)}")
    if args.to is None:
        cache = huggingface_hub.constants.HF_HUB_CACHE
        print(
            f"Trainings find it there by themselves, without internet, where they see the same folder; on a machine or "
            f"with a home directory that does not: export HF_HUB_CACHE={_quoted(Path(cache).absolute())}"
        )
    _mention_the_variable(to_folder=args.to is not None)
    return 0


def _fetch(encoder: str) -> Path:
    try:
        file = fetch_encoder_weights(encoder)
    except FileNotFoundError as error:
        raise UserError(str(error)) from error
    try:
        load_encoder_weights(PVTGDLA(3, 2, encoder=encoder), file)
    except ValueError as error:
        raise UserError(f"{error}; delete {file} (and what it links to), then fetch again") from error
    return file


def _copy(file: Path, folder: Path, encoder: str) -> Path:
    target = folder / f"{encoder}{file.suffix}"
    replaced(target, lambda unfinished: shutil.copyfile(file, unfinished), option="--to")
    return target.absolute()


def _mention_the_variable(*, to_folder: bool) -> None:
    value = os.environ.get(WEIGHTS_VARIABLE, "").strip()
    if value and value.lower() != "imagenet" and not to_folder:
        print(f"Now {WEIGHTS_VARIABLE}={value} is set, so that trainings do not look there: unset {WEIGHTS_VARIABLE}")


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
