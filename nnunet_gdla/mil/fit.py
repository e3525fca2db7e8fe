"""One run: checked data, training, the best epoch's predictions and metrics, the bundle, figures."""

import dataclasses
import signal
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pandas as pd
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch import nn
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException
from torch.utils.data import DataLoader

from nnunet_gdla import errors
from nnunet_gdla.errors import Terminated, TrainingStopped, UserError
from nnunet_gdla.files import made_folder, together
from nnunet_gdla.mil.config import load_config, save_config
from nnunet_gdla.mil.config_schema import Config
from nnunet_gdla.mil.data import Bag, EpochSampler, EverySlideOnce, bags_of, slide_loader
from nnunet_gdla.mil.device import pick_device, refuse_missing_devices
from nnunet_gdla.mil.files import write_csv, write_text
from nnunet_gdla.mil.finish import finish
from nnunet_gdla.mil.models import build_model
from nnunet_gdla.mil.module import SlideModule
from nnunet_gdla.mil.prepare import PARTS, Prepared, prepare, selection, silent
from nnunet_gdla.mil.run_state import RunState, load_best, read_state
from nnunet_gdla.mil.splits import write_split
from nnunet_gdla.mil.table_file import listed, read_table
from nnunet_gdla.mil.tasks import SlideLoss, class_weights, sampling_weights
from nnunet_gdla.mil.trainer import make_trainer, quiet
from nnunet_gdla.words import counted
from nnunet_gdla.write_errors import explained

__all__ = ["fit", "is_finished"]

_CONFIG: Final = "config.yaml"
_COHORT: Final = "cohort.csv"
_SPLIT: Final = "split.csv"
_SUMMARY: Final = "summary.txt"


def fit(
    config: Config,
    *,
    run: Path,
    resume: bool = False,
    say: Callable[[str], None] = silent,
    progress: bool = False,
    callbacks: Sequence[Callback] = (),
    limit: int | None = None,
    check_files: bool = True,
) -> Path:
    """Train, test and export one model.

    Args:
        config: Settings; on resuming those in the run's folder count.
        run: Folder, new unless `resume`.
        resume: Go on at the last finished epoch. A finished run is left as it is.
        say: Where the report goes, line by line.
        progress: Show a bar.
        callbacks: Additional Lightning callbacks.
        check_files: Look at all files before the first epoch; False where that was done for another run.
        limit: Use so many slides of each part only, to try everything out.

    Returns:
        The folder.

    Raises:
        UserError: If the folder is taken, or the data or settings do not work.
        TrainingStopped: If the loss is no longer finite.
        KeyboardInterrupt: Ctrl-C (or SIGTERM: `Terminated`, a kind of it); what was finished stays.
    """
    if resume and is_finished(run):
        say((run / _SUMMARY).read_text(encoding="utf-8").rstrip())
        say(f"{run} is finished; nothing was done.")
        return run
    ready = partial(prepare, say=say, progress=progress)
    prepared = _resumed(run, ready) if resume else _started(config, run, partial(ready, check_files=check_files))
    if limit is not None:
        tables = {part: _first_slides(table, limit) for part, table in prepared.tables.items()}
        prepared = dataclasses.replace(prepared, tables=tables)
    with quiet():
        state = _trained(prepared, run, say, progress=progress, callbacks=callbacks)
        epoch = state.finish()
        lines = finish(
            prepared, load_best(run, _model(prepared)), run, epoch=epoch, metric=state.metric, progress=progress
        )
    write_text(run / _SUMMARY, "\n".join(lines) + "\n")
    for line in lines:
        say(line)
    return run


def is_finished(run: Path) -> bool:
    """Whether a run has nothing left to do."""
    return (run / _SUMMARY).is_file()


def _started(config: Config, run: Path, ready: Callable[..., Prepared]) -> Prepared:
    refuse_missing_devices(config.train)  # before anything takes long or is written
    if (run / _CONFIG).exists():
        state = "is finished" if is_finished(run) else f"has begun; go on with: nnunet-gdla-mil fit --resume {run}"
        raise UserError(f"the run {run} {state}; a new run needs another folder (--out)")
    if run.exists() and (not run.is_dir() or any(run.iterdir())):
        raise UserError(f"{run} is no empty folder; a new run needs one (--out)")
    with made_folder(run, option="--out"):  # before anything takes long
        with explained(run, option="--out"):
            tempfile.TemporaryFile(dir=run).close()
        prepared = ready(config)
        with together(run, option="--out"):
            write_csv(run / _COHORT, _learned_from(prepared))
            write_split(run / _SPLIT, prepared.split, prepared.cohort)
            save_config(run / _CONFIG, prepared.config)
    return prepared


def _resumed(run: Path, ready: Callable[..., Prepared]) -> Prepared:
    """The settings and the split of the run; its files were checked before its first epoch."""
    if not (run / _CONFIG).is_file():
        raise UserError(f"{run} is no run: there is no {_CONFIG} in it")
    begun = (run / "checkpoints" / "last.ckpt").is_file()
    config = load_config(run / _CONFIG)
    refuse_missing_devices(config.train)
    prepared = ready(config, split_file=run / _SPLIT, check_files=not begun)
    if (run / _COHORT).is_file():  # runs of earlier versions have none
        _refuse_changes(prepared, run)
    return prepared


