"""Text and JSON, written in one step."""

import json
from pathlib import Path

from nnunet_gdla.files import replaced

__all__ = ["write_json", "write_text"]


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step."""
    replaced(path, lambda unfinished: unfinished.write_text(text, encoding="utf-8"))


def write_json(path: Path, tree: object) -> None:
    """Write a JSON file in one step."""
    write_text(path, json.dumps(tree, indent=2, ensure_ascii=False) + "\n")
