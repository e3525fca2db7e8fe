"""The learning rate of every step is the published one, whatever happens in between."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nnunet_gdla.trainers.nnunet_gdla_schedule import WarmupCosine, learning_rate
from nnunet_gdla.trainers.nnunet_trainer_gdla import nnUNetTrainerGDLA
from tests.trainers.nnunet_project import CPU, Project, make_trainer, read_batch

PEAK, FLOOR = 5e-4, 1e-6


def rate_as_published(step: int, total: int, peak: float = PEAK) -> float:
    warmup = max(1, round(0.05 * total))
    if step < warmup:
        return FLOOR + (peak - FLOOR) * step / warmup
    share = (step - warmup) / (total - warmup)
    return FLOOR + (peak - FLOOR) * (1 + math.cos(math.pi * share)) / 2


class ThreeStepEpochs(nnUNetTrainerGDLA):
    """Sets its counts where nnU-Net's users set them: after the base's constructor."""

    encoder = "pvt_v2_b0"

    def __init__(
        self,
        plans: dict[str, Any],
        configuration: str,
        fold: int,
        dataset_json: dict[str, Any],
        device: torch.device = CPU,
    ) -> None:
        super().__init__(plans, configuration, fold, dataset_json, device)
        self.num_epochs = 8
        self.num_iterations_per_epoch = 3


def train_epoch(trainer: Any) -> list[float]:  # noqa: ANN401
    """Train the current epoch; returns the rate that the optimizer had at each of its steps."""
    used: list[float] = []
    handle = trainer.optimizer.register_step_pre_hook(
        lambda optimizer, _args, _kwargs: used.extend({group["lr"] for group in optimizer.param_groups})
    )
    torch.manual_seed(trainer.current_epoch)  # stochastic depth draws from here
    trainer.on_train_epoch_start()
    for iteration in range(trainer.num_iterations_per_epoch):
        trainer.train_step(read_batch(trainer, seed=10 * trainer.current_epoch + iteration))
    handle.remove()
    return used


@pytest.mark.parametrize("total", [2, 3, 19, 20, 21, 30, 50, 70, 1000])
def test_every_rate_of_a_training(total: int) -> None:
    found = [learning_rate(step, total, PEAK) for step in range(total)]
    assert found == pytest.approx([rate_as_published(step, total) for step in range(total)], rel=1e-12, abs=0)


@pytest.mark.parametrize(
    ("total", "warmup"), [(1, 1), (2, 1), (19, 1), (20, 1), (29, 1), (30, 2), (50, 2), (70, 4), (62_500, 3_125)]
)
def test_the_peak_comes_after_a_twentieth_of_the_steps(total: int, warmup: int) -> None:
    assert learning_rate(0, total, PEAK) == FLOOR
    assert learning_rate(warmup, total, PEAK) == PEAK
    rates = [learning_rate(step, total, PEAK) for step in range(total)]
    assert rates[: warmup + 1] == sorted(rates[: warmup + 1])
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)
    assert all(FLOOR <= rate <= PEAK for rate in rates)


def test_the_full_training() -> None:
    rates = [learning_rate(step, 62_500, PEAK) for step in (0, 1, 1_562, 3_124, 3_125, 32_812, 62_499, 62_500, 70_000)]
    expected = [rate_as_published(step, 62_500) for step in (0, 1, 1_562, 3_124, 3_125, 32_812, 62_499, 62_500)]
    assert rates == pytest.approx([*expected, FLOOR], rel=1e-12, abs=0)
    # The middle of the cosine is the mean of its ends.
    assert rates[5] == pytest.approx((PEAK + FLOOR) / 2, rel=1e-4)


def test_a_training_of_one_step_is_at_the_floor() -> None:
    assert learning_rate(0, 1, PEAK) == FLOOR


def test_all_groups_get_the_rate() -> None:
    groups = [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": lr} for lr in (1.0, 2.0)]
    optimizer = torch.optim.AdamW(groups)
    WarmupCosine(optimizer, lambda: (10, 10, PEAK)).step(3, 4)
    assert [group["lr"] for group in optimizer.param_groups] == [learning_rate(34, 100, PEAK)] * 2


def test_the_defaults_are_the_recipe(project: Project) -> None:
    trainer = make_trainer(nnUNetTrainerGDLA, project)
    assert trainer.initial_lr == PEAK
    assert (trainer.num_epochs, trainer.num_iterations_per_epoch, trainer.save_every) == (250, 250, 5)


@pytest.mark.parametrize("change", [{}, {"num_epochs": 2}, {"num_iterations_per_epoch": 5}, {"initial_lr": 1e-2}])
def test_the_counts_are_read_at_use(change: dict[str, Any], project: Project) -> None:
    trainer = make_trainer(ThreeStepEpochs, project)
    trainer.initialize()
    for name, value in change.items():
        setattr(trainer, name, value)
    total = trainer.num_epochs * trainer.num_iterations_per_epoch
    for epoch in range(trainer.num_epochs):
        trainer.current_epoch = epoch
        trainer.on_train_epoch_start()
        expected = rate_as_published(epoch * trainer.num_iterations_per_epoch, total, trainer.initial_lr)
        assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(expected, rel=1e-12, abs=0)


def test_every_step_has_its_own_rate(project: Project) -> None:
    trainer = make_trainer(ThreeStepEpochs, project)
    trainer.initialize()
    for epoch in range(2):
        trainer.current_epoch = epoch
        expected = [rate_as_published(3 * epoch + iteration, 24) for iteration in range(3)]
        assert train_epoch(trainer) == pytest.approx(expected, rel=1e-12, abs=0)


@pytest.fixture
def resumed_from(project: Project, tmp_path: Path) -> Callable[[Any], Any]:
    """Save a trainer after its epoch as nnU-Net does, and continue in a new one."""

    def resume(trainer: Any) -> Any:  # noqa: ANN401
        checkpoint = str(tmp_path / "checkpoint_latest.pth")
        trainer.save_checkpoint(checkpoint)
        continued = make_trainer(ThreeStepEpochs, project, continue_training=True)
        continued.load_checkpoint(checkpoint)
        return continued

    return resume


def test_a_resumed_training_is_the_uninterrupted_one(project: Project, resumed_from: Callable[[Any], Any]) -> None:
    trainer = make_trainer(ThreeStepEpochs, project)
    trainer.initialize()
    train_epoch(trainer)
    resumed = resumed_from(trainer)
    trainer.current_epoch += 1
    assert resumed.current_epoch == trainer.current_epoch == 1

    assert train_epoch(resumed) == train_epoch(trainer)
    assert resumed.logger.get_value("lrs", step=None) == trainer.logger.get_value("lrs", step=None)
    after, uninterrupted = resumed.network.state_dict(), trainer.network.state_dict()
    torch.testing.assert_close(after, uninterrupted, rtol=0, atol=0)


def test_the_log_shows_a_small_rate_with_its_digits(project: Project) -> None:
    trainer = make_trainer(ThreeStepEpochs, project)
    trainer.initialize()
    trainer.on_train_epoch_start()
    assert "1.000000e-06" in Path(trainer.log_file).read_text()
