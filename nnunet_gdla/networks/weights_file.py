"""Read a file of weights without running code of it; what cannot be read ends in one sentence."""

import json
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from nnunet_gdla.damage import reason
from nnunet_gdla.errors import UserError
from nnunet_gdla.networks.file_kind import foreign_file

__all__ = ["read_content"]

_START = 512
_SAFETENSORS_LENGTH = 8
_SCALARS = ("bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")


def read_content(path: Path) -> Any:  # noqa: ANN401 - anything may be in a file
    """Read a file by what it holds, whatever its ending.

    Args:
        path: A file of PyTorch, safetensors or JSON.

    Returns:
        What torch.load gives with weights_only=True, the tensors of a safetensors file, or the JSON value. Tensors of
        PyTorch's zip files are mapped, not read, until somebody looks at them.

    Raises:
        UserError: If it is not there, is none of these, is damaged, or holds objects that only code could make.
    """
    if not path.is_file():
        raise UserError(f"{path} is a folder; name a file in it" if path.is_dir() else f"{path} does not exist")
    try:
        with path.open("rb") as file:
            start = file.read(_START)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); look at its permissions") from error
    if not start:
        raise UserError(f"{path} is empty; download or copy it again")
    if start.lstrip()[:1] in (b"{", b"["):
        return _json(path)
    _refuse_text(path, start)
    if start[_SAFETENSORS_LENGTH : _SAFETENSORS_LENGTH + 1] == b"{":
        return _safetensors(path)
    return _torch(path)


def _json(path: Path) -> Any:  # noqa: ANN401
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is text but no JSON ({reason(error, path)}); it holds no weights") from error


def _refuse_text(path: Path, start: bytes) -> None:
    if start.startswith(b"version https://git-lfs"):
        raise UserError(f"{path} is a Git LFS pointer, not the file itself; run git lfs pull, or download the file")
    if start.lstrip()[:1] == b"<":
        raise UserError(f"{path} is a web page, not weights; download the file itself")
    if not re.search(rb"[^\t\n\r -~\x80-\xff]", start):
        raise UserError(f"{path} is text, not weights; name a file of PyTorch, safetensors or JSON")


def _safetensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        return safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError, KeyError) as error:
        raise UserError(f"{path} is a damaged safetensors file ({reason(error, path)}); download it again") from error


def _torch(path: Path) -> Any:  # noqa: ANN401
    mapped = zipfile.is_zipfile(path)
    try:
        with torch.serialization.safe_globals(_numpy_names()):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # a damaged pickle may raise anything
        foreign = re.search(r"GLOBAL ([\w.]+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
        if foreign is not None:
            raise UserError(
                f"{path} needs code to be read (it holds {foreign[1]}) and is not opened, since that code could do "
                f"anything; ask whoever made it for the model's state_dict()"
            ) from error
        kind = foreign_file(path)
        if kind is not None:
            raise UserError(f"{path} is {kind}, no weights of PyTorch; save a state_dict() with torch.save") from error
        raise UserError(f"{path} is damaged or no file of PyTorch; download or copy it again") from error


def _numpy_names() -> list[Any]:
    """Numpy's numbers and arrays, which nnU-Net has in its checkpoints; making them runs no code of the file."""
    core = np._core if hasattr(np, "_core") else np.core
    scalar, array = core.multiarray.scalar, core.multiarray._reconstruct
    names: list[Any] = [np.ndarray, np.dtype, *(type(np.dtype(name)) for name in _SCALARS)]
    for module in ("numpy.core.multiarray", "numpy._core.multiarray"):  # numpy 1 and 2
        names += [(scalar, f"{module}.scalar"), (array, f"{module}._reconstruct")]
    return names
