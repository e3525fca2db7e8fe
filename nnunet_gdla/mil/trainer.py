"""A `lightning.Trainer` as a run needs it: its own files only, no advice on the terminal, gradients summed by us."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy

from nnunet_gdla.mil.config_schema import TrainConfig
from nnunet_gdla.mil.device import pick_device, refuse_missing_devices

__all__ = ["SumStrategy", "make_trainer", "quiet"]

# Advice that does not apply here: slides are read one by one, and the loop sets its own samplers and precision.
_ADVICE = (
    ".*does not have many workers.*",
    ".*The number of training batches .* is smaller than the logging interval.*",
    ".*It is recommended to use .* when logging on epoch level in distributed setting.*",
    ".*Trying to infer the `batch_size`.*",
    ".*GPU available but not used.*",
    ".*MPS available but not used.*",
    ".*Checkpoint directory .* exists and is not empty.*",
    ".*`isinstance\\(treespec, LeafSpec\\)` is deprecated.*",
)
_LOGGERS = ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero")


class SumStrategy(DDPStrategy):
    """Processes that share the work, without the wrapper that averages after every slide.

    A step of 16 slides on 3 devices gives them 6, 5 and 5; `sum_gradients` adds what they found, once per step. So the
    result is that of one device.
    """

    def __init__(self) -> None:
        super().__init__(start_method="spawn")

    def setup_environment(self) -> None:
        """Start a process as quietly as the first."""
        _silence()
        super().setup_environment()

    def configure_ddp(self) -> None:
        """Leave the model unwrapped; all processes build the same weights from the same seed."""


def make_trainer(train: TrainConfig, run: Path, callbacks: Sequence[Callback], *, progress: bool) -> Trainer:
    """Return the trainer of a run.

    Args:
        train: Settings.
        run: Folder of the run.
        callbacks: Ours.
        progress: Show a bar.

    Raises:
        UserError: If the device is not there.
    """
    bar = [TQDMProgressBar(leave=False)] if progress else []
    refuse_missing_devices(train)
    device = pick_device(train.accelerator)
    logger = TensorBoardLogger(run / "logs", name="", version="tensorboard") if train.tensorboard else False
    return Trainer(
        accelerator="gpu" if device.type == "cuda" else device.type,
        devices=train.devices,
        strategy=SumStrategy() if train.devices > 1 else "auto",
        precision=_precision(train, device),
        max_epochs=train.epochs,
        num_sanity_val_steps=0,
        logger=logger,
        log_every_n_steps=1,
        callbacks=[*bar, *callbacks],
        enable_checkpointing=False,
        enable_progress_bar=progress,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=run,
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Lightning's advice and tips off the terminal while the context is open."""
    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    with warnings.catch_warnings():
        _silence()
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)


def _silence() -> None:
    for message in _ADVICE:
        warnings.filterwarnings("ignore", message=message)
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)


def _precision(train: TrainConfig, device: torch.device) -> Literal["32-true", "bf16-mixed"]:
    if train.precision == "auto":
        return "bf16-mixed" if device.type == "cuda" else "32-true"
    return train.precision
