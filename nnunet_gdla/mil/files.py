"""Writing files so that an interrupted command leaves the old file or the new one, never half of it."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from nnunet_gdla.files import replaced as replaced
from nnunet_gdla.files import write_text as write_text

__all__ = ["read_csv", "replaced", "write_csv", "write_json", "write_text"]


def write_json(path: Path, tree: Mapping[str, Any]) -> None:
    """Write JSON that any reader takes: what is undefined (NaN) is null."""
    write_text(path, json.dumps(_without_nan(tree), indent=1, allow_nan=False) + "\n")


def write_csv(path: Path, table: pd.DataFrame) -> None:
    """Write a table in one step; float32 numbers keep all their digits."""
    replaced(path, lambda unfinished: table.to_csv(unfinished, index=False))


def read_csv(path: Path) -> pd.DataFrame:
    """Read a table of a run; names stay text, whatever they look like."""
    names = dict.fromkeys(("slide_id", "patient_id", "label", "part"), str)
    return pd.read_csv(path, dtype=names, keep_default_na=False, na_values=[""])


def _without_nan(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, Mapping):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
