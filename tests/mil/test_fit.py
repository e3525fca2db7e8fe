"""A training from the table to the bundle; classification and survival, on slides that take seconds."""

import argparse
import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from nnunet_gdla.errors import TrainingStopped, UserError, WriteError
from nnunet_gdla.mil.bundle import load_bundle
from nnunet_gdla.mil.cli import main
from nnunet_gdla.mil.commands import fit as command
from nnunet_gdla.mil.config import load_config
from nnunet_gdla.mil.files import read_csv
from nnunet_gdla.mil.fit import fit
from nnunet_gdla.mil.gates import GATE_COLUMNS
from nnunet_gdla.mil.prepare import prepare
from nnunet_gdla.mil.slides import read_slide
from nnunet_gdla.mil.sweep import read_method, run_sweep
from tests.mil.small_cohorts import MODEL, make_cohort, small_config, write_slide

pytestmark = pytest.mark.usefixtures("no_figures")

FILES = {
    "bundle/bundle.json",
    "bundle/model.safetensors",
    "checkpoints/best.ckpt",
    "checkpoints/last.ckpt",
    "cohort.csv",
    "config.yaml",
    "gates.csv",
    "logs/metrics.csv",
    "metrics_test.json",
    "metrics_val.json",
    "predictions_test.csv",
    "predictions_test_patient.csv",
    "predictions_val.csv",
    "predictions_val_patient.csv",
    "split.csv",
    "summary.txt",
}


@pytest.mark.parametrize("kind", ["classified", "survived"])
def test_a_run_leaves_all_its_files_and_nothing_half_written(kind: str, request: pytest.FixtureRequest) -> None:
    run = request.getfixturevalue(kind) / "run"
    written = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}
    assert {name for name in written if not name.startswith("figures/")} == FILES
    assert len(list((run / "figures").glob("*.png"))) >= 5


def test_the_history_has_one_row_per_epoch(classified: Path) -> None:
    history = pd.read_csv(classified / "run" / "logs" / "metrics.csv")
    assert list(history["epoch"]) == [0, 1, 2]
    assert {"step", "train_loss", "val_loss", "val_macro_f1", "lr"} <= set(history)
    assert history["train_loss"].is_monotonic_decreasing
    assert history["lr"].iloc[-1] > 0


@pytest.mark.parametrize("kind", ["classified", "survived"])
def test_gates_are_logged_for_every_epoch_also_in_survival(kind: str, request: pytest.FixtureRequest) -> None:
    gates = pd.read_csv(request.getfixturevalue(kind) / "run" / "gates.csv")
    assert list(gates) == list(GATE_COLUMNS)
    assert list(gates["epoch"]) == [0, 1, 2]  # depth 2 has one active block
    assert np.allclose(gates[["anti", "identity", "projection", "reflection"]].sum(axis=1), 1)


def test_predictions_hold_every_slide_of_the_part_once(classified: Path) -> None:
    split = read_csv(classified / "run" / "split.csv")
    for part in ("val", "test"):
        predictions = read_csv(classified / "run" / f"predictions_{part}.csv")
        assert sorted(predictions["slide_id"]) == sorted(split["slide_id"][split["part"] == part])
        assert list(predictions) == ["slide_id", "patient_id", "label", "prob_a", "prob_b"]
        assert np.allclose(predictions[["prob_a", "prob_b"]].sum(axis=1), 1)
    assert not set(split["patient_id"][split["part"] == "train"]) & set(split["patient_id"][split["part"] == "test"])


def test_survival_predictions_hold_risk_and_hazards_that_fit(survived: Path) -> None:
    predictions = read_csv(survived / "run" / "predictions_test.csv")
    hazards = predictions[[f"hazard_{k}" for k in range(4)]].to_numpy()
    assert np.allclose(predictions["risk"], -(1 - hazards).cumprod(axis=1).sum(axis=1))
    assert set(predictions["time_bin"]) <= {0, 1, 2, 3}


def test_metrics_are_given_by_slide_and_by_patient_with_intervals(classified: Path) -> None:
    metrics = json.loads((classified / "run" / "metrics_test.json").read_text(encoding="utf-8"))
    for level in ("slide", "patient"):
        accuracy = metrics[level]["accuracy"]
        assert accuracy["low"] <= accuracy["value"] <= accuracy["high"]
        assert {"auc", "sensitivity", "specificity", "ece"} <= set(metrics[level])


