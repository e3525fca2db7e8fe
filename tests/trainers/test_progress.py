"""On a terminal a bar an epoch is shown, and nnU-Net's own lines stay as they are; elsewhere nothing is different."""

import contextlib
import io
import os
import sys
import termios
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

from nnunet_gdla.trainers import nnunet_gdla_progress, nnUNetTrainerGDLA
from nnunet_gdla.trainers.nnunet_gdla_progress import epoch_bars

LINES = ["start", "epoch 0", "end 0", "epoch 1", "end 1", "done"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Trainer(nnUNetTrainer):  # type: ignore[misc]
    """nnU-Net's loop over steps that do nothing."""

    num_epochs, num_iterations_per_epoch, num_val_iterations_per_epoch = 2, 3, 2

    def __init__(self) -> None:
        self.local_rank, self.current_epoch = 0, 0
        self.dataloader_train = self.dataloader_val = iter(range(100))
        self.stop_at: type[BaseException] | None = None

    def print_to_log_file(self, line: str) -> None:
        sys.stdout.write(f"{line}\n")

    def on_train_start(self) -> None:
        self.print_to_log_file("start")

    def on_epoch_start(self) -> None:
        pass

    def on_train_epoch_start(self) -> None:
        self.print_to_log_file(f"epoch {self.current_epoch}")

    def train_step(self, batch: int) -> dict[str, Any]:
        if batch == 6 and self.stop_at is not None:
            raise self.stop_at
        return {"loss": np.float32(0.5)}

    def on_train_epoch_end(self, outputs: list[dict[str, Any]]) -> None:
        assert len(outputs) == 3

    def on_validation_epoch_start(self) -> None:
        pass

    def validation_step(self, batch: int) -> dict[str, Any]:
        return {"loss": np.float32(0.25)}

    def on_validation_epoch_end(self, outputs: list[dict[str, Any]]) -> None:
        assert len(outputs) == 2

    def on_epoch_end(self) -> None:
        self.print_to_log_file(f"end {self.current_epoch}")
        self.current_epoch += 1

    def on_train_end(self) -> None:
        self.print_to_log_file("done")


def on_a_terminal(run: Callable[[], None], monkeypatch: pytest.MonkeyPatch, columns: int = 80) -> str:
    """What a terminal gets to see."""
    ours, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (24 if columns else 0, columns))
    with os.fdopen(terminal, "w") as stream, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", stream)
        patched.setattr(sys, "stderr", stream)
        run()
    sent = b""
    with contextlib.suppress(OSError):  # Linux's word for the end
        while part := os.read(ours, 100_000):
            sent += part
    os.close(ours)
    return sent.decode()


def left_on_screen(sent: str) -> list[str]:
    lines = []
    for line in sent.replace("\r\n", "\n").split("\n"):
        screen = ""
        for part in line.split("\r"):
            screen = part + screen[len(part) :]
        lines.append(screen.rstrip())
    return lines


@pytest.mark.parametrize("columns", [0, 100])
def test_on_a_terminal_each_epoch_has_a_bar_that_goes_again(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nnunet_gdla_progress._Bar, "__init__", at_once(nnunet_gdla_progress._Bar.__init__))
    trainer = Trainer()

    def run() -> None:
        with epoch_bars(trainer):
            trainer.run_training()

    sent = on_a_terminal(run, monkeypatch, columns)
    shown = sent.split("\r")
    for epoch in (0, 1):
        for step, what in ((1, "training loss 0.5000"), (3, "training loss 0.5000"), (5, "validation loss 0.2500")):
            found = [part for part in shown if part.startswith(f"epoch {epoch}: ") and f"{step}/5 [" in part]
            assert any(what in part for part in found)
    assert left_on_screen(sent) == [*LINES, ""]
    assert not {"train_step", "validation_step", "print_to_log_file"} & set(vars(trainer))


def at_once(usual: Callable[..., None]) -> Callable[..., None]:
    def init(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        usual(*args, mininterval=0, **kwargs)

    return init


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_what_stops_a_training_begins_on_a_clean_line(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer()
    trainer.stop_at = error

    def run() -> None:
        with pytest.raises(error), epoch_bars(trainer):
            trainer.run_training()
        sys.stderr.write("Traceback ...\n")

    sent = on_a_terminal(run, monkeypatch)
    assert "epoch 1: " in sent
    assert left_on_screen(sent) == [*LINES[:4], "Traceback ...", ""]


@pytest.mark.parametrize("rank", [0, 1])
def test_elsewhere_nothing_is_different(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file or a pipe (rank 0), a terminal for the other processes of a training, a terminal for stderr alone."""
    trainer = Trainer()
    trainer.local_rank = rank

    def run() -> None:
        with epoch_bars(trainer):
            assert "train_step" not in vars(trainer)
            trainer.run_training()

    if rank == 1:
        assert on_a_terminal(run, monkeypatch).replace("\r\n", "\n").splitlines() == LINES
        return
    for streams in ((io.StringIO(), Terminal()), (Terminal(), io.StringIO()), (io.StringIO(), io.StringIO())):
        trainer = Trainer()
        monkeypatch.setattr(sys, "stdout", streams[0])
        monkeypatch.setattr(sys, "stderr", streams[1])
        run()
        assert streams[0].getvalue().splitlines() == LINES
        assert streams[1].getvalue() == ""


def test_our_trainers_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    monkeypatch.setattr(nnUNetTrainer, "run_training", lambda trainer: ran.append("train_step" in vars(trainer)))
    trainer = object.__new__(nnUNetTrainerGDLA)
    trainer.local_rank = 0
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(sys, stream, Terminal())
    trainer.run_training()
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    trainer.run_training()
    assert ran == [True, False]
