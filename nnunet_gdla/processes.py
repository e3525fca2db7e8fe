"""Ctrl-C and pools of processes: one line from the command, no traceback from those that it started."""

import contextlib
import signal
import threading
from collections.abc import Iterator

__all__ = ["ctrl_c_held_back", "ignore_ctrl_c"]


@contextlib.contextmanager
def ctrl_c_held_back() -> Iterator[None]:
    """Let processes start whole, and deaf to Ctrl-C, or those that were about to would end in tracebacks.

    They inherit what this thread blocks. Other threads still take the signal, hence the handler: it keeps it for later.
    """
    if not hasattr(signal, "pthread_sigmask") or threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    handler = signal.signal(signal.SIGINT, lambda number, frame: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    if held:
        signal.raise_signal(signal.SIGINT)


def ignore_ctrl_c() -> None:
    """For processes of a pool, where the system does not let them inherit it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
