"""Two processes with unequal batches behave as one process with the joint batch."""

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from nnunet_gdla.losses import BoundaryDoULoss

IGNORE = 3
RANK_OF_IMAGE = (0, 0, 0, 1)


class Case(NamedTuple):
    options: dict[str, Any]
    target: Tensor


def cases() -> dict[str, Case]:
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(0, 2, (4, 1, 9, 8), generator=generator)
    labels[3, :, 2:6] = 2  # a class that only the second process sees
    with_ignored = labels.clone()
    with_ignored[:, :, :, 1::3] = IGNORE
    regions = torch.rand(4, 4, 9, 8, generator=generator) < 0.4
    one_sided = regions.clone()
    one_sided[3, -1] = True
    return {
        "labels": Case({}, labels),
        "labels with ignored pixels": Case({"ignore_label": IGNORE}, with_ignored),
        "regions with ignored pixels": Case({"regions": True, "ignore_label": IGNORE}, regions),
        "second process ignored everywhere": Case({"regions": True, "ignore_label": IGNORE}, one_sided),
        "nothing counts": Case({"ignore_label": IGNORE}, torch.full_like(labels, IGNORE)),
    }


def images() -> Tensor:
    return torch.randn(4, 2, 9, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


def network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.Tanh(), nn.Conv2d(6, 3, 1)).double()


def run(model: nn.Module, x: Tensor, target: Tensor, loss: BoundaryDoULoss) -> list[Tensor]:
    model.zero_grad()
    value = loss(model(x), target)
    value.backward()
    return [value.detach(), *(parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None)]


def process(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    store = (folder / "store").as_uri()
    distributed.init_process_group("gloo", store, timedelta(seconds=60), world_size=2, rank=rank)
    model = DistributedDataParallel(network())
    mine = [i for i, owner in enumerate(RANK_OF_IMAGE) if owner == rank]
    results = {
        name: run(model, images()[mine], target[mine], BoundaryDoULoss(**options, ddp=True))
        for name, (options, target) in cases().items()
    }
    torch.save(results, folder / f"{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[Tensor]]]:
    folder = tmp_path_factory.mktemp("ddp")
    multiprocessing.spawn(process, args=(folder,), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("name", cases())
def test_two_unequal_batches_equal_the_joint_batch(name: str, two_processes: list[dict[str, list[Tensor]]]) -> None:
    options, target = cases()[name]
    expected = run(network(), images(), target, BoundaryDoULoss(**options))
    assert len(expected) == 5
    for results in two_processes:
        torch.testing.assert_close(results[name], expected, rtol=1e-9, atol=1e-12)


def test_the_cases_can_tell_joint_statistics_from_separate_ones() -> None:
    for name, (options, target) in cases().items():
        loss, logits = BoundaryDoULoss(**options), network()(images())
        separate = (loss(logits[:3], target[:3]) + loss(logits[3:], target[3:])) / 2
        assert name == "nothing counts" or abs(separate - loss(logits, target)) > 1e-4
