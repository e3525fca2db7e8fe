"""Reading raw images with nnU-Net's readers: without their own texts on the screen, and knowing files cut short."""

import contextlib
import io
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import SimpleITK
from nnunetv2.imageio.base_reader_writer import BaseReaderWriter
from nnunetv2.imageio.reader_writer_registry import determine_reader_writer_from_dataset_json

from nnunet_gdla.commands.findings import BREAKAGES
from nnunet_gdla.cut_short import why_cut_short
from nnunet_gdla.damage import reason
from nnunet_gdla.image_errors import IMAGE_DAMAGE

__all__ = ["UNREADABLE", "find_reader", "quiet_readers", "why_unreadable"]

UNREADABLE: tuple[type[Exception], ...] = (*BREAKAGES, *IMAGE_DAMAGE)
_TRIALS = 5


@contextlib.contextmanager
def quiet_readers() -> Iterator[None]:
    """Keep nnU-Net's and SimpleITK's own texts off the screen; the caller says it in one line."""
    shown = SimpleITK.ProcessObject.GetGlobalWarningDisplay()
    SimpleITK.ProcessObject.SetGlobalWarningDisplay(False)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's about large images, for one
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
    why = why_cut_short(path)  # first, because readers mention on the screen what they miss
    if why is not None:
        return why
    try:
        with quiet_readers(), np.errstate(all="ignore"):  # float64 beyond the range of float32
            reader().read_seg(str(path)) if is_label else reader().read_images((str(path),))
    except UNREADABLE as error:
        return f"{type(error).__name__}: {reason(error, path)}"
    return None
