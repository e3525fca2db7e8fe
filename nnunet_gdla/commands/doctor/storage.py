"""The files of one preprocessed case, read as nnU-Net's data loader reads them."""

import pickle
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from nnunetv2.training.dataloading.nnunet_dataset import nnUNetDatasetBlosc2, nnUNetDatasetNumpy

from nnunet_gdla.damage import reason

__all__ = [
    "STORED_DAMAGE",
    "Storage",
    "blocks",
    "identifiers",
    "missing_files",
    "read_stored",
    "storage_of",
    "truncation_reason",
]

Array = npt.NDArray[Any]
Storage = type[nnUNetDatasetBlosc2] | type[nnUNetDatasetNumpy]

# What a file that is none, or is cut, makes blosc2, NumPy and pickle raise.
STORED_DAMAGE: tuple[type[Exception], ...] = (
    ArithmeticError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    pickle.UnpicklingError,
    struct.error,
    zipfile.BadZipFile,
)
_ENDINGS: dict[Storage, tuple[str, ...]] = {
    nnUNetDatasetBlosc2: (".b2nd", "_seg.b2nd", ".pkl"),
    nnUNetDatasetNumpy: (".npz", ".pkl"),
}
_FRAME = b"b2frame\0"
_FRAME_HEADER = 24  # bytes, up to and with the frame's length


def storage_of(folder: Path) -> tuple[Storage | None, list[str]]:
    """Tell a folder's format as nnU-Net does, which takes one ending only, besides .pkl and .npy.

    Returns:
        The class that reads it, None where there are no cases; and the files that must not be there.
    """
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    for storage, ending in ((nnUNetDatasetBlosc2, "b2nd"), (nnUNetDatasetNumpy, "npz")):
        if any(name.endswith(f".{ending}") for name in names):
            return storage, [name for name in names if name.split(".")[-1] not in (ending, "pkl", "npy")]
    return None, [name for name in names if name.split(".")[-1] not in ("pkl", "npy")]


def identifiers(storage: Storage, folder: Path) -> set[str]:
    """Return the cases that nnU-Net sees in a folder."""
    return set(storage.get_identifiers(str(folder)))


def missing_files(storage: Storage, folder: Path, case: str) -> list[str]:
    """Return the files of a case that are not there."""
    return [case + ending for ending in _ENDINGS[storage] if not (folder / (case + ending)).is_file()]


def truncation_reason(path: Path) -> str | None:
    """Say why a .b2nd file holds less, or more, than its header promises, or that a .npz file is cut; else None."""
    size = path.stat().st_size
    if path.suffix == ".npz":  # NumPy would leave a cut one open
        return None if zipfile.is_zipfile(path) else f"{size} bytes without a table of contents"
    with path.open("rb") as file:
        start = file.read(_FRAME_HEADER)
    if len(start) < _FRAME_HEADER:
        return f"{size} bytes, less than a header"
    if start[2:10] != _FRAME:
        return "it is no Blosc2 file"
    (promised,) = struct.unpack(">Q", start[16:24])
    return None if size == promised else f"{size} bytes, the header promises {promised}"


def read_stored(storage: Storage, folder: Path, case: str) -> tuple[Any, Any, dict[str, Any]] | tuple[str, str]:
    """Open the arrays of a case and read its properties.

    Returns:
        Image, mask and properties; or the name of the file that cannot be read, and why.
    """
    properties_file = folder / f"{case}.pkl"
    try:
        with properties_file.open("rb") as file:
            properties = pickle.load(file)
    except STORED_DAMAGE as error:
        return properties_file.name, f"{type(error).__name__}: {reason(error, properties_file)}"
    if not isinstance(properties, dict):
        return properties_file.name, f"it holds a {type(properties).__name__}"
    for name in (case + ending for ending in _ENDINGS[storage] if ending != ".pkl"):
        why = truncation_reason(folder / name)
        if why is not None:
            return name, why
    name = case + _ENDINGS[storage][0]
    try:
        image, mask, _, _ = storage(str(folder), [case]).load_case(case)
    except STORED_DAMAGE as error:
        return name, f"{type(error).__name__}: {reason(error, folder / name)}"
    return image, mask, properties


def blocks(array: Any, *, whole: bool) -> Iterator[Array]:  # noqa: ANN401 - NDArray of blosc2, or NumPy's
    """Yield the values of the first and the last block of an array, or all of them."""
    if whole or not hasattr(array, "schunk"):
        yield np.asarray(array[:])
        return
    last = array.schunk.nchunks - 1
    for index in sorted({0, last}):
        yield np.frombuffer(array.schunk.decompress_chunk(index), array.dtype)
