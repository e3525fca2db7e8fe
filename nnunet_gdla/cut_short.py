"""Files that hold less than their header promises, of which readers make zeros, or fewer pages, without a word.

One check for every command that reads images. Formats that are not named here are refused by their readers when they
are cut: PNG, BMP, JPEG, MHA and NRRD.
"""

import gzip
import io
import math
import struct
from pathlib import Path
from typing import Any

from nnunet_gdla.damage import reason
from nnunet_gdla.tiff_pages import check_tiff, is_tiff

__all__ = ["why_cut_short"]

_GIPL_HEADER = 256  # bytes
_GIPL_VOXEL = {1: 1, 7: 1, 8: 1, 15: 2, 16: 2, 31: 4, 32: 4, 64: 4, 65: 8}  # bytes of a voxel by the header's type


def why_cut_short(path: Path) -> str | None:
    """Say why a file holds less than its header promises; only what the header says is read of a whole file.

    Args:
        path: NIfTI and GIPL are known by their names, TIFF by its first bytes.

    Returns:
        The reason; None for a whole file, for other formats, and where the header is not understood here.
    """
    name = path.name.lower()
    try:
        if name.endswith((".nii", ".nii.gz")):
            return _why_nifti(path, packed=name.endswith(".gz"))
        if name.endswith(".gipl"):
            _check_gipl(path)
        elif is_tiff(path):
            check_tiff(path)
    except (OSError, EOFError, ValueError) as error:
        return _why(error, path)
    return None


def _why_nifti(path: Path, *, packed: bool) -> str | None:
    """Compare the size that the file's last bytes tell (gzip), or the file's own, with the header's.

    The whole is read only where the two differ.
    """
    import nibabel
    import numpy as np
    from nibabel.filebasedimages import ImageFileError

    from nnunet_gdla.image_errors import IMAGE_DAMAGE

    try:
        try:
            pixels: Any = nibabel.load(path).dataobj  # type: ignore[attr-defined]  # reads the header alone
        except ImageFileError:  # another reader may know better, but not from half a stream
            if packed:
                _unpack(path)
            return None
        promised = int(pixels.offset) + math.prod(pixels.shape) * int(pixels.dtype.itemsize)
        if _told_size(path, packed=packed) != (promised % 2**32 if packed else promised):
            np.asanyarray(pixels)
    except IMAGE_DAMAGE as error:
        return _why(error, path)
    return None


def _check_gipl(path: Path) -> None:
    with path.open("rb") as file:
        header = file.read(_GIPL_HEADER)
    if len(header) < _GIPL_HEADER:
        raise EOFError(f"{len(header)} bytes, the header alone has {_GIPL_HEADER}")
    *edges, kind = struct.unpack(">5H", header[:10])
    promised = _GIPL_HEADER + math.prod(edge for edge in edges if edge) * _GIPL_VOXEL.get(kind, 0)
    if path.stat().st_size < promised:
        raise EOFError(f"{path.stat().st_size} bytes of {promised}")


def _told_size(path: Path, *, packed: bool) -> int:
    if not packed:
        return path.stat().st_size
    with path.open("rb") as file:
        file.seek(-4, io.SEEK_END)
        return int.from_bytes(file.read(), "little")


def _unpack(path: Path) -> None:
    with gzip.open(path) as file:
        while file.read(2**20):
            pass


def _why(error: Exception, path: Path) -> str:
    return f"{type(error).__name__}: {reason(error, path)}"
