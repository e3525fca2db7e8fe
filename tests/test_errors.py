"""Errors for the user: ordinary exceptions for code that calls us, one sentence for those who run a command."""

import asyncio
import pickle
import subprocess
import sys
from types import TracebackType

import pytest

from nnunet_gdla.errors import TrainingStopped, UserError, install_excepthook

ERRORS = [UserError, TrainingStopped]


@pytest.mark.parametrize(("error", "kind"), [(UserError, ValueError), (TrainingStopped, RuntimeError)])
def test_errors_for_users_are_ordinary_exceptions(error: type[Exception], kind: type[Exception]) -> None:
    assert issubclass(error, kind)
    assert not issubclass(error, SystemExit)


@pytest.mark.parametrize("error", ERRORS)
def test_an_asyncio_loop_survives_them(error: type[Exception]) -> None:
    async def task() -> None:
        raise error("do this")

    async def caller() -> list[BaseException | None]:
        return await asyncio.gather(task(), asyncio.sleep(0), return_exceptions=True)

    first, second = asyncio.run(caller())
    assert (type(first), str(first), second) == (error, "do this", None)


@pytest.mark.parametrize("error", ERRORS)
def test_they_pass_between_processes(error: type[Exception]) -> None:
    copy = pickle.loads(pickle.dumps(error("do this")))
    assert (type(copy), str(copy)) == (error, "do this")


@pytest.mark.parametrize("error", ERRORS)
def test_uncaught_in_a_command_that_is_not_ours_they_print_one_sentence(error: type[Exception]) -> None:
    code = (
        f"from nnunet_gdla.errors import {error.__name__} as E, install_excepthook; install_excepthook()\n"
        "try: 1 / 0\nexcept ZeroDivisionError as error: raise E('do this') from error"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "do this\n")


def test_the_hook_leaves_other_errors_to_the_one_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    passed_on: list[BaseException] = []

    def before(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        assert kind is type(error)
        passed_on.append(error)

    monkeypatch.setattr(sys, "excepthook", before)
    install_excepthook()
    once = sys.excepthook
    install_excepthook()
    assert sys.excepthook is once
    for error in (ValueError("a fault"), UserError("do this"), RuntimeError("another"), KeyboardInterrupt()):
        sys.excepthook(type(error), error, None)
    assert capsys.readouterr().err == "do this\n"
    assert [type(error) for error in passed_on] == [ValueError, RuntimeError, KeyboardInterrupt]


def test_a_hook_put_over_ours_makes_no_circle(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[BaseException] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, traceback: reached.append(error))
    for _ in range(3):
        install_excepthook()
        below = sys.excepthook
        monkeypatch.setattr(sys, "excepthook", lambda *args, below=below: below(*args))
    install_excepthook()
    sys.excepthook(ValueError, ValueError("a fault"), None)
    assert len(reached) == 1
