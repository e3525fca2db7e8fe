"""Outputs and nnU-Net's own targets have the same sizes, for any patch, and the switch reaches the network."""

import datetime
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from batchgeneratorsv2.transforms.utils.deep_supervision_downsampling import DownsampleSegForDSTransform
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from torch import Tensor, distributed, nn

from nnunet_gdla.networks import PVTGDLA
from nnunet_gdla.networks.pvt_gdla import PLAN_STRIDES
from nnunet_gdla.trainers import resolve
from nnunet_gdla.trainers.nnunet_gdla_supervision import output_scales
from tests.trainers.nnunet_project import Project, make_trainer, read_batch

PATCHES = [(56, 40), (64, 64), (96, 160), (512, 384), (20, 32), (8, 320), (97, 131), (584, 565)]


def scales_of(trainer: Any, patch: tuple[int, int], enabled: bool = True) -> Any:  # noqa: ANN401
    """A trainer's scales for a patch, without building the trainer."""
    manager = SimpleNamespace(patch_size=list(patch), pool_op_kernel_sizes=PLAN_STRIDES)
    return trainer._get_deep_supervision_scales(
        SimpleNamespace(enable_deep_supervision=enabled, configuration_manager=manager)
    )


def targets(scales: Any, segmentation: Tensor) -> list[Tensor]:  # noqa: ANN401
    made: list[Tensor] = DownsampleSegForDSTransform(scales)(segmentation=segmentation)["segmentation"]
    return made


@pytest.fixture(scope="module")
def network() -> PVTGDLA:
    return PVTGDLA(1, 3, encoder="pvt_v2_b0", deep_supervision=True).eval()


@pytest.mark.parametrize("patch", PATCHES)
def test_targets_have_the_sizes_of_the_outputs(patch: tuple[int, int], network: PVTGDLA) -> None:
    segmentation = torch.randint(0, 3, (1, *patch), dtype=torch.int16)
    made = targets(scales_of(resolve("nnUNetTrainerGDLA"), patch), segmentation)
    with torch.no_grad():
        outputs = network(torch.zeros(1, 1, *patch))
    assert [target.shape[1:] for target in made] == [output.shape[2:] for output in outputs]
    assert torch.equal(made[0], segmentation)


@pytest.mark.parametrize("patch", [patch for patch in PATCHES if min(patch) > 16])
def test_the_stock_trainer_makes_the_same_sizes_from_our_strides(patch: tuple[int, int]) -> None:
    segmentation = torch.zeros(1, *patch)
    ours, stock = (
        targets(scales_of(trainer, patch), segmentation) for trainer in (resolve("nnUNetTrainerGDLA"), nnUNetTrainer)
    )
    assert [target.shape for target in ours] == [target.shape for target in stock]


def test_scales_are_exact_for_every_edge() -> None:
    for edge in range(1, 2049):
        sizes = [size[0] for size in PVTGDLA.output_sizes((edge, 64))]
        assert [round(edge * scale[0]) for scale in output_scales((edge, 64))] == sizes
        assert sizes[0] == edge


def test_region_targets_stay_masks() -> None:
    segmentation = torch.rand(3, 97, 131) < 0.5
    made = targets(scales_of(resolve("nnUNetTrainerGDLA"), (97, 131)), segmentation)
    assert [target.dtype for target in made] == [torch.bool] * 4
    assert [tuple(target.shape) for target in made] == [(3, 97, 131), (3, 12, 16), (3, 6, 8), (3, 3, 4)]


def test_scales_are_what_nnunet_accepts() -> None:
    scales = scales_of(resolve("nnUNetTrainerGDLA"), (97, 131))
    assert all(type(scale) is list and len(scale) == 2 for scale in scales)
    assert scales_of(resolve("nnUNetTrainerGDLA"), (97, 131), enabled=False) is None


def outputs(trainer: Any) -> Any:  # noqa: ANN401
    with torch.no_grad():
        return trainer.network.eval()(torch.zeros(1, 1, 64, 64))


def assert_switch_works(trainer: Any) -> None:  # noqa: ANN401
    for _ in range(2):
        trainer.set_deep_supervision_enabled(False)
        assert isinstance(outputs(trainer), Tensor)
        trainer.set_deep_supervision_enabled(True)
        assert [tuple(output.shape[2:]) for output in outputs(trainer)] == [(64, 64), (8, 8), (4, 4), (2, 2)]


@pytest.fixture
def trainer(project: Project) -> Any:  # noqa: ANN401
    made = make_trainer(resolve("nnUNetTrainerGDLA_B0"), project)
    made.initialize()
    return made


def test_the_switch_reaches_the_network(trainer: Any) -> None:  # noqa: ANN401
    assert_switch_works(trainer)


def test_the_switch_is_set_inside_the_wrapper_of_a_compiled_network(trainer: Any) -> None:  # noqa: ANN401
    inner = trainer.network
    trainer.network = torch.compile(inner, backend="eager")
    for enabled in (False, True):
        trainer.set_deep_supervision_enabled(enabled)
        assert inner.decoder.deep_supervision is enabled


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_the_switch_reaches_a_compiled_network(backend: str, trainer: Any) -> None:  # noqa: ANN401
    eager = outputs(trainer)
    trainer.network = torch.compile(trainer.network, backend=backend)
    assert_switch_works(trainer)
    torch.testing.assert_close(outputs(trainer), eager, rtol=1e-4, atol=1e-5)


@pytest.fixture
def one_process_group(tmp_path: Path) -> Iterator[None]:
    distributed.init_process_group(
        "gloo", (tmp_path / "store").as_uri(), datetime.timedelta(seconds=60), world_size=1, rank=0
    )
    yield
    distributed.destroy_process_group()


def test_the_switch_reaches_a_network_under_ddp(trainer: Any, one_process_group: None) -> None:  # noqa: ANN401
    trainer.is_ddp = True  # nnU-Net's own way to this state needs a GPU, so the trainer was made before the group
    trainer.network = nn.parallel.DistributedDataParallel(trainer.network)
    assert_switch_works(trainer)


def test_without_deep_supervision_a_step_takes_one_target(project: Project) -> None:
    trainer = make_trainer(resolve("nnUNetTrainerGDLA_B0"), project)
    batch = read_batch(trainer)
    trainer.enable_deep_supervision = False
    trainer.initialize()
    assert isinstance(outputs(trainer), Tensor)
    trainer.on_train_epoch_start()
    result = trainer.train_step(batch | {"target": batch["target"][0]})
    assert np.isfinite(result["loss"])
    assert type(trainer.loss).__name__ == "BoundaryDoULoss"
