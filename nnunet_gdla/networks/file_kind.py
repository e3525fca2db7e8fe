"""Files that are whole but none of PyTorch's: to call them damaged would send the user to download them again."""

import zipfile
from pathlib import Path

__all__ = ["foreign_file"]

# What torch.save wrote first before it wrote zip files: the number 0x1950a86a20f9469cfc6c, in a pickle's byte order.
_OLD_TORCH = bytes.fromhex("1950a86a20f9469cfc6c")[::-1]
_STARTS = {
    b"\x93NUMPY": "an array of NumPy (.npy)",
    b"\x89HDF": "an HDF5 file",
    b"\x1f\x8b": "a gzip file, to be unpacked first",
    b"\x80": "a pickle of Python, which may run code when it is opened",
}


def foreign_file(path: Path) -> str | None:
    """Say what a file is that PyTorch could not read; None where it looks like a (damaged) one of PyTorch."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        if any(name.endswith("data.pkl") for name in names):
            return None
        arrays = bool(names) and all(name.endswith(".npy") for name in names)
        return "an archive of NumPy (.npz)" if arrays else "a zip archive, to be unpacked first"
    with path.open("rb") as file:
        start = file.read(512)
    if _OLD_TORCH in start:
        return None
    return next((kind for first, kind in _STARTS.items() if start.startswith(first)), None)
