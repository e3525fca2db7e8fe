"""Ctrl-C while a pool starts is kept for later, and what is started does not hear it."""

import signal
import subprocess
import sys

import pytest

from nnunet_gdla.processes import ctrl_c_held_back

pytestmark = pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="Windows cannot block signals")


# In a process of its own: another thread of the test run could take the signal, and hand it over whenever it likes.
INTERRUPTED = """
import os, signal, threading
from nnunet_gdla.processes import ctrl_c_held_back

signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
{thread}
reached, before = [], signal.getsignal(signal.SIGINT)
try:
    with ctrl_c_held_back():
        os.kill(os.getpid(), signal.SIGINT)
        reached.append("inside")
    reached.append("after")
except KeyboardInterrupt:
    reached.append("stopped")
assert signal.getsignal(signal.SIGINT) is before
assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
print(*reached)
"""
# A thread that takes the signal, as those of a library do.
OTHER_THREAD = "threading.Thread(target=threading.Event().wait, daemon=True).start()"


@pytest.mark.parametrize("thread", ["", OTHER_THREAD], ids=["alone", "beside another thread"])
def test_ctrl_c_comes_when_the_processes_are_there(thread: str) -> None:
    code = INTERRUPTED.format(thread=thread)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("inside stopped\n", "")


def test_without_ctrl_c_nothing_happens() -> None:
    before = signal.getsignal(signal.SIGINT)
    with ctrl_c_held_back():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_a_process_that_was_started_does_not_hear_it() -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGINT); print('alive')"
    with ctrl_c_held_back(), subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.communicate(timeout=60)[0] == "alive\n"
