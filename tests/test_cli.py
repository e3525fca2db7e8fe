"""The front of `nnunet-gdla`; the subcommands have tests of their own."""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from nnunet_gdla import __version__, cli
from nnunet_gdla._register import shim_folder
from nnunet_gdla.errors import Terminated, TrainingStopped, UserError


def run_command(monkeypatch: pytest.MonkeyPatch, run: Callable[[argparse.Namespace], int], *argv: str) -> int:
    monkeypatch.setitem(sys.modules, "nnunet_gdla.commands.env", SimpleNamespace(run=run))
    return cli.main(["env", *argv])


def raising(error: BaseException) -> Callable[[argparse.Namespace], int]:
    def run(args: argparse.Namespace) -> int:
        raise error

    return run


@pytest.mark.parametrize("argv", [["--help"], ["--version"], *([name, "--help"] for name in cli.COMMANDS)])
def test_help_and_version_end_well(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(argv)
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert __version__ in out if argv == ["--version"] else "examples:" in out


def test_an_unknown_command_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["docter"])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert "docter" in error
    assert all(name in error for name in cli.COMMANDS)


def test_the_exit_code_is_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_command(monkeypatch, lambda _: 1) == 1
    assert run_command(monkeypatch, lambda _: 0) == 0


def test_a_users_mistake_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(monkeypatch, raising(UserError("no folder /x: make it"))) == 1
    assert capsys.readouterr().err == "nnunet-gdla env: no folder /x: make it\n"


def test_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(monkeypatch, raising(KeyboardInterrupt())) == 130
    assert "stopped" in capsys.readouterr().err


def test_sigterm_is_143(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(monkeypatch, raising(Terminated())) == 143
    assert "stopped" in capsys.readouterr().err


def test_ctrl_c_says_what_the_command_says(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(monkeypatch, raising(KeyboardInterrupt("call it again"))) == 130
    assert capsys.readouterr().err == "\nnnunet-gdla env: stopped; call it again\n"


def test_ctrl_c_while_arguments_are_read_is_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stopped)
    assert cli.main(["env"]) == 130
    assert capsys.readouterr().err == "\nnnunet-gdla: stopped\n"


def test_a_file_that_cannot_be_written_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(monkeypatch, raising(PermissionError(13, "Permission denied", "/x/y.json"))) == 1
    expected = "nnunet-gdla env: /x/y.json: Permission denied; look at the path and its permissions\n"
    assert capsys.readouterr().err == expected
    with pytest.raises(OSError, match="of no file"):
        run_command(monkeypatch, raising(OSError("of no file")))


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        run_command(monkeypatch, raising(ZeroDivisionError()))


def test_a_training_that_stops_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(monkeypatch, raising(TrainingStopped("the loss is not finite"))) == 1
    assert capsys.readouterr().err == "nnunet-gdla env: the loss is not finite\n"


@pytest.mark.parametrize("shell", ["bash", "fish", "powershell"])
def test_env_names_our_folder_and_keeps_the_users(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("nnUNet_extTrainer", "it's mine")
    assert cli.main(["env", "--shell", shell]) == 0
    ours = shim_folder() + os.pathsep
    expected = {
        "bash": f"export nnUNet_extTrainer='{ours}it'\"'\"'s mine'\n",
        "fish": f"set -gx nnUNet_extTrainer '{ours}it\\'s mine'\n",
        "powershell": f"$Env:nnUNet_extTrainer = '{ours}it''s mine'\n",
    }
    assert capsys.readouterr().out == expected[shell]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_takes_what_env_prints() -> None:
    code = "import os; print(os.environ['nnUNet_extTrainer'])"
    interpreter = shlex.quote(sys.executable)
    script = f'eval "$({interpreter} -m nnunet_gdla.cli env)" && {interpreter} -S -c {shlex.quote(code)}'
    environment = os.environ | {"nnUNet_extTrainer": "a folder with 'quotes'"}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{shim_folder()}{os.pathsep}a folder with 'quotes'\n"


def typed(words: str, stdout: int, unbuffered: str) -> tuple[int, str]:
    """Run the command in a process of its own; return its exit code and what it says on the error stream."""
    done = subprocess.run(
        [sys.executable, "-m", "nnunet_gdla.cli", *words.split()],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        text=True,
        timeout=60,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["recipe ph2", "--help"])
def test_a_pipe_that_nobody_reads_ends_the_command_quietly(words: str, unbuffered: str) -> None:
    read, write = os.pipe()
    os.close(read)
    assert typed(words, write, unbuffered) == (141, "")
    os.close(write)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")  # noqa: PTH110
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["recipe ph2", "--help"])
def test_output_for_which_there_is_no_room_is_one_sentence(words: str, unbuffered: str) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    code, error = typed(words, full, unbuffered)
    os.close(full)
    name = "nnunet-gdla recipe" if words == "recipe ph2" else "nnunet-gdla"
    assert (code, error) == (1, f"{name}: the output cannot be written (No space left on device)\n")


def test_a_pipe_of_somebody_else_that_breaks_is_no_quiet_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BrokenPipeError):
        run_command(monkeypatch, raising(BrokenPipeError(32, "Broken pipe")))


def test_a_full_disk_is_one_line_whoever_met_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(monkeypatch, raising(OSError(28, "No space left on device"))) == 1
    assert run_command(monkeypatch, raising(OSError(28, "No space left on device", "/x/y.json"))) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("nnunet-gdla env: a file, or what this command prints, cannot be written: the disk is full")
    assert second == (
        "nnunet-gdla env: /x/y.json cannot be written: the disk is full (No space left on device); free space on that "
        "disk, then run the same command again"
    )
