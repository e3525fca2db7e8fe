"""An interrupted run, resumed, ends where an uninterrupted one ends: same curve, same weights, bit for bit."""

import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from safetensors.torch import load_file

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.cli import main
from nnunet_gdla.mil.config import save_config
from nnunet_gdla.mil.fit import fit
from nnunet_gdla.mil.run_state import RunState
from tests.mil.small_cohorts import MODEL, make_cohort, small_config

pytestmark = pytest.mark.usefixtures("no_figures")

KEPT = ("logs/metrics.csv", "gates.csv", "predictions_val.csv", "predictions_test.csv", "metrics_test.json")


class CtrlC(Callback):
    """Presses Ctrl-C in the middle of an epoch."""

    def __init__(self, epoch: int, batch: int) -> None:
        self.epoch, self.batch = epoch, batch

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        if (trainer.current_epoch, batch_idx) == (self.epoch, self.batch):
            raise KeyboardInterrupt


class Sigterm(Callback):
    """What Lightning's handler of SIGTERM does: it takes a note, and leaves with exit code 0 after the step."""

    def __init__(self, late: bool) -> None:
        self.late = late

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        if not self.late and trainer.current_epoch == 1:
            trainer._signal_connector.received_sigterm = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer._signal_connector.received_sigterm = True


@pytest.mark.parametrize("late", [False, True])
def test_sigterm_stops_a_run_as_ctrl_c_does(
    late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_cohort(tmp_path, "classification")
    config, run = small_config(tmp_path, "classification", epochs=2), tmp_path / "run"
    save_config(tmp_path / "config.yaml", config)
    monkeypatch.setattr("nnunet_gdla.mil.commands.fit.fit", partial(fit, callbacks=[Sigterm(late)]))
    code = main(["fit", "--config", str(tmp_path / "config.yaml"), "--out", str(run)])
    said = capsys.readouterr()
    assert code == 143
    assert f"go on with: nnunet-gdla-mil fit --resume {run}" in said.out
    assert "stopped" in said.err
    assert not (run / "bundle").exists()


@pytest.mark.parametrize(
    ("task", "epoch", "batch"), [("classification", 2, 5), ("classification", 0, 6), ("survival", 1, 0)]
)
def test_a_resumed_run_equals_an_uninterrupted_one(task: str, epoch: int, batch: int, tmp_path: Path) -> None:
    make_cohort(tmp_path, task)
    model = MODEL | {"drop_path_rate": 0.5}  # stochastic depth has to come back too
    config = small_config(tmp_path, task, model=model, epochs=4, sampling="balanced")
    fit(config, run=tmp_path / "straight")
    on_ctrl_c = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        fit(config, run=tmp_path / "stopped", callbacks=[CtrlC(epoch, batch)])
    assert signal.getsignal(signal.SIGINT) is on_ctrl_c
    with pytest.raises(UserError, match="has begun; go on with: nnunet-gdla-mil fit --resume"):
        fit(config, run=tmp_path / "stopped")
    said: list[str] = []
    fit(config, run=tmp_path / "stopped", resume=True, say=said.append)
    assert (f"resuming after epoch {epoch}" in said) == (epoch > 0)
    for name in KEPT:
        straight, resumed = ((tmp_path / run / name).read_bytes() for run in ("straight", "stopped"))
        assert resumed == straight, name
    straight, resumed = (load_file(tmp_path / run / "bundle" / "model.safetensors") for run in ("straight", "stopped"))
    assert all(resumed[name].equal(tensor) for name, tensor in straight.items())


@pytest.mark.slow
def test_ctrl_c_on_the_command_line_says_how_to_go_on(tmp_path: Path) -> None:
    make_cohort(tmp_path, "classification")
    save_config(tmp_path / "mine.yaml", small_config(tmp_path, "classification", epochs=500))
    # a test run that was started in the background ignores the signal, and so would its children
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from nnunet_gdla.mil.cli import main; sys.exit(main())"
    command = [
        sys.executable,
        "-c",
        code,
        "fit",
        "--config",
        str(tmp_path / "mine.yaml"),
        "--out",
        str(tmp_path / "run"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 200
        while not (tmp_path / "run" / "logs" / "metrics.csv").is_file() and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=100)
    assert process.returncode == 130
    assert f"go on with: nnunet-gdla-mil fit --resume {tmp_path / 'run'}" in out
    assert err.strip() == "nnunet-gdla-mil fit: stopped"
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))


