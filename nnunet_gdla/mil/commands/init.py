"""`nnunet-gdla-mil init`: settings to start from."""

import argparse
from pathlib import Path

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.config import preset_names, preset_text
from nnunet_gdla.mil.files import write_text

__all__ = ["run"]


def run(args: argparse.Namespace) -> int:
    """List the settings that come with the package, or write one of them."""
    if args.name is None:
        for name in preset_names():
            print(f"{name:20} {_first_sentence(preset_text(name))}")
        return 0
    text = preset_text(args.name)
    path = Path(args.out or f"{args.name}.yaml")
    if path.exists():
        raise UserError(f"{path} exists; choose another --out")
    write_text(path, text, option="--out")
    print(f"{path}: fill in the section data, then run: nnunet-gdla-mil check --config {path}")
    return 0


def _first_sentence(text: str) -> str:
    return text.splitlines()[0].removeprefix("# ")
