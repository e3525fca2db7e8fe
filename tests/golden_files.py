"""Golden numbers of the GDLA reference run: found by kind, every size read from the file.

Two places are searched: the small set in `tests/reference/golden`, which always runs, and the full set: the folder
named by `NNUNET_GDLA_GOLDEN` (the parent of `gdla/`) or else `../shared/golden`. A kind that the named folder lacks is
a failure; without either folder its tests are skipped with the reason.
"""

import functools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.paths import ROOT
from tests.paths import SHARED as SHARED_FOLDER

__all__ = ["JSON_FOLDERS", "GoldenFile", "golden_files", "golden_json", "golden_params"]

VARIABLE = "NNUNET_GDLA_GOLDEN"
COMMITTED = ROOT / "tests" / "reference" / "golden" / "gdla"
SHARED = SHARED_FOLDER / "golden" / "gdla"
NAMED = Path(os.environ[VARIABLE]) / "gdla" if os.environ.get(VARIABLE) else None
FULL = NAMED or SHARED
JSON_FOLDERS = tuple(folder for folder in (NAMED, SHARED) if folder is not None)


@dataclass(frozen=True)
class GoldenFile:
    """One `.npz` file; `meta` says what it holds. Tensors are read when they are asked for."""

    path: Path

    @functools.cached_property
    def meta(self) -> dict[str, Any]:
        """The file's description: kind, sizes, switches."""
        with np.load(self.path, allow_pickle=False) as arrays:
            meta: dict[str, Any] = json.loads(str(arrays["meta"]))
        return meta

    @functools.cached_property
    def tensors(self) -> dict[str, Tensor]:
        """All arrays by name."""
        with np.load(self.path, allow_pickle=False) as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files if name != "meta"}

    def group(self, prefix: str) -> dict[str, Tensor]:
        """Return the arrays whose names start with `prefix`, under the rest of the name."""
        return {name.removeprefix(prefix): value for name, value in self.tensors.items() if name.startswith(prefix)}


@dataclass(frozen=True)
class MissingGolden:
    """Stands in for the files of a kind that the folder named by the variable does not have: every use fails."""

    kind: str

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - it never returns
        if name.startswith("__"):
            raise AttributeError(name)
        pytest.fail(f"{VARIABLE}={os.environ[VARIABLE]}: no golden file of kind {self.kind!r} in {NAMED}")


@functools.cache
def _folder(folder: Path) -> dict[str, list[GoldenFile]]:
    by_kind: dict[str, list[GoldenFile]] = {}
    for path in sorted(folder.glob("*.npz")):
        golden = GoldenFile(path)
        by_kind.setdefault(golden.meta["kind"], []).append(golden)
    return by_kind


def golden_files(kind: str) -> list[GoldenFile]:
    """Return the full set's files of one kind, possibly none."""
    return _folder(FULL).get(kind, [])


def golden_params(*kinds: str) -> list[Any]:
    """Return one pytest parameter per file of these kinds, the committed ones included.

    A kind without a file in the full set becomes one parameter that fails or skips, see the module's docstring.
    """
    params = []
    for kind in kinds:
        params += [
            pytest.param(golden, id=f"committed-{golden.path.stem}") for golden in _folder(COMMITTED).get(kind, [])
        ]
        found = golden_files(kind)
        params += [pytest.param(golden, id=golden.path.stem) for golden in found]
        if not found and NAMED is not None:
            params.append(pytest.param(MissingGolden(kind), id=f"{kind}-missing"))
        elif not found:
            reason = f"no golden file of kind {kind!r}: {SHARED} has none and {VARIABLE} is not set"
            params.append(pytest.param(None, id=f"{kind}-absent", marks=pytest.mark.skip(reason=reason)))
    return params


def golden_json(pattern: str) -> list[Path]:
    """Return the JSON maps of that name pattern, from the named folder or, where it has none, from the default one."""
    for folder in JSON_FOLDERS:
        found = sorted(folder.glob(pattern))
        if found:
            return found
    if NAMED is not None:
        pytest.fail(f"neither {NAMED} nor {SHARED} holds {pattern}")
    pytest.skip(f"{SHARED} is not there and {VARIABLE} is not set")