def test_a_separable_cohort_is_learned(classified: Path) -> None:
    metrics = json.loads((classified / "run" / "metrics_test.json").read_text(encoding="utf-8"))
    assert metrics["slide"]["auc"]["value"] > 0.9


def test_the_resolved_settings_can_be_fitted_again(classified: Path) -> None:
    config = load_config(classified / "run" / "config.yaml")
    assert config.found is not None
    assert config.found.in_dim == 16
    assert config.found.classes == ["a", "b"]
    assert config.model.correction == "srp"
    assert config.model.extra["mlp_ratio"] == 4.0


def test_bin_edges_come_from_training_events_alone(survived: Path) -> None:
    config = load_config(survived / "run" / "config.yaml")
    split = read_csv(survived / "run" / "split.csv")
    table = pd.read_csv(survived / "cohort.csv", dtype={"slide_id": str, "patient_id": str})
    patients = table[table["slide_id"].isin(split["slide_id"][split["part"] == "train"])].drop_duplicates("patient_id")
    events = patients["time"][patients["event"] == 1]
    assert config.found is not None
    assert np.allclose(config.found.bin_edges, np.quantile(events, [0.25, 0.5, 0.75]))


def test_the_bundle_predicts_what_the_run_wrote(classified: Path) -> None:
    bundle = load_bundle(classified / "run")
    predictions = read_csv(classified / "run" / "predictions_test.csv")
    row = predictions.iloc[0]
    answer = bundle.predict(read_slide(classified / "h5" / f"{row.slide_id}.h5"))
    assert answer == {"prob_a": row.prob_a, "prob_b": row.prob_b}


def test_an_existing_run_is_never_trained_over(classified: Path) -> None:
    config = small_config(classified, "classification")
    with pytest.raises(UserError, match="is finished; a new run needs another folder"):
        fit(config, run=classified / "run")
    before = (classified / "run" / "checkpoints" / "last.ckpt").stat().st_mtime_ns
    said: list[str] = []
    fit(config, run=classified / "run", resume=True, say=said.append)
    assert "nothing was done" in said[-1]
    assert (classified / "run" / "checkpoints" / "last.ckpt").stat().st_mtime_ns == before


def test_other_classes_than_those_of_the_settings_are_refused(classified: Path, tmp_path: Path) -> None:
    config = load_config(classified / "run" / "config.yaml", ["data.label_map={a: x, b: y}"])
    with pytest.raises(UserError, match=r"classes x, y.*made with a, b"):
        fit(config, run=tmp_path / "run")


def test_a_model_with_several_outputs_trains_all_of_them(tmp_path: Path) -> None:
    make_cohort(tmp_path, "survival", slides=16)
    config = small_config(tmp_path, "survival", model={"name": "dsmil"}, epochs=1)
    fit(config, run=tmp_path / "run")
    torch.manual_seed(0)
    before = load_config(tmp_path / "run" / "config.yaml")
    assert before.model.name == "dsmil"
    assert load_bundle(tmp_path / "run").info.needs_coords is False


