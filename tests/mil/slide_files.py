"""Small feature files for tests, as the tools write them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "bag", "grid", "write_h5"]

Array = NDArray[Any]


def grid(columns: int = 6, rows: int = 5) -> Array:
    """Column and row numbers of a full rectangle, row by row."""
    return np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), -1).reshape(-1, 2)


def bag(rows: int, width: int = 8, seed: int = 0) -> Array:
    """Random features."""
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


def write_h5(
    path: Path,
    data: Mapping[str, Array],
    *,
    on_coords: Mapping[str, Any] | None = None,
    on_file: Mapping[str, Any] | None = None,
) -> Path:
    """Write data sets and attributes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, values in data.items():
            file.create_dataset(name, data=values)
        if on_coords:
            file["coords"].attrs.update(on_coords)
        if on_file:
            file.attrs.update(on_file)
    return path
