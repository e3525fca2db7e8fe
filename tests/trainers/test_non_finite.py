"""A training stops at the first value that is not finite, says where it began, and saves nothing of it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nnunet_gdla.errors import TrainingStopped
from nnunet_gdla.trainers import resolve
from tests.trainers.nnunet_project import CPU, Project, make_trainer, read_batch

B0 = resolve("nnUNetTrainerGDLA_B0")


class FromBatches(B0):  # type: ignore[misc, valid-type]
    """Trains on made-up batches; `spoil` may change any of them."""

    def __init__(
        self,
        plans: dict[str, Any],
        configuration: str,
        fold: int,
        dataset_json: dict[str, Any],
        device: torch.device = CPU,
    ) -> None:
        super().__init__(plans, configuration, fold, dataset_json, device)
        self.num_epochs, self.num_iterations_per_epoch, self.num_val_iterations_per_epoch = 3, 2, 1
        self.save_every = 1
        self.spoil: Callable[[dict[str, Any], int], None] = lambda batch, index: None
        self.spoil_validation = self.spoil

    def get_dataloaders(self) -> tuple[Iterator[dict[str, Any]], Iterator[dict[str, Any]]]:
        self.configure_rotation_dummyDA_mirroring_and_inital_patch_size()
        return self._batches("spoil"), self._batches("spoil_validation")

    def _batches(self, spoil: str) -> Iterator[dict[str, Any]]:
        for index in range(100):
            batch = read_batch(self, index)
            getattr(self, spoil)(batch, index)
            yield batch


@pytest.fixture
def trainer(project: Project) -> Any:  # noqa: ANN401
    made = make_trainer(FromBatches, project)
    made.logger.plot_progress_png = lambda _folder: None  # takes seconds
    made.plot_network_architecture = lambda: None
    return made


@pytest.fixture
def started(trainer: Any) -> Any:  # noqa: ANN401
    trainer.initialize()
    trainer.on_train_epoch_start()
    return trainer


def weights(trainer: Any) -> dict[str, Tensor]:  # noqa: ANN401
    return {name: value.clone() for name, value in trainer.network.named_parameters()}


def stopped_by(trainer: Any, batch: dict[str, Any], what: str = "training loss") -> str:  # noqa: ANN401
    """The sentence with which a step stops; the parameters are then what they were."""
    before = weights(trainer)
    with pytest.raises(TrainingStopped) as caught:
        trainer.train_step(batch)
    torch.testing.assert_close(weights(trainer), before, rtol=0, atol=0, equal_nan=True)
    message = str(caught.value)
    assert message.startswith(f"the {what} is not finite in epoch {trainer.current_epoch}, step ")
    assert all(case in message for case in batch["keys"])
    assert "\n" not in message
    return message


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_image_is_named_by_its_case(value: float, started: Any) -> None:  # noqa: ANN401
    batch = read_batch(started)
    batch["data"][1, 0, 3, 3] = value
    message = stopped_by(started, batch)
    assert "first non-finite tensor: image of case case 1, channel 0." in message


def test_a_parameter_is_named(started: Any) -> None:  # noqa: ANN401
    with torch.no_grad():
        started.network.decoder.upsamples[1].weight[0, 0] = torch.nan
    assert "first non-finite tensor: parameter decoder.upsamples.1.weight." in stopped_by(started, read_batch(started))


def test_the_first_module_is_named(started: Any) -> None:  # noqa: ANN401
    started.network.decoder.blocks[1].norm2.register_forward_hook(lambda _module, _inputs, output: output * torch.nan)
    message = stopped_by(started, read_batch(started))
    assert "first non-finite tensor: output of module decoder.blocks.1.norm2." in message


def test_a_gradient_is_named_though_the_loss_is_finite(started: Any) -> None:  # noqa: ANN401
    parameter = started.network.decoder.upsamples[1].weight
    parameter.register_hook(lambda gradient: gradient * torch.nan)
    message = stopped_by(started, read_batch(started), "training gradient")
    assert "first non-finite tensor: gradient of decoder.upsamples.1.weight." in message


def test_the_gradient_nearest_to_the_loss_is_named(started: Any) -> None:  # noqa: ANN401
    def spoil(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        if output.requires_grad:  # not when the network is run again for the message
            output.register_hook(lambda gradient: gradient * torch.inf)

    # Everything before this block gets a bad gradient too.
    started.network.decoder.blocks[1].register_forward_hook(spoil)
    message = stopped_by(started, read_batch(started), "training gradient")
    assert "first non-finite tensor: gradient of decoder.blocks.1." in message


def test_a_loss_alone_is_named(started: Any) -> None:  # noqa: ANN401
    loss = started.loss
    started.loss = lambda outputs, targets: loss(outputs, targets) * torch.nan
    assert "first non-finite tensor: the loss alone" in stopped_by(started, read_batch(started))


def test_names_are_those_of_the_network_before_compiling(started: Any) -> None:  # noqa: ANN401
    with torch.no_grad():
        started.network.stem.conv1.weight[0] = torch.inf
    started.network = torch.compile(started.network, backend="eager")  # not called, so not compiled
    with pytest.raises(TrainingStopped, match=r"first non-finite tensor: parameter stem\.conv1\.weight\."):
        started._stop_unless_finite(torch.tensor(torch.nan), read_batch(started), "training loss")


def test_epoch_and_step_are_counted(started: Any) -> None:  # noqa: ANN401
    started.current_epoch = 4
    started.on_train_epoch_start()
    for _ in range(2):
        started.train_step(read_batch(started))
    batch = read_batch(started)
    batch["data"][0, 0] = torch.nan
    assert "in epoch 4, step 2, cases case 0, case 1;" in stopped_by(started, batch)


def test_validation_stops_too(started: Any) -> None:  # noqa: ANN401
    batch = read_batch(started)
    batch["data"][0, 0, 0, 0] = torch.nan
    started.on_validation_epoch_start()
    with torch.no_grad(), pytest.raises(TrainingStopped) as caught:
        started.validation_step(batch)
    assert str(caught.value).startswith("the validation loss is not finite in epoch 0")
    assert "image of case case 0, channel 0" in str(caught.value)


def checkpoints(trainer: Any) -> dict[str, bytes]:  # noqa: ANN401
    return {path.name: path.read_bytes() for path in Path(trainer.output_folder).glob("checkpoint_*")}


@pytest.mark.parametrize("loader", ["spoil", "spoil_validation"])
def test_no_checkpoint_comes_from_a_spoilt_first_epoch(loader: str, trainer: Any) -> None:  # noqa: ANN401
    setattr(trainer, loader, lambda batch, _index: batch["data"].fill_(torch.nan))
    with pytest.raises(TrainingStopped, match="in epoch 0"):
        trainer.run_training()
    assert checkpoints(trainer) == {}


@pytest.mark.parametrize(("loader", "first_bad"), [("spoil", 3), ("spoil_validation", 1)])
def test_checkpoints_of_earlier_epochs_stay_as_they_were(loader: str, first_bad: int, trainer: Any) -> None:  # noqa: ANN401
    good: dict[str, bytes] = {}

    def spoil(batch: dict[str, Any], index: int) -> None:
        if index == first_bad:
            good.update(checkpoints(trainer))
            batch["data"][0, 0, 5, 5] = torch.nan

    setattr(trainer, loader, spoil)
    with pytest.raises(TrainingStopped, match="in epoch 1") as caught:
        trainer.run_training()
    assert set(good) == {"checkpoint_latest.pth", "checkpoint_best.pth"}
    assert checkpoints(trainer) == good
    saved = torch.load(Path(trainer.output_folder) / "checkpoint_best.pth", weights_only=False)
    assert all(torch.isfinite(value).all() for value in saved["network_weights"].values())
    assert isinstance(caught.value, RuntimeError)


class OutOfMemory(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nMany\nlines")


@pytest.mark.parametrize("step", ["train_step", "validation_step"])
def test_out_of_memory_names_the_planner_that_fits(step: str, started: Any) -> None:  # noqa: ANN401
    batch = read_batch(started)
    started.network = OutOfMemory()
    with pytest.raises(TrainingStopped) as caught:
        getattr(started, step)(batch)
    message = str(caught.value)
    for part in ("patch size [64, 64]", "batch size 2", "nnUNetPlannerGDLA", "Dataset850_Tiny", "-p nnUNetGDLAPlans"):
        assert part in message
    assert "\n" not in message


def test_out_of_memory_in_the_backward_pass(started: Any) -> None:  # noqa: ANN401
    def fail(_gradient: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    started.network.decoder.upsamples[0].weight.register_hook(fail)
    with pytest.raises(TrainingStopped, match="nnUNetPlannerGDLA"):
        started.train_step(read_batch(started))
