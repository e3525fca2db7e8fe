"""Folders that running programs read or write, told by locks that end with their process. Standard library only."""

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: nobody is seen there
    fcntl = None  # type: ignore[assignment]

__all__ = ["hold", "in_use", "one_at_a_time"]


def hold(folder: Path, owner: object) -> None:
    """Mark a folder as read until the owner is gone, or this process and those it forked have ended.

    The mark is a shared lock on the folder itself; file systems without locks, some network ones, go without it.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        weakref.finalize(owner, os.close, descriptor)
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


def in_use(folder: Path) -> bool:
    """Whether a program of this package is known to read a folder; stock trainers leave no mark."""
    if fcntl is None or not folder.is_dir():
        return False
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


@contextlib.contextmanager
def one_at_a_time(folder: Path, waiting: Callable[[], object]) -> Iterator[None]:
    """Run what follows while no other program is in such a block for the same folder.

    Args:
        folder: It has to exist.
        waiting: Called once if another program is there, before waiting for it.
    """
    if fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(descriptor)
