"""Names of slides and of the files that hold them."""

import unicodedata
from pathlib import Path, PurePosixPath
from typing import Final

__all__ = ["FEATURE_SUFFIXES", "IMAGE_SUFFIXES", "comparable_name", "slide_id_of"]

FEATURE_SUFFIXES: Final = (".h5", ".hdf5", ".pt")
IMAGE_SUFFIXES: Final = (
    *(".svs", ".tif", ".tiff", ".ome.tif", ".ome.tiff", ".ndpi", ".mrxs", ".scn", ".vms", ".vmu", ".bif", ".svslide"),
    *(".czi", ".qptiff", ".isyntax", ".dcm", ".sdpc", ".kfb", ".png", ".jpg", ".jpeg"),
)


def slide_id_of(path: str | Path) -> str:
    """Return the file name without its last known extension; `slide.v2.final.h5` is `slide.v2.final`."""
    name = unicodedata.normalize("NFC", Path(path).name)
    return _without(name, FEATURE_SUFFIXES)


def comparable_name(text: str) -> str:
    """Return what names in a table and names of files are compared by.

    Folders go (both kinds of slash), then a feature extension, then an image extension, in any case of letters;
    accented letters count as one character. `/data/a.svs`, `a.svs.h5` and `a` are the same slide.
    """
    name = PurePosixPath(unicodedata.normalize("NFC", text.strip()).replace("\\", "/")).name
    return _without(_without(name, FEATURE_SUFFIXES), IMAGE_SUFFIXES)


def _without(name: str, suffixes: tuple[str, ...]) -> str:
    fitting = [suffix for suffix in suffixes if name.lower().endswith(suffix) and len(name) > len(suffix)]
    return name[: -max(map(len, fitting))] if fitting else name
