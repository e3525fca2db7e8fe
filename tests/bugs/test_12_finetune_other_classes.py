"""nnU-Net's -pretrained_weights takes a model of ours with another number of classes.

It demands every key with its shape, but for keys that contain `.seg_layers.`: heads of other names cannot be left out.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from nnunetv2.run.load_pretrained_weights import load_pretrained_weights
from nnunetv2.utilities.plans_handling.plans_handler import PlansManager
from torch import Tensor, nn

from nnunet_gdla.trainers import resolve
from tests.trainers.nnunet_project import Project, small_plans

NAMES = [
    "nnUNetTrainerGDLA_B0",
    "nnUNetTrainerPVTLinearAttn_B0",
    "nnUNetTrainerPVTSelfAttn_B0",
    "nnUNetTrainerPVTDiffAttn_B0",
]


def build(name: str, classes: int, patch: tuple[int, int], project: Project) -> nn.Module:
    manager = PlansManager(small_plans(project, patch))
    network: nn.Module = resolve(name).build_network_architecture(
        manager, manager.get_configuration("2d"), 1, classes, True
    )
    return network


def copy_of(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in network.state_dict().items()}


@pytest.mark.parametrize("patch", [(64, 64), (97, 131)])
@pytest.mark.parametrize("name", NAMES)
def test_everything_but_the_heads_is_transferred(
    name: str, patch: tuple[int, int], project: Project, tmp_path: Path
) -> None:
    source, target = build(name, 2, (64, 64), project), build(name, 5, patch, project)
    torch.save({"network_weights": source.state_dict()}, tmp_path / "checkpoint.pth")
    heads_before = {key: value for key, value in copy_of(target).items() if ".seg_layers." in key}
    load_pretrained_weights(target, str(tmp_path / "checkpoint.pth"))
    after = target.state_dict()
    for key, value in source.state_dict().items():
        assert torch.equal(after[key], heads_before.get(key, value))
    assert len(heads_before) == 8  # four heads; all else came over
    assert len(heads_before) < 0.05 * len(after)


@pytest.mark.parametrize("name", NAMES)
def test_the_deep_supervision_of_the_source_does_not_matter(name: str, project: Project, tmp_path: Path) -> None:
    manager = PlansManager(small_plans(project))
    source = resolve(name).build_network_architecture(manager, manager.get_configuration("2d"), 1, 3, False)
    target = build(name, 3, (64, 64), project)
    torch.save({"network_weights": source.state_dict()}, tmp_path / "checkpoint.pth")
    load_pretrained_weights(target, str(tmp_path / "checkpoint.pth"))
    found = {key: value for key, value in target.state_dict().items() if ".seg_layers." not in key}
    assert all(torch.equal(value, source.state_dict()[key]) for key, value in found.items())


def damaged(kind: str, project: Project) -> dict[str, Any]:
    source = build(NAMES[0], 3, (64, 64), project).state_dict()
    kinds: dict[str, dict[str, Any]] = {
        "empty": {"network_weights": {}},
        "another key": {"model": source},
        "another encoder": {"network_weights": build("nnUNetTrainerGDLA_B1", 3, (64, 64), project).state_dict()},
        "another prefix": {"network_weights": {f"module.{key}": value for key, value in source.items()}},
    }
    return kinds[kind]


@pytest.mark.parametrize("kind", ["empty", "another key", "another encoder", "another prefix"])
def test_a_wrong_file_loads_nothing(kind: str, project: Project, tmp_path: Path) -> None:
    target = build(NAMES[0], 3, (64, 64), project)
    before = copy_of(target)
    torch.save(damaged(kind, project), tmp_path / "checkpoint.pth")
    # The messages are nnU-Net's own.
    with pytest.raises(KeyError if kind == "another key" else AssertionError, match=r"network_weights|pretrained"):
        load_pretrained_weights(target, str(tmp_path / "checkpoint.pth"))
    assert all(torch.equal(value, before[key]) for key, value in target.state_dict().items())
