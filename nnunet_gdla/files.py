"""Writing files so that an interrupted program leaves the old file, the new one, or none, never half of it."""

import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["replaced"]


def replaced(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a neighbour of `path` with the same ending, then put it in place at once.

    The folder is made if need be.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".unfinished-{os.getpid()}-{path.name}")
    try:
        write(unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