def _learned_from(prepared: Prepared) -> pd.DataFrame:
    """What the run takes from the table of the cohort, as text: a row for every slide of the split."""
    columns = [name for name in ("slide_id", "patient_id", "label", "time", "event") if name in prepared.cohort.table]
    return pd.concat([prepared.tables[part][columns] for part in PARTS], ignore_index=True).astype(str)


def _refuse_changes(prepared: Prepared, run: Path) -> None:
    """Compare what the table says now with what it said when the run began."""
    now = _learned_from(prepared)
    before = {row.get("slide_id"): row for row in read_table(run / _COHORT, list(now)).to_dict("records")}
    changes = []
    for row in now.to_dict("records"):
        slide = row.pop("slide_id")
        old = before.get(slide, {})
        new = [
            f"{name} {value}, was {old.get(name, 'not there')}" for name, value in row.items() if value != old.get(name)
        ]
        if new:
            changes.append(f"{slide} ({'; '.join(new)})")
    if changes:
        raise UserError(
            f"{prepared.config.data.table} has changed since the run {run} began, in {counted(len(changes), 'slide')}: "
            f"{listed(changes)}; put it back to go on, or start a new run"
        )


def _trained(
    prepared: Prepared,
    run: Path,
    say: Callable[[str], None],
    *,
    progress: bool,
    callbacks: Sequence[Callback],
) -> RunState:
    """Train until the last epoch, or until patience is over; return the history."""
    train, metric = prepared.config.train, selection(prepared)
    state = RunState(run, metric, train.patience, say)
    began = read_state(run, state)
    if len(state.history) >= train.epochs or state.patience_is_over():
        return state
    if began:
        say(f"resuming after epoch {len(state.history)}")
    seed_everything(train.seed, verbose=False)
    model = _model(prepared)
    loaders = _loaders(prepared, model)
    sampler = loaders[0].sampler
    assert isinstance(sampler, EpochSampler)
    losses = _losses(prepared)
    module = SlideModule(model, prepared.info, train, losses, prepared.tables["val"], sampler.optimiser_steps())
    watch = _Watch()
    trainer = make_trainer(train, run, [state, watch, *callbacks], progress=progress)
    last, on_ctrl_c = run / "checkpoints" / "last.ckpt", signal.getsignal(signal.SIGINT)
    try:
        trainer.fit(module, *loaders, ckpt_path=last if began else None, weights_only=True)
    except SystemExit:
        # Lightning turns Ctrl-C into an exit, and is deaf to it from then on.
        if watch.interrupted:
            signal.signal(signal.SIGINT, on_ctrl_c)
            raise KeyboardInterrupt from None
        _refuse_terminated(trainer)
        raise
    except (ProcessExitedException, ProcessRaisedException) as error:
        # A process hands its traceback over as text; of ours the sentence alone is wanted.
        _, ours, sentence = str(error).rpartition(f"{errors.__name__}.")
        told = sentence.partition(": ")[2].strip() if ours else error
        raise TrainingStopped(f"one of {train.devices} training processes ended: {told}") from None
    _refuse_terminated(trainer)
    read_state(run, state)
    return state


def _refuse_terminated(trainer: Trainer) -> None:
    """Lightning only notes SIGTERM (`timeout`, Slurm), and leaves with exit code 0 or goes on."""
    if trainer.received_sigterm:
        raise Terminated from None


def _loaders(prepared: Prepared, model: nn.Module) -> tuple[DataLoader[Bag], DataLoader[Bag]]:
    train, table = prepared.config.train, prepared.tables["train"]
    weights = sampling_weights(table, prepared.info.task) if train.sampling == "balanced" else None
    samplers = {
        "train": EpochSampler(len(table), train.accumulate, train.seed, weights, world=train.devices),
        "val": EverySlideOnce(len(prepared.tables["val"])),
    }
    pin = pick_device(train.accelerator).type == "cuda"
    train_loader, val_loader = (
        slide_loader(
            bags_of(prepared.tables[part], prepared.info, [model], remember=True),
            sampler,
            workers=train.workers,
            pin_memory=pin,
        )
        for part, sampler in samplers.items()
    )
    return train_loader, val_loader


def _losses(prepared: Prepared) -> tuple[SlideLoss, SlideLoss]:
    info, tables = prepared.info, prepared.tables
    weights = class_weights(prepared.config.train.class_weights, tables["train"], info.classes)
    return SlideLoss.of(tables["train"], info, weights), SlideLoss.of(tables["val"], info, weights)


def _model(prepared: Prepared) -> nn.Module:
    info = prepared.info
    model = build_model(info.model, info.in_dim, info.num_outputs, **info.model_kwargs)
    switch: Callable[[bool], object] | None = getattr(model, "set_grad_checkpointing", None)
    if prepared.config.train.grad_checkpointing and switch is not None:
        switch(True)
    return model


def _first_slides(table: pd.DataFrame, limit: int) -> pd.DataFrame:
    """A few slides of each class (or with and without event)."""
    group = "label" if "label" in table else "event"
    return table.groupby(group, sort=False).head(limit).reset_index(drop=True)


class _Watch(Callback):
    """Notices Ctrl-C."""

    interrupted = False

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.interrupted = isinstance(exception, KeyboardInterrupt)
