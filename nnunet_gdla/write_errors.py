"""Why something could not be written: a full disk, a quota, a limit on the size of files, a right that is missing."""

import contextlib
import errno
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from nnunet_gdla.damage import reason
from nnunet_gdla.errors import UserError, WriteError

__all__ = ["explained", "no_room_error", "write_error"]

# EDQUOT is missing on Windows.
_NO_ROOM = {
    errno.ENOSPC: ("the disk is full", "free space on that disk"),
    getattr(errno, "EDQUOT", -1): ("your quota on this disk is used up", "delete files of yours there"),
    errno.EFBIG: ("a limit on the size of files is reached", "raise the limit (ulimit -f)"),
}
_OTHERWISE = "look at the folder and its permissions"
# HDF5 and safetensors put the system's number into their text.
_NUMBER = re.compile(r"(?:errno = |os error )(\d+)")
# torch's writer of zip files, whose errors have no number at all.
_TORCH = re.compile(r"PytorchStreamWriter|unexpected pos \d+")
_PROBE = bytes(2**20)


def write_error(
    error: BaseException, path: Path, *, unfinished: Path | None = None, option: str | None = None
) -> WriteError | None:
    """Say in a sentence why `path` could not be written; None where something else is wrong.

    Args:
        error: What was raised while it was written.
        path: What was to be written, as the user knows it.
        unfinished: The file under its temporary name, or a folder that it is in. Where a writer did not say why, it
            tells: what stopped the writer stops a few bytes more as well.
        option: By which the user could name another place, such as "--out".
    """
    if isinstance(error, UserError) and not isinstance(error, WriteError):
        return None
    number = _no_room(error) or (None if unfinished is None else _probed(unfinished))
    if number is not None:
        why, remedy = _words(number)
    elif _is_about(error, path, unfinished):
        why, remedy = reason(error, path), _OTHERWISE
    else:
        return None
    remedy += f", or name another place with {option}" if option else ""
    return WriteError(f"{path} cannot be written: {why}", remedy)


def no_room_error(error: BaseException, place: Path | None = None) -> WriteError | None:
    """Say that there was no room; None where something else is wrong.

    Args:
        error: What was raised.
        place: Where it was raised; None: the exception may know.
    """
    number = _no_room(error)
    if number is None:
        return None
    named = (each.filename2 or each.filename for each in _chain(error) if isinstance(each, OSError))
    what = place or next(filter(None, named), "a file, or what this command prints,")
    why, remedy = _words(number)
    return WriteError(f"{what} cannot be written: {why}", remedy)


@contextlib.contextmanager
def explained(path: Path, *, unfinished: Path | None = None, option: str | None = None) -> Iterator[None]:
    """Raise what `write_error` says instead of what kept `path` from being written; takes the same arguments.

    Raises:
        WriteError: As said.
    """
    try:
        yield
    except Exception as error:
        failed = write_error(error, path, unfinished=unfinished, option=option)
        if failed is None:
            raise
        raise failed from error


def _no_room(error: BaseException) -> int | None:
    """Return the number by which the system said that there is no room, in an exception or in what it came from."""
    for each in _chain(error):
        numbers = [each.errno] if isinstance(each, OSError) else []
        numbers += [int(number) for number in _NUMBER.findall(str(each))]
        found = next((number for number in numbers if number in _NO_ROOM), None)
        if found is not None:
            return found
        for number in _NO_ROOM:
            if number > 0 and os.strerror(number) in str(each):
                return number
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in seen:
        yield each
        seen.append(each)
        each = each.__cause__ or each.__context__


def _words(number: int) -> tuple[str, str]:
    why, remedy = _NO_ROOM[number]
    return f"{why} ({os.strerror(number)})", remedy


def _probed(unfinished: Path) -> int | None:
    try:
        with tempfile.TemporaryFile(dir=unfinished) if unfinished.is_dir() else unfinished.open("ab") as file:
            file.write(_PROBE)
    except OSError as error:
        return error.errno if error.errno in _NO_ROOM else None
    return None


def _is_about(error: BaseException, path: Path, unfinished: Path | None) -> bool:
    """Whether an error is of the file that was written, and not of another one that was read for it."""
    if not isinstance(error, OSError):
        return isinstance(error, RuntimeError) and _TORCH.search(str(error)) is not None
    named = [Path(os.fsdecode(each)) for each in (error.filename, error.filename2) if isinstance(each, str | bytes)]
    if not named:  # by the system, which has a number, while this one file was written
        return error.errno is not None and unfinished is not None and not unfinished.is_dir()
    return any(
        here.is_relative_to(place) or place.is_relative_to(here)
        for here in named
        for place in (path, unfinished)
        if place is not None
    )
