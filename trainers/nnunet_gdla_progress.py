"""A bar an epoch on a terminal: nnU-Net prints nothing within an epoch, which on a CPU takes long."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from tqdm import tqdm

__all__ = ["epoch_bars"]

Step = Callable[..., Any]


class _Bar(tqdm):
    """No thread of tqdm's own beside a training that forks."""

    monitor_interval = 0


class _EpochBar:
    """The bar of the epoch that runs, if any."""

    def __init__(self, trainer: nnUNetTrainer) -> None:
        self.trainer = trainer
        self.bar: _Bar | None = None

    def open(self, *_: object) -> None:
        self.close()
        steps = self.trainer.num_iterations_per_epoch + self.trainer.num_val_iterations_per_epoch
        known = os.get_terminal_size(sys.stderr.fileno()).columns > 0  # not in every container
        size: dict[str, Any] = {"dynamic_ncols": True} if known else {"ncols": 79, "nrows": 24}
        self.bar = _Bar(total=steps, desc=f"epoch {self.trainer.current_epoch}", leave=False, **size)

    def count(self, result: dict[str, Any], what: str) -> None:
        if self.bar is not None:
            self.bar.set_postfix_str(f"{what} loss {float(result['loss']):.4f}", refresh=False)
            self.bar.update()

    def clear(self) -> None:
        if self.bar is not None:
            self.bar.clear()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None


@contextlib.contextmanager
def epoch_bars(trainer: nnUNetTrainer) -> Iterator[None]:
    """Show a bar for each epoch of `trainer.run_training`: steps, loss of the last one, time left.

    Only in the first process, and only where both streams are a terminal; elsewhere nothing at all is different. The
    loss is the one that nnU-Net has on the CPU after each step, so that no GPU is waited for. The bar is gone before
    anything else is printed.
    """
    if trainer.local_rank != 0 or not (sys.stdout.isatty() and sys.stderr.isatty()):
        yield
        return
    bar = _EpochBar(trainer)
    # On this trainer alone, around its own methods, whatever a subclass has made of them.
    shown = {
        "print_to_log_file": _before(trainer.print_to_log_file, bar.clear),
        "on_train_epoch_start": _after(trainer.on_train_epoch_start, bar.open),
        "train_step": _after(trainer.train_step, lambda result: bar.count(result, "training")),
        "validation_step": _after(trainer.validation_step, lambda result: bar.count(result, "validation")),
        "on_validation_epoch_end": _before(trainer.on_validation_epoch_end, bar.close),
    }
    before = dict(vars(trainer))
    vars(trainer).update(shown)
    try:
        yield
    finally:
        bar.close()
        for name in shown:
            del vars(trainer)[name]
        vars(trainer).update({name: before[name] for name in shown if name in before})


def _before(method: Step, look: Callable[[], None]) -> Step:
    def shown(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        look()
        return method(*args, **kwargs)

    return shown


def _after(method: Step, look: Callable[[Any], None]) -> Step:
    def shown(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        result = method(*args, **kwargs)
        look(result)
        return result

    return shown
