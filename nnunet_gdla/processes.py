"""Ctrl-C and pools of processes: one line from the command, no traceback from those that it started."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

__all__ = ["OwnProcesses", "ctrl_c_held_back", "ignore_ctrl_c"]


class OwnProcesses(SpawnContext):
    """A context for one pool, which ends that pool's processes and no other child of this one."""

    def __init__(self) -> None:
        super().__init__()
        self._started: list[SpawnProcess] = []

    def Process(self, *args: Any, **kwargs: Any) -> SpawnProcess:  # type: ignore[override] # noqa: ANN401, N802
        """Make a process as the pool wants it, and remember it."""
        self._started.append(SpawnProcess(*args, **kwargs))
        return self._started[-1]

    def terminate(self) -> None:
        """End what was started, without waiting for what it is at."""
        for process in self._started:
            if process.is_alive():
                process.terminate()


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
        # In this order: once the handler is back, a signal that another thread took may end this line.
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGINT, handler)
    if held:
        signal.raise_signal(signal.SIGINT)


def ignore_ctrl_c() -> None:
    """For processes of a pool, where the system does not let them inherit it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
