"""A training that is killed and continued is the training that nobody has killed."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integration.datasets import cases_of
from tests.integration.masks import assert_same_predictions
from tests.integration.stages import GDLA, SHORT_PLANS, train
from tests.integration.workspace import Workspace

pytestmark = pytest.mark.slow
EPOCHS, ITERATIONS, PEAK, FLOOR = 2, 8, 5e-4, 1e-6


def rates(fold: Path) -> list[float]:
    return [float(line) for line in (fold / "rates.txt").read_text().split()]


def history(checkpoint: Path) -> dict[str, list[Any]]:
    logged = torch.load(checkpoint, weights_only=False)["logging"]
    return {key: values for key, values in logged.items() if isinstance(values, list)}


def test_kill_and_continue(
    classes: tuple[Workspace, str], trained_classes: tuple[Workspace, str], tmp_path: Path
) -> None:
    workspace, dataset = classes
    fold = workspace.model(dataset, GDLA, SHORT_PLANS) / "fold_0"
    reached = tmp_path / "second_epoch"
    called = (dataset, "2d", "0", "-tr", GDLA, "-p", SHORT_PLANS, "-device", "cpu")
    workspace.run_and_kill("nnUNetv2_train", *called, when=reached, variables={"SHORT_STOP_AT": str(reached)})
    before = history(fold / "checkpoint_latest.pth")
    assert not (fold / "checkpoint_final.pth").exists()
    assert len(rates(fold)) == ITERATIONS
    drawn = (fold / "progress.png").stat().st_mtime_ns

    said = train(workspace, dataset, GDLA, SHORT_PLANS, "--c", "--npz")
    assert "Epoch 1" in said
    assert "Epoch 0" not in said

    straight = trained_classes[0].model(dataset, GDLA, SHORT_PLANS) / "fold_0"
    after, uninterrupted = (history(folder / "checkpoint_final.pth") for folder in (fold, straight))
    assert rates(fold) == rates(straight)
    assert after["lrs"] == uninterrupted["lrs"]
    assert len(after["lrs"]) == EPOCHS
    for key, values in after.items():
        assert len(values) == EPOCHS, key
        assert repr(values[:1]) == repr(before[key]), key  # repr: NaN is a possible Dice
    assert (fold / "progress.png").stat().st_mtime_ns > drawn

    validated = tmp_path / "first_validation"
    (fold / "validation").rename(validated)
    train(workspace, dataset, GDLA, SHORT_PLANS, "--val", "--npz")
    assert len(rates(fold)) == EPOCHS * ITERATIONS  # nothing was trained
    assert_same_predictions(validated, fold / "validation", cases_of(workspace.raw / dataset, "val"))


def test_rates_are_those_of_the_recipe(trained_classes: tuple[Workspace, str]) -> None:
    workspace, dataset = trained_classes
    total = EPOCHS * ITERATIONS
    warmup = max(1, round(0.05 * total))
    expected = [
        FLOOR + (PEAK - FLOOR) * step / warmup
        if step < warmup
        else FLOOR + (PEAK - FLOOR) * (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) / 2
        for step in range(total)
    ]
    found = rates(workspace.model(dataset, GDLA, SHORT_PLANS) / "fold_0")
    assert found == pytest.approx(expected, rel=1e-12)
