"""PEP 517/660 build backend: setuptools, plus the one-line `.pth` by which an installed package registers itself.

setuptools has no public option for a file at a wheel's root, so the finished wheel gets one more file and its RECORD
line. pip then installs and uninstalls it like any other file, for normal and editable installs alike.
"""

import base64
import copy
import hashlib
import os
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

PTH_NAME = "nnunet_gdla.pth"
# `site` runs a line that begins with "import", and prints a traceback at every start of Python if that line fails. One
# of a package that is half removed, or whose editable source has moved, must not do that: hence the try, inside exec.
PTH_LINE = (
    'import os; exec("try:\\n from nnunet_gdla._register import autoregister\\n autoregister()\\n'
    "except Exception as error:\\n os.environ['NNUNET_GDLA_REGISTER_ERROR'] = repr(error)\")\n"
)


def build_wheel(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Build a wheel with setuptools and add the `.pth`."""
    with _fresh_build_folder():
        name: str = build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
    _add_pth(Path(wheel_directory) / name)
    return name


def build_editable(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Build an editable wheel with setuptools and add the `.pth`."""
    with _fresh_build_folder():
        name: str = build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
    _add_pth(Path(wheel_directory) / name)
    return name


@contextmanager
def _fresh_build_folder() -> Iterator[None]:
    """Let setuptools work in a new folder: from an old `build/` it would ship modules that have been deleted since."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "build.cfg"
        settings.write_text(f"[build]\nbuild_base = {Path(folder).as_posix()}/build\n", encoding="utf-8")
        before = os.environ.get("DIST_EXTRA_CONFIG")
        if before is None:
            os.environ["DIST_EXTRA_CONFIG"] = str(settings)
        try:
            yield
        finally:
            if before is None:
                del os.environ["DIST_EXTRA_CONFIG"]


def _add_pth(wheel: Path) -> None:
    """Rewrite `wheel` with the `.pth` at its root and a RECORD that lists it."""
    data = PTH_LINE.encode()
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    new = wheel.with_name(wheel.name + ".new")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as out:
        for info in old.infolist():
            content = old.read(info)
            if info.filename.endswith(".dist-info/RECORD"):
                pth = copy.copy(info)  # its date is the build's, reproducible where SOURCE_DATE_EPOCH is set
                pth.filename = PTH_NAME
                out.writestr(pth, data)
                content += f"{PTH_NAME},sha256={digest},{len(data)}\n".encode()
            out.writestr(info, content)
    new.replace(wheel)
