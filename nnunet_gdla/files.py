"""Reading JSON, and writing files so that an interrupted program leaves the old file, the new one, or none."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nnunet_gdla.damage import reason
from nnunet_gdla.errors import UserError

__all__ = ["read_json_object", "replaced"]


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


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds one object.

    Raises:
        UserError: If there is no such file, or something else in it.
    """
    if not path.is_file():
        raise UserError(f"{path} does not exist; check the path")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON ({reason(error, path)}); correct the file") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__}; it must be one JSON object: {{ ... }}")
    return content
