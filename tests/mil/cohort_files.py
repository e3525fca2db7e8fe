"""Tables and feature files of small cohorts."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from nnunet_gdla.mil.cohort import Cohort, read_cohort
from tests.mil.slide_files import bag, grid, write_h5

__all__ = ["cohort_of", "write_slides", "write_table"]


def write_slides(folder: Path, names: Iterable[str], *, patches: int = 6, width: int = 4) -> Path:
    """One small file per slide."""
    for seed, name in enumerate(names):
        data = {"coords": grid(patches, 1) * 512, "features": bag(patches, width, seed)}
        write_h5(folder / f"{name}.h5", data)
    return folder


def write_table(path: Path, **columns: Sequence[Any]) -> Path:
    """A CSV table."""
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


def cohort_of(tmp_path: Path, task: Any = "classification", **columns: Sequence[Any]) -> Cohort:  # noqa: ANN401
    """A cohort with files for the column slide_id."""
    write_slides(tmp_path / "h5", columns["slide_id"])
    return read_cohort(write_table(tmp_path / "cohort.csv", **columns), tmp_path / "h5", task=task)
