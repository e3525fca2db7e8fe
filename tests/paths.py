"""Where tests find things outside the package: this checkout, and the data folder beside it.

A folder named by a variable must hold what is asked for, otherwise the test fails; without the variable and without the
data beside the checkout it is skipped, and says what it missed.
"""

import os
from pathlib import Path
from typing import Final

import pytest

__all__ = ["ROOT", "SHARED", "golden_folder", "nnunet_raw_folder"]

ROOT: Final = Path(__file__).resolve().parents[1]
SHARED: Final = ROOT.parent / "shared"


def golden_folder(kind: str) -> Path:
    """Return the folder of golden files called `kind` ("gdla" or "srp"); `NNUNET_GDLA_GOLDEN` may name its parent."""
    return _folder("NNUNET_GDLA_GOLDEN", SHARED / "golden", kind)


def nnunet_raw_folder() -> Path:
    """Return a folder of datasets in nnU-Net format; `NNUNET_GDLA_DATA` may name its parent."""
    return _folder("NNUNET_GDLA_DATA", SHARED / "data", "nnUNet_raw")


def _folder(variable: str, default_parent: Path, name: str) -> Path:
    named = os.environ.get(variable)
    folder = Path(named) / name if named else default_parent / name
    if folder.is_dir():
        return folder
    if named:
        pytest.fail(f"{variable}={named} has no folder {name}")
    where = default_parent.relative_to(ROOT.parent) / name
    pytest.skip(f"no folder ../{where} beside the checkout, and {variable} names none")