def test_a_setting_that_the_model_does_not_have_is_named(tmp_path: Path) -> None:
    make_cohort(tmp_path, "classification")
    config = small_config(tmp_path, "classification", model={"name": "abmil", "delta": 2.0})
    with pytest.raises(UserError, match="model abmil has no setting delta"):
        fit(config, run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_choices_that_do_not_go_together_stop_before_any_slide_is_read(tmp_path: Path) -> None:
    make_cohort(tmp_path, "classification")
    config = small_config(tmp_path, "classification", model=MODEL | {"attention": "diff", "correction": "srp"})
    with pytest.raises(UserError, match=r"settings of the model do not work.*choose"):
        fit(config, run=tmp_path / "run")


def test_a_model_of_images_is_refused(tmp_path: Path) -> None:
    make_cohort(tmp_path, "classification")
    config = small_config(tmp_path, "classification", model={"name": "grid_vit"})
    with pytest.raises(UserError, match=r"grid_vit reads images, not features of slides"):
        fit(config, run=tmp_path / "run")


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_slide(tmp_path: Path) -> None:
    make_cohort(tmp_path, "classification")
    write_slide(tmp_path / "h5" / "s00.h5", np.full((30, 16), 3e38, dtype=np.float32))
    config = small_config(tmp_path, "classification")
    config.split.seed = next(seed for seed in range(9) if _trains(tmp_path, seed, "s00"))
    with pytest.raises(TrainingStopped, match=r"the loss of slide s00 is no longer finite \(epoch 1\)"):
        fit(config, run=tmp_path / "run")


def _trains(folder: Path, seed: int, slide: str) -> bool:
    from nnunet_gdla.mil.prepare import load_cohort
    from nnunet_gdla.mil.splits import make_splits

    cohort = load_cohort(small_config(folder, "classification").data)
    return slide in make_splits(cohort, "holdout", seed=seed, val_share=0.2, test_share=0.25).train


def test_patience_ends_a_run_that_gets_no_better(tmp_path: Path) -> None:
    make_cohort(tmp_path, "classification")
    config = small_config(tmp_path, "classification", epochs=8, patience=2, lr=1e-9)
    fit(config, run=tmp_path / "run")
    history = pd.read_csv(tmp_path / "run" / "logs" / "metrics.csv")
    assert len(history) == 3
    said: list[str] = []
    fit(config, run=tmp_path / "run", resume=True, say=said.append)
    assert len(pd.read_csv(tmp_path / "run" / "logs" / "metrics.csv")) == 3


def test_tensorboard_and_workers_and_balanced_sampling(tmp_path: Path) -> None:
    make_cohort(tmp_path, "classification", slides=12, classes="aab")
    config = small_config(
        tmp_path, "classification", epochs=1, workers=1, tensorboard=True, sampling="balanced", class_weights="balanced"
    )
    fit(config, run=tmp_path / "run")
    assert list((tmp_path / "run" / "logs" / "tensorboard").glob("events.*"))


@pytest.mark.parametrize(
    ("task", "train", "message"),
    [
        ("classification", {"select": "c_index"}, "train.select: there is no metric 'c_index'; choose one of loss, "),
        ("survival", {"select": "macro_f1"}, "train.select: there is no metric 'macro_f1'; choose one of loss, "),
        ("classification", {"class_weights": [1, 2, 3]}, "give 2 numbers, for a, b"),
        ("classification", {"class_weights": [1, -2]}, "a weight cannot be negative"),
        ("classification", {"class_weights": [0, 0]}, "all are 0"),
        ("survival", {"class_weights": "balanced"}, "train.class_weights is for classification"),
    ],
)
def test_settings_that_cannot_train_are_refused_by_the_check_and_before_a_folder_is_made(
    task: str, train: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make_cohort(tmp_path, task)
    config = small_config(tmp_path, task, **train)
    with pytest.raises(UserError, match=message):
        prepare(config)
    with pytest.raises(UserError, match=message):
        fit(config, run=tmp_path / "runs" / "run")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("correction", ["srp", "fixed:1.0", "fixed:learned"])
def test_a_correction_that_no_block_has_is_refused(correction: str, tmp_path: Path) -> None:
    make_cohort(tmp_path, "classification")
    config = small_config(tmp_path, "classification", model=MODEL | {"depth": 1, "correction": correction})
    with pytest.raises(UserError, match=r"with depth 1 there is no block in which .* acts; set model.depth to 2 or"):
        prepare(config)


@pytest.mark.parametrize("change", [{"placement": "pre-v"}, {"correction": "none"}, {"correction": "xsa"}])
def test_one_block_is_enough_for_what_acts_in_it(change: dict[str, str], tmp_path: Path) -> None:
    make_cohort(tmp_path, "classification")
    prepare(small_config(tmp_path, "classification", model=MODEL | {"depth": 1} | change))


def test_a_cap_that_leaves_no_neighbours_is_refused(tmp_path: Path) -> None:
    make_cohort(tmp_path, "classification")
    config = small_config(tmp_path, "classification")
    config.data.max_patches = 1
    with pytest.raises(UserError, match="FAIL max_patches 1 leaves hardly a neighbour"):
        fit(config, run=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    config.model.correction = "none"
    prepare(config)


def test_a_class_without_training_slides_is_refused(tmp_path: Path) -> None:
    make_cohort(tmp_path, "classification", classes="abc")
    table = pd.read_csv(tmp_path / "cohort.csv", dtype=str)
    parts = ["test" if label == "c" else ("val" if row < 6 else "train") for row, label in enumerate(table["label"])]
    table.assign(part=parts)[["slide_id", "part"]].to_csv(tmp_path / "own.csv", index=False)
    config = small_config(tmp_path, "classification")
    config.split.scheme, config.split.file = "file", str(tmp_path / "own.csv")
    with pytest.raises(UserError, match="class c has no training slide; the model could never learn it"):
        prepare(config)


def test_a_place_that_cannot_be_written_is_one_sentence_before_any_slide_is_read(tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text("", encoding="utf-8")
    for place in (tmp_path / "file.yaml" / "x", Path("/proc/x/y")):
        said: list[str] = []
        with pytest.raises(UserError, match=r"cannot be written: .*another place with --out"):
            fit(small_config(tmp_path, "classification"), run=place, say=said.append)
        assert not said


def test_an_empty_folder_that_was_there_stays_when_the_settings_fail(tmp_path: Path) -> None:
    make_cohort(tmp_path, "classification")
    (tmp_path / "run").mkdir()
    with pytest.raises(UserError, match="warmup_fraction"):
        fit(small_config(tmp_path, "classification", warmup_fraction=2.0), run=tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []


def test_a_validation_part_that_was_drawn_is_said(tmp_path: Path) -> None:
    make_cohort(tmp_path, "classification")
    table = pd.read_csv(tmp_path / "cohort.csv", dtype=str)
    parts = ["test" if row < 4 else "train" for row in range(len(table))]
    table.assign(part=parts)[["slide_id", "part"]].to_csv(tmp_path / "own.csv", index=False)
    config = small_config(tmp_path, "classification")
    config.split.scheme, config.split.file = "file", str(tmp_path / "own.csv")
    said: list[str] = []
    prepare(config, say=said.append)
    assert any("the split has no part val, so 0.2 of train validates (seed 0): " in line for line in said)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"accelerator": "gpu"}, "gpu was asked for, but PyTorch sees no CUDA device"),
        ({"accelerator": "mps"}, "mps was asked for, but PyTorch sees none here"),
    ],
)
def test_m4_a_device_that_is_not_there_stops_before_anything_is_read_or_written(
    train: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    config = small_config(tmp_path, "classification", **train)  # there is no table either
    with pytest.raises(UserError, match=message):
        fit(config, run=tmp_path / "runs" / "run")
    with pytest.raises(UserError, match=message):
        run_sweep(config, [read_method("none")], [0], tmp_path / "sweep")
    assert not list(tmp_path.iterdir())


def test_m4_more_devices_than_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(UserError, match=r"train\.devices is 2, this machine has 1 GPU"):
        fit(small_config(tmp_path, "classification", accelerator="gpu", devices=2), run=tmp_path / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", [["test", "--cohort", "c.csv"], ["predict", "h5"], ["heatmap", "a.h5"]])
def test_m4_other_commands_ask_for_the_device_first(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.h5").touch()
    before = sorted(tmp_path.iterdir())
    assert main([*command, "--model", "none", "--device", "cuda"]) == 1
    assert "cuda was asked for, but PyTorch sees no CUDA device" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before


def test_a_full_disk_at_the_start_leaves_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_cohort(tmp_path, "classification")

    def to_csv(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", to_csv)
    with pytest.raises(WriteError, match=r"cohort\.csv cannot be written: the disk is full"):
        fit(small_config(tmp_path, "classification"), run=tmp_path / "runs" / "one")
    assert not (tmp_path / "runs").exists()


def test_a_full_disk_during_training_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").touch()

    def stopped(*_: object, **__: object) -> None:
        raise WriteError(f"{run}/checkpoints/last.ckpt cannot be written: the disk is full", "free space on that disk")

    monkeypatch.setattr(command, "fit", stopped)
    monkeypatch.setattr(command, "load_config", lambda *_: None)
    arguments = argparse.Namespace(resume=None, set=[], accelerator=None, devices=None, no_progress=True, fast=False)
    arguments.config, arguments.out = "mine.yaml", str(run)
    with pytest.raises(WriteError, match=r"the disk is full; free space on that disk, then go on with: .* --resume"):
        command.run(arguments)
