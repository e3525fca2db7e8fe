"""Reading raw images with nnU-Net's readers: without their own texts on the screen, and knowing files cut short."""

import contextlib
import gzip
import io
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import SimpleITK
from nibabel.filebasedimages import ImageFileError
from nnunetv2.imageio.base_reader_writer import BaseReaderWriter
from nnunetv2.imageio.reader_writer_registry import determine_reader_writer_from_dataset_json

from nnunet_gdla.commands.findings import BREAKAGES
from nnunet_gdla.damage import reason
from nnunet_gdla.image_errors import IMAGE_DAMAGE

__all__ = ["UNREADABLE", "find_reader", "quiet_readers", "why_cut_short", "why_unreadable"]

UNREADABLE: tuple[type[Exception], ...] = (*BREAKAGES, *IMAGE_DAMAGE)
_TRIALS = 5


@contextlib.contextmanager
def quiet_readers() -> Iterator[None]:
    """Keep nnU-Net's and SimpleITK's own texts off the screen; the caller says it in one line."""
    shown = SimpleITK.ProcessObject.GetGlobalWarningDisplay()
    SimpleITK.ProcessObject.SetGlobalWarningDisplay(False)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        SimpleITK.ProcessObject.SetGlobalWarningDisplay(shown)


def find_reader(description: Mapping[str, Any], images: Iterable[Path]) -> type[BaseReaderWriter] | None:
    """Return the reader that nnU-Net picks by trying an image; a broken first file must not hide the others.

    Args:
        description: Content of dataset.json.
        images: Images in the order in which they are tried, of which the first few are looked at.

    Returns:
        The class; None where nnU-Net has none for the file ending.
    """
    examples = [str(image) for image in images if image.is_file()][:_TRIALS]
    for example in [*examples, None]:
        # nnU-Net prints the traceback of every reader that fails.
        with contextlib.suppress(*UNREADABLE), quiet_readers(), contextlib.redirect_stderr(io.StringIO()):
            reader: type[BaseReaderWriter] = determine_reader_writer_from_dataset_json(
                dict(description), example, verbose=False
            )
            return reader
    return None


def why_unreadable(path: Path, reader: type[BaseReaderWriter], *, is_label: bool) -> str | None:
    """Say why a file cannot be read, or that it is cut short; None where all is well."""
    try:
        with quiet_readers(), np.errstate(all="ignore"):  # float64 beyond the range of float32
            reader().read_seg(str(path)) if is_label else reader().read_images((str(path),))
    except UNREADABLE as error:
        return _why(error, path)
    return why_cut_short(path)


def why_cut_short(path: Path) -> str | None:
    """Say why a NIfTI file holds less than its header promises, of which SimpleITK makes zeros without a word.

    The size that the file's last bytes tell (gzip), or the file's own, is compared with the header's; the whole is
    read only where the two differ.

    Returns:
        The reason; None for a whole file, for other formats, and where nibabel knows no such header.
    """
    if not path.name.lower().endswith((".nii", ".nii.gz")):
        return None
    packed = path.name.lower().endswith(".gz")
    try:
        try:
            pixels: Any = nibabel.load(path).dataobj  # type: ignore[attr-defined]  # reads the header alone
        except ImageFileError:  # nnU-Net's reader may know better, but not from half a stream
            if packed:
                _unpack(path)
            return None
        promised = int(pixels.offset) + math.prod(pixels.shape) * int(pixels.dtype.itemsize)
        if _told_size(path, packed=packed) != (promised % 2**32 if packed else promised):
            np.asanyarray(pixels)
    except UNREADABLE as error:
        return _why(error, path)
    return None


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
