"""Reading JSON, and writing files and folders so that an interrupted program leaves the old, the new, or none."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from nnunet_gdla.damage import reason
from nnunet_gdla.errors import UserError
from nnunet_gdla.write_errors import explained

__all__ = ["made_folder", "read_json_object", "replaced", "replaced_folder", "together", "write_text"]

# Files that are written and wait for the others of their `together`, by the names that they are to have.
_waiting: ContextVar[dict[Path, Path] | None] = ContextVar("_waiting", default=None)


def replaced(path: Path, write: Callable[[Path], object], *, option: str | None = None) -> None:
    """Let `write` fill a neighbour of `path` with the same ending, then put it in place at once.

    The folder is made if need be, and goes again where the file could not be written.

    Args:
        path: The file.
        write: Gets the neighbour's path.
        option: By which the user could name another place, for the sentence.

    Raises:
        WriteError: If it cannot be written.
    """
    unfinished = _temporary(path)
    waiting = _waiting.get()
    with made_folder(path.parent, option=option):
        try:
            with explained(path, unfinished=unfinished, option=option):
                write(unfinished)
                if waiting is None:
                    unfinished.replace(path)
                else:
                    waiting[path] = unfinished
        finally:
            if waiting is None or path not in waiting:
                _remove(unfinished)


@contextlib.contextmanager
def together(folder: Path, *, option: str | None = None) -> Iterator[None]:
    """Files that `replaced` writes inside appear when all are written, or none of them.

    Args:
        folder: Where most of them are; made if need be, and goes again where they could not be written.
        option: By which the user could name another place, for the sentence.

    Raises:
        WriteError: If one cannot be written.
    """
    if _waiting.get() is not None:  # inside another one, which puts them in place
        yield
        return
    with made_folder(folder, option=option):
        waiting: dict[Path, Path] = {}
        token = _waiting.set(waiting)
        try:
            yield
            with explained(folder, option=option):
                for path, unfinished in waiting.items():
                    unfinished.replace(path)
        finally:
            _waiting.reset(token)
            for unfinished in waiting.values():
                _remove(unfinished)


@contextlib.contextmanager
def replaced_folder(folder: Path, *, option: str | None = None) -> Iterator[Path]:
    """Give a neighbour of `folder` to be filled, and put it in place at once; what was there before goes.

    Args:
        folder: The folder.
        option: By which the user could name another place, for the sentence.

    Yields:
        The neighbour, empty.

    Raises:
        WriteError: If it cannot be written; what was there before is there still.
    """
    unfinished, earlier = _temporary(folder), folder.with_name(f".earlier-{os.getpid()}-{folder.name}")
    with made_folder(folder.parent, option=option):
        try:
            with explained(folder, unfinished=unfinished, option=option):
                unfinished.mkdir()
                yield unfinished
                if folder.exists():
                    folder.replace(earlier)
                unfinished.replace(folder)
        finally:
            if earlier.exists() and not folder.exists():
                earlier.replace(folder)
            shutil.rmtree(unfinished, ignore_errors=True)
            shutil.rmtree(earlier, ignore_errors=True)


@contextlib.contextmanager
def made_folder(folder: Path, *, option: str | None = None) -> Iterator[None]:
    """Make a folder for what follows; where that fails, what is empty of it goes again.

    Args:
        folder: The folder.
        option: By which the user could name another place, for the sentence.

    Raises:
        WriteError: If it cannot be made.
    """
    missing: list[Path] = []
    done = False
    try:
        with explained(folder, option=option):
            missing = [each for each in (folder, *folder.parents) if not each.exists()]
            folder.mkdir(parents=True, exist_ok=True)
        yield
        done = True
    finally:
        for each in [] if done else missing:
            with contextlib.suppress(OSError):  # it holds something by now, or was never made
                each.rmdir()


def write_text(path: Path, text: str, *, option: str | None = None) -> None:
    """Write a text file in one step.

    Raises:
        WriteError: If it cannot be written.
    """
    replaced(path, lambda unfinished: unfinished.write_text(text, encoding="utf-8"), option=option)


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds one object.

    Raises:
        UserError: If there is no such file, or something else in it.
    """
    if not path.is_file():
        raise UserError(f"{path} does not exist; check the path")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON ({reason(error, path)}); correct the file") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__}; it must be one JSON object: {{ ... }}")
    return content


def _temporary(path: Path) -> Path:
    return path.with_name(f".unfinished-{os.getpid()}-{path.name}")


def _remove(unfinished: Path) -> None:
    if not unfinished.is_dir():  # one of ours never is
        unfinished.unlink(missing_ok=True)
