"""Ctrl-C while a pool starts is kept for later, and what is started does not hear it."""

import os
import signal
import subprocess
import sys

import pytest

from nnunet_gdla.processes import ctrl_c_held_back

pytestmark = pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="Windows cannot block signals")


def test_ctrl_c_comes_when_the_processes_are_there() -> None:
    reached = []

    def start() -> None:
        with ctrl_c_held_back():
            os.kill(os.getpid(), signal.SIGINT)
            reached.append("inside")
        reached.append("behind")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        start()
    assert reached == ["inside"]
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_without_ctrl_c_nothing_happens() -> None:
    before = signal.getsignal(signal.SIGINT)
    with ctrl_c_held_back():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_a_process_that_was_started_does_not_hear_it() -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGINT); print('alive')"
    with ctrl_c_held_back(), subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.communicate(timeout=60)[0] == "alive\n"