def test_a_run_stopped_after_its_last_epoch_only_evaluates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_cohort(tmp_path, "classification")

    def stopped(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("nnunet_gdla.mil.fit.finish", stopped)
        with pytest.raises(KeyboardInterrupt):
            fit(small_config(tmp_path, "classification", epochs=2), run=tmp_path / "run")
    before = (tmp_path / "run" / "checkpoints" / "last.ckpt").read_bytes()
    fit(small_config(tmp_path, "classification"), run=tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "summary.txt").is_file()
    assert (tmp_path / "run" / "checkpoints" / "last.ckpt").read_bytes() == before


def test_a_damaged_checkpoint_is_one_sentence(tmp_path: Path) -> None:
    make_cohort(tmp_path, "classification")
    with pytest.raises(KeyboardInterrupt):
        fit(small_config(tmp_path, "classification"), run=tmp_path / "run", callbacks=[CtrlC(1, 0)])
    checkpoint = tmp_path / "run" / "checkpoints" / "last.ckpt"
    for damaged in (checkpoint.read_bytes()[:1000], b"x"):
        checkpoint.write_bytes(damaged)
        with pytest.raises(UserError, match=r"last\.ckpt is damaged .*; remove it to start the run again"):
            fit(small_config(tmp_path, "classification"), run=tmp_path / "run", resume=True)


def test_the_epoch_is_that_of_the_weights_also_in_a_run_that_an_earlier_version_began(tmp_path: Path) -> None:
    """It kept the first of two equal epochs; today the second, with the lower loss, would be the best."""
    state = RunState(tmp_path, "macro_f1", None, print)
    state.history = [{"val_loss": loss, "val_macro_f1": f1} for loss, f1 in ((3.0, 0.8), (2.0, 0.8), (1.0, 0.1))]
    (tmp_path / "checkpoints").mkdir()
    kept = {"best_by_metric.ckpt": 0, "best_by_loss.ckpt": 2}
    for name, epoch in kept.items():
        torch.save({"epoch": epoch, "state_dict": {}}, tmp_path / "checkpoints" / name)
    assert state.finish() == 0
    assert state.finish() == 0  # once more, after a stop
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["best.ckpt"]


@pytest.mark.parametrize("damage", [b"x", None], ids=["damaged", "missing"])
def test_damaged_weights_of_the_best_epoch_are_one_sentence_with_the_way_out(
    tmp_path: Path, damage: bytes | None
) -> None:
    make_cohort(tmp_path, "classification")
    config, run = small_config(tmp_path, "classification", epochs=1), tmp_path / "run"
    fit(config, run=run)
    (run / "summary.txt").unlink()
    best = run / "checkpoints" / "best.ckpt"
    best.unlink()
    if damage is not None:
        best.write_bytes(damage)
    with pytest.raises(
        UserError, match=r"best\.ckpt are missing or damaged .*: remove the folder .*checkpoints to train"
    ):
        fit(config, run=run, resume=True)
    shutil.rmtree(run / "checkpoints")
    fit(config, run=run, resume=True)
    assert (run / "summary.txt").is_file()


def test_what_is_no_run_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is no run: there is no config\.yaml"):
        fit(small_config(tmp_path, "classification"), run=tmp_path, resume=True)


@pytest.mark.parametrize("task", ["classification", "survival"])
def test_a_table_that_was_changed_since_is_refused(task: str, tmp_path: Path) -> None:
    make_cohort(tmp_path, task)
    config = small_config(tmp_path, task, epochs=2)
    with pytest.raises(KeyboardInterrupt):
        fit(config, run=tmp_path / "run", callbacks=[CtrlC(1, 0)])
    table = pd.read_csv(tmp_path / "cohort.csv", dtype=str)
    column = "label" if task == "classification" else "time"
    first, second = table[column][:2]
    table.loc[:1, column] = [second, first]
    table.to_csv(tmp_path / "changed.csv", index=False)
    (tmp_path / "cohort.csv").rename(tmp_path / "kept.csv")
    (tmp_path / "changed.csv").rename(tmp_path / "cohort.csv")
    with pytest.raises(UserError, match=rf"changed since .*, in 2 slides: .*s00 \({column} {second}, was {first}\)"):
        fit(config, run=tmp_path / "run", resume=True)
    recorded = tmp_path / "run" / "cohort.csv"
    (tmp_path / "kept.csv").rename(tmp_path / "cohort.csv")
    if task == "classification":
        recorded.unlink()  # as in a run of an earlier version
    fit(config, run=tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "summary.txt").is_file()
