"""What several subcommands do alike."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from nnunet_gdla.errors import UserError

__all__ = ["bar_wanted", "device_changes", "mapping", "new_folder", "say"]

T = TypeVar("T")


def say(line: str) -> None:
    """Print a line at once, also into a file or pipe."""
    print(line, flush=True)


def bar_wanted(no_progress: bool = False) -> bool:
    """Whether a bar can be drawn: into a file it would be thousands of lines."""
    return not no_progress and sys.stderr.isatty()


def device_changes(args: argparse.Namespace) -> list[str]:
    """Return what --accelerator and --devices change in the settings."""
    names = [name for name in ("accelerator", "devices") if getattr(args, name) is not None]
    return [f"train.{name}={getattr(args, name)}" for name in names]


def new_folder(path: str) -> Path:
    """Return a folder that is new or empty.

    Raises:
        UserError: If it holds something.
    """
    folder = Path(path)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is no empty folder; choose another --out")
    return folder


def mapping(entries: list[str], option: str, convert: Callable[[str], T]) -> dict[str, T] | None:
    """Read OLD=NEW pairs.

    Raises:
        UserError: If an entry has another form.
    """
    try:
        return {old: convert(new) for old, new in (entry.rsplit("=", 1) for entry in entries)} or None
    except ValueError:
        raise UserError(f"{option} {' '.join(entries)}: write OLD=NEW") from None
