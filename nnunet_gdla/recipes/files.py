"""Text and JSON, written in one step."""

import json
from pathlib import Path

from nnunet_gdla.files import write_text as write_text

__all__ = ["write_json", "write_text"]


def write_json(path: Path, tree: object) -> None:
    """Write a JSON file in one step."""
    write_text(path, json.dumps(tree, indent=2, ensure_ascii=False) + "\n")
