"""Golden numbers of the Gated SRP reference run: found by kind, which is the first part of a file's name.

Searched is the folder named by `NNUNET_GDLA_GOLDEN` (the parent of `srp/`) or else `../shared/golden`. A kind that the
named folder lacks is a failure; without either folder its tests are skipped with the reason.
"""

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.paths import SHARED as SHARED_FOLDER

__all__ = ["KINDS", "SrpFile", "srp_folder", "srp_params"]

VARIABLE = "NNUNET_GDLA_GOLDEN"
NAMED = Path(os.environ[VARIABLE]) / "srp" if os.environ.get(VARIABLE) else None

ATTENTION = [
    "dense_srp",
    "diff_cls_row",
    "diff_depth",
    "grid_srp",
    "nystrom_plain",
    "nystrom_short",
    "srp_cls_row",
    "srp_pre_k",
    "srp_pre_q",
    "srp_pre_v",
    "srp_pre_v_fixed2",
    "srp_signed",
    "srp_signed_live",
    "srp_signed_streaming",
    "vit4_fixed2",
    "vit4_plain",
    "vit4_signed",
    "vit4_xsa",
    "xsa_all",
    "xsa_patch_only",
]
MODELS = [
    "abmil",
    "dense",
    "dense_srp",
    "diff",
    "dsmil",
    "gridvit_srp",
    "nystrom",
    "nystrom_noppeg",
    "srp",
    "srp_fixed2",
    "srp_pre_v",
    "transmil",
    "vit4_plain",
    "vit4_srp",
    "xsa",
]
PROJECTIONS = [
    "beta_1",
    "beta_2",
    "beta_learn",
    "beta_m1",
    "detached",
    "direct",
    "gaussian",
    "head_only",
    "live",
    "no_bias",
    "normlog",
    "sigmoid",
    "token_only",
    "win5",
]
OTHERS = ["gate", "gate_summary", "graph", "h_local", "metrics_schedule", "ppeg", "splits", "subsample", "survival"]
KINDS = (
    *(f"attn_{name}" for name in ATTENTION),
    *(f"model_{name}" for name in MODELS),
    *(f"projection_{name}" for name in PROJECTIONS),
    *OTHERS,
)


@dataclass(frozen=True)
class SrpFile:
    """One `.npz` file of plain arrays."""

    path: Path
    kind: str

    @functools.cached_property
    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """All arrays by name."""
        with np.load(self.path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}

    @functools.cached_property
    def tensors(self) -> dict[str, Tensor]:
        """All numbers by name."""
        return {
            name: torch.from_numpy(np.array(array)) for name, array in self.arrays.items() if array.dtype.kind in "biuf"
        }

    def group(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors whose names start with `prefix`, under the rest of the name."""
        return {name.removeprefix(prefix): value for name, value in self.tensors.items() if name.startswith(prefix)}


@dataclass(frozen=True)
class MissingSrp:
    """Stands in for the files of a kind that the folder named by the variable does not have: every use fails."""

    kind: str

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - it never returns
        if name.startswith("__"):
            raise AttributeError(name)
        pytest.fail(f"{VARIABLE}={os.environ[VARIABLE]}: no golden file of kind {self.kind!r} in {NAMED}")


def srp_folder() -> Path:
    """Return the folder that is searched; it may not be there."""
    return NAMED or SHARED_FOLDER / "golden" / "srp"


def kind_of(path: Path) -> str | None:
    """Return the longest known kind that a file's name starts with: `attn_diff_depth2` is `attn_diff_depth`.

    A number at the end of a kind is a size and may be another: `projection_win7` is a `projection_win5`.
    """
    for names in ({kind: kind for kind in KINDS}, {kind.rstrip("0123456789"): kind for kind in KINDS}):
        fitting = [name for name in names if path.stem.startswith(name) and not path.stem[len(name) :][:1].isalpha()]
        if fitting:
            return names[max(fitting, key=len)]
    return None


@functools.cache
def _by_kind() -> dict[str, list[SrpFile]]:
    found: dict[str, list[SrpFile]] = {}
    for path in sorted(srp_folder().glob("*.npz")):
        if kind := kind_of(path):
            found.setdefault(kind, []).append(SrpFile(path, kind))
    return found


def srp_params(*kinds: str) -> list[Any]:
    """Return one pytest parameter per file of these kinds; one that fails or skips where there is none."""
    params = []
    for kind in kinds:
        assert kind in KINDS, f"{kind!r} is no kind of golden file"
        found = _by_kind().get(kind, [])
        params += [pytest.param(golden, id=golden.path.stem) for golden in found]
        if not found and NAMED is not None:
            params.append(pytest.param(MissingSrp(kind), id=f"{kind}-missing"))
        elif not found:
            reason = f"no golden file of kind {kind!r}: {srp_folder()} has none and {VARIABLE} is not set"
            params.append(pytest.param(None, id=f"{kind}-absent", marks=pytest.mark.skip(reason=reason)))
    return params
