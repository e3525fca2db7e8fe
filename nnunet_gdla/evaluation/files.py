"""Writing results: files that appear whole, or not at all."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nnunet_gdla import files
from nnunet_gdla.files import read_json_object as read_json_object

__all__ = ["OPTION", "read_json_object", "replaced", "write_json"]

OPTION = "--out"  # by which the user names the folder of results


def replaced(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a neighbour of `path`, then put it in place at once.

    Raises:
        WriteError: If it cannot be written.
    """
    files.replaced(path, write, option=OPTION)


def write_json(path: Path, tree: Mapping[str, Any]) -> None:
    """Write JSON that any reader takes: what is undefined (NaN) is null."""
    text = json.dumps(_without_nan(tree), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    files.write_text(path, text, option=OPTION)


def _without_nan(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, Mapping):
        return {str(key): _without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
