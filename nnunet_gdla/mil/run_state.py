"""What a training leaves in its folder after every epoch, so that it can be stopped and resumed at any time."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pandas as pd
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn

from nnunet_gdla.damage import DAMAGE
from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.files import replaced, write_csv
from nnunet_gdla.mil.gates import GATE_COLUMNS
from nnunet_gdla.mil.module import SlideModule, gathered
from nnunet_gdla.mil.tasks import best_epoch, last_progress

__all__ = ["RunState", "load_best", "read_state"]

_DAMAGE: Final[tuple[type[Exception], ...]] = (*DAMAGE, pickle.UnpicklingError)
_KEY: Final = "nnunet_gdla"
_BY_METRIC, _BY_LOSS = "best_by_metric.ckpt", "best_by_loss.ckpt"


class RunState(Callback):
    """Keeps the history, the checkpoints `last`, and the best epoch's weights; ends a training that gets no better.

    Two epochs can turn out to be the best: by the metric, or, where the metric is undefined in some epoch, by the loss.

    Args:
        run: Folder of the run.
        metric: What selects the epoch, without `val_`; or "loss".
        patience: Epochs without a better one after which it ends; None: never.
        say: Where a line per epoch goes.
    """

    def __init__(self, run: Path, metric: str, patience: int | None, say: Callable[[str], None]) -> None:
        self.folder, self.metric, self.patience, self.say = run, metric, patience, say
        self.history: list[dict[str, float | int]] = []
        self.gates: list[dict[str, float | int]] = []

    @property
    def state_key(self) -> str:
        """Name in the checkpoint."""
        return _KEY

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {"history": self.history, "gates": self.gates}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From the checkpoint."""
        self.history, self.gates = list(state_dict["history"]), list(state_dict["gates"])

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write everything, in an order in which no interruption leaves the folder in contradiction."""
        assert isinstance(pl_module, SlideModule)
        losses = [loss for _, loss in sorted(gathered(pl_module.seen))]
        row = {"epoch": trainer.current_epoch, "step": trainer.global_step, "train_loss": sum(losses) / len(losses)}
        row |= pl_module.epoch_numbers | {"lr": trainer.optimizers[0].param_groups[0]["lr"]}
        self.history.append(row)
        self.gates.extend(pl_module.gate_rows)
        epoch = len(self.history) - 1
        if best_epoch(self.history, "loss") == epoch:
            self._save(trainer, _BY_LOSS, weights_only=True)
        if best_epoch(self.history, self.metric) == epoch:
            self._save(trainer, _BY_METRIC, weights_only=True)
        self._save(trainer, "last.ckpt")
        if trainer.is_global_zero:
            write_csv(self.folder / "logs" / "metrics.csv", pd.DataFrame(self.history))
            write_csv(self.folder / "gates.csv", pd.DataFrame(self.gates, columns=list(GATE_COLUMNS)))
            self._report(trainer, row)
        trainer.should_stop = trainer.should_stop or self.patience_is_over()

    def patience_is_over(self) -> bool:
        """Whether the last epoch that got the metric higher (or the loss lower) lies too far back."""
        if self.patience is None or not self.history:
            return False
        return len(self.history) - 1 - last_progress(self.history, self.metric) >= self.patience

    def finish(self) -> int:
        """Keep the weights of the best epoch as `best.ckpt` and return its number, counted from 0.

        The number is the one in the file: a run that an earlier version began may have kept another of equal epochs.
        """
        epoch = best_epoch(self.history, self.metric)
        folder = self.folder / "checkpoints"
        by_loss, by_metric = folder / _BY_LOSS, folder / _BY_METRIC
        chosen = by_loss if best_epoch(self.history, "loss") == epoch else by_metric
        if chosen.exists():
            chosen.replace(folder / "best.ckpt")
        for other in (by_loss, by_metric):
            other.unlink(missing_ok=True)
        return _best_checkpoint(self.folder)["epoch"]

    def _save(self, trainer: Trainer, name: str, *, weights_only: bool = False) -> None:
        def write(path: Path) -> None:  # the first process alone writes, but all take part
            trainer.save_checkpoint(path, weights_only=weights_only)

        path = self.folder / "checkpoints" / name
        replaced(path, write) if trainer.is_global_zero else write(path)

    def _report(self, trainer: Trainer, row: dict[str, float | int]) -> None:
        shown = dict.fromkeys(("train_loss", "val_loss", f"val_{self.metric}"))
        numbers = "  ".join(f"{name} {row[name]:.4f}".replace("nan", "n/a") for name in shown)
        mark = "  best so far" if best_epoch(self.history, self.metric) == len(self.history) - 1 else ""
        line = f"epoch {len(self.history)}/{trainer.max_epochs}  {numbers}{mark}"
        bar = trainer.progress_bar_callback
        if bar is not None:
            bar.print(line)
        else:
            self.say(line)


def read_state(run: Path, state: RunState) -> bool:
    """Load the history of an earlier start of the run; return whether there was one.

    Raises:
        UserError: If the checkpoint is damaged.
    """
    path = run / "checkpoints" / "last.ckpt"
    if not path.is_file():
        return False
    try:
        tree = torch.load(path, map_location="cpu", weights_only=True)
        state.load_state_dict(tree["callbacks"][_KEY])
    except _DAMAGE as error:
        raise UserError(f"{path} is damaged ({type(error).__name__}); remove it to start the run again") from None
    return True


def load_best(run: Path, model: nn.Module) -> nn.Module:
    """Put the weights of the best epoch into a model.

    Raises:
        UserError: If they are missing or damaged.
    """
    weights = _best_checkpoint(run)["state_dict"]
    try:
        model.load_state_dict({name.removeprefix("model."): tensor for name, tensor in weights.items()})
    except _DAMAGE as error:
        raise _damaged_best(run, error) from None
    return model


def _best_checkpoint(run: Path) -> dict[str, Any]:
    try:
        tree = torch.load(_best_path(run), map_location="cpu", weights_only=True)
        return {name: tree[name] for name in ("epoch", "state_dict")}
    except _DAMAGE as error:
        raise _damaged_best(run, error) from None


def _best_path(run: Path) -> Path:
    return run / "checkpoints" / "best.ckpt"


def _damaged_best(run: Path, error: Exception) -> UserError:
    path = _best_path(run)
    return UserError(
        f"the weights of the best epoch {path} are missing or damaged ({type(error).__name__}): remove the folder "
        f"{path.parent} to train the run again"
    )
