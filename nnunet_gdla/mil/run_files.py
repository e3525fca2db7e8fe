"""Reads what a run has written: the tables and numbers that the figures show."""

import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pandas as pd

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.files import read_csv

__all__ = ["PARTS", "RunFiles"]

PARTS: Final = ("val", "test")


@dataclass(frozen=True)
class RunFiles:
    """The files of a run folder, or of the folder of an external test; what is not there is None."""

    folder: Path

    @cached_property
    def history(self) -> pd.DataFrame | None:
        """One row per epoch: the last value that each column of `logs/metrics.csv` has in it."""
        table = _table(self.folder / "logs" / "metrics.csv")
        if table is None or "epoch" not in table:
            return None
        return table.groupby("epoch", as_index=False).last()

    @cached_property
    def gates(self) -> pd.DataFrame | None:
        """`gates.csv`; of an epoch that was repeated after an interruption the last rows count."""
        table = _table(self.folder / "gates.csv")
        return None if table is None else table.drop_duplicates(["epoch", "block"], keep="last")

    @cached_property
    def bundle(self) -> dict[str, Any]:
        """`bundle.json`, empty where there is none."""
        for path in (self.folder / "bundle" / "bundle.json", self.folder / "bundle.json"):
            if path.is_file():
                return _json(path)
        return {}

    def predictions(self, part: str) -> pd.DataFrame | None:
        """`predictions_PART.csv` with ids and labels as text."""
        return _table(self.folder / f"predictions_{part}.csv")

    def metric(self, part: str, unit: str, name: str) -> tuple[float | None, float | None, float | None]:
        """Return value, low and high of a metric of `metrics_PART.json`; None where undefined or missing."""
        path = self.folder / f"metrics_{part}.json"
        entry = _json(path).get(unit, {}).get(name) if path.is_file() else None
        if not isinstance(entry, dict):
            return None, None, None
        return entry.get("value"), entry.get("low"), entry.get("high")

    @property
    def best_epoch(self) -> float | None:
        """Epoch of the weights that were kept; None where the bundle does not say."""
        epoch = self.bundle.get("training", {}).get("epoch")
        return float(epoch) if isinstance(epoch, int) else None

    def bundle_number(self, name: str) -> float | None:
        """Return a number of `bundle.json`; None where it is missing or not finite."""
        value = self.bundle.get(name)
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _table(path: Path) -> pd.DataFrame | None:
    if not path.is_file():
        return None
    try:
        return read_csv(path)
    except pd.errors.EmptyDataError:
        return None
    except (pd.errors.ParserError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as a table ({error}); remove it and run the command again.") from error


def _json(path: Path) -> dict[str, Any]:
    try:
        tree: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid JSON ({error}); remove it and run the command again.") from error
    return tree
