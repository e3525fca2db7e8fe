"""Writing files so that an interrupted command leaves the old file or the new one, never half of it."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nnunet_gdla import files
from nnunet_gdla.errors import UserError
from nnunet_gdla.files import read_json_object as read_json_object

__all__ = ["make_folder", "read_json_object", "replaced", "write_json"]


def make_folder(folder: Path) -> None:
    """Make a folder for results.

    Raises:
        UserError: If it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be made ({error.strerror}); give another folder with --out") from error


def replaced(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a neighbour of `path`, then put it in place at once.

    Raises:
        UserError: If it cannot be written.
    """
    try:
        files.replaced(path, write)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); give another folder with --out") from error


def write_json(path: Path, tree: Mapping[str, Any]) -> None:
    """Write JSON that any reader takes: what is undefined (NaN) is null."""
    text = json.dumps(_without_nan(tree), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    replaced(path, lambda unfinished: unfinished.write_text(text, encoding="utf-8"))


def _without_nan(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, Mapping):
        return {str(key): _without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
