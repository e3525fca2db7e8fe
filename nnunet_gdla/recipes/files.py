"""Writing files so that an interrupted command leaves the old file, the new one, or none, never half of it."""

import json
import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["UNFINISHED", "replaced", "write_json", "write_text"]

UNFINISHED = ".unfinished-"


def replaced(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a neighbour of `path` with the same ending, then put it in place at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{UNFINISHED}{os.getpid()}-{path.name}")
    try:
        write(unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step."""
    replaced(path, lambda unfinished: unfinished.write_text(text, encoding="utf-8"))


def write_json(path: Path, tree: object) -> None:
    """Write a JSON file in one step."""
    write_text(path, json.dumps(tree, indent=2, ensure_ascii=False) + "\n")
