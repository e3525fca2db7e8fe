"""Sweeps: identical splits, runs read back, comparison to the first method."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.bundle import resolved_arguments
from nnunet_gdla.mil.commands.sweep import METRICS
from nnunet_gdla.mil.metrics import classification_metrics
from nnunet_gdla.mil.sweep import compare, comparison_lines, read_method, run_sweep
from tests.mil.small_cohorts import make_cohort, small_config

pytestmark = pytest.mark.usefixtures("no_figures")


def test_methods_are_known_names_or_settings() -> None:
    base = small_config(Path("folder"), "classification")
    changed = read_method("wide:model.width=48,train.lr=0.01").config(base, 3, fixed_split=False)
    assert (changed.model.width, changed.train.lr, changed.train.seed, changed.split.seed) == (48, 0.01, 3, 3)
    assert read_method("diff").config(base, 1, fixed_split=True).model.attention == "diff"
    assert read_method("diff").config(base, 1, fixed_split=True).split.seed == 0
    assert read_method("fixed:1.0").config(base, 1, fixed_split=True).model.correction == "fixed:1.0"
    abmil = read_method("abmil").config(base, 1, fixed_split=True).model
    assert (abmil.name, abmil.arguments()) == ("abmil", {})
    vit4 = read_method("small:model.name=vit4,model.depth=1").config(base, 1, fixed_split=True).model
    assert resolved_arguments("vit4", vit4.arguments())["depth"] == 1  # what vit4 does not have is left out
    for wrong in ("srpp", "a/b:model.width=3", "x:width"):
        with pytest.raises(UserError, match=r"no method .*; choose among none, srp, xsa, diff, abmil"):
            read_method(wrong)


def test_a_sweep_compares_on_identical_splits_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    make_cohort(tmp_path, "classification")
    base = small_config(tmp_path, "classification", epochs=1)
    methods = [read_method(name) for name in ("none", "srp")]
    first = run_sweep(base, methods[:1], [0, 1], tmp_path / "sweep")
    before = (tmp_path / "sweep" / "none" / "seed_1" / "checkpoints" / "last.ckpt").stat().st_mtime_ns
    said: list[str] = []
    sweep = run_sweep(base, methods, [0, 1], tmp_path / "sweep", say=said.append)
    assert (tmp_path / "sweep" / "none" / "seed_1" / "checkpoints" / "last.ckpt").stat().st_mtime_ns == before
    assert "none, seed 0 (1 of 4): read back" in said
    assert sweep.runs["none", 0].predictions.equals(first.runs["none", 0].predictions)
    table = pd.read_csv(tmp_path / "sweep" / "sweep.csv")
    assert list(zip(table["method"], table["seed"], strict=True)) == [("none", 0), ("srp", 0), ("none", 1), ("srp", 1)]
    assert {"slide_auc", "patient_auc"} <= set(table)

    comparison = compare(sweep, "accuracy", bootstrap=20)
    by_method = table.groupby("method", sort=False)["slide_accuracy"]
    assert list(comparison["mean"]) == pytest.approx(list(by_method.mean()))
    assert comparison["difference"].iloc[1] == pytest.approx(comparison["mean"].iloc[1] - comparison["mean"].iloc[0])
    lines = comparison_lines(comparison)
    assert lines[0].startswith("accuracy (2 runs)")
    assert [line.split()[0] for line in lines[1:]] == ["none", "srp"]
    with pytest.raises(UserError, match="no metric 'f1'; choose one of accuracy"):
        compare(sweep, "f1")

    with pytest.raises(UserError, match=r"holds a run with train\.lr 0\.001, wanted is 0\.01"):
        run_sweep(small_config(tmp_path, "classification", epochs=1, lr=0.01), methods, [0], tmp_path / "sweep")
    with pytest.raises(UserError, match="named twice"):
        run_sweep(base, [methods[0], methods[0]], [0], tmp_path / "sweep")


def test_the_metrics_that_can_be_asked_for_are_those_that_there_are() -> None:
    labels, probabilities = np.array([0, 1]), np.array([[0.8, 0.2], [0.3, 0.7]])
    assert tuple(classification_metrics(labels, probabilities, threshold=0.5)) == METRICS["classification"]


def test_a_split_that_differs_is_refused(tmp_path: Path) -> None:
    make_cohort(tmp_path, "survival")
    base = small_config(tmp_path, "survival", epochs=1)
    methods = [read_method("none"), read_method("other:split.test_share=0.4")]
    with pytest.raises(UserError, match="have different splits"):
        run_sweep(base, methods, [0], tmp_path / "sweep")
