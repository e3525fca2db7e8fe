"""Ignored pixels, overlapping regions and absent classes, with both losses that a trainer may have.

A loss of one's own forgets what nnU-Net's takes care of: the extra channel, targets in a list, labels without a head.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from nnunetv2.utilities.label_handling.label_handling import LabelManager
from torch import Tensor

from nnunet_gdla.trainers import resolve

NAMES = ["nnUNetTrainerGDLA", "nnUNetTrainerGDLA_DiceCE", "nnUNetTrainerPVTLinearAttn_B0_DiceCE_NoMirroring"]
pytestmark = pytest.mark.parametrize("name", NAMES)


def loss_for(name: str, labels: dict[str, Any], order: list[int] | None = None) -> tuple[Any, LabelManager]:
    """A trainer's loss, built from as little of a trainer as the recipe has."""
    configuration = SimpleNamespace(batch_dice=True, pool_op_kernel_sizes=[[1, 1], [2, 2]], configuration={})
    fake = SimpleNamespace(
        label_manager=LabelManager(labels, order),
        configuration_manager=configuration,
        is_ddp=False,
        enable_deep_supervision=False,
        device=torch.device("cpu"),
        _do_i_compile=lambda: False,
    )
    return resolve(name)._build_loss(fake), fake.label_manager


def value_and_gradient(loss: Any, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ANN401
    x = x.clone().requires_grad_()
    value = loss(x, target)
    value.backward()
    assert x.grad is not None
    assert torch.isfinite(value)
    assert torch.isfinite(x.grad).all()
    return value.detach(), x.grad


def test_ignored_pixels_do_not_count(name: str) -> None:
    loss, labels = loss_for(name, {"background": 0, "a": 1, "b": 2, "ignore": 3})
    heads = labels.num_segmentation_heads
    assert heads == 3
    target = torch.randint(0, 3, (2, 1, 32, 40))
    target[:, :, ::2] = 3
    x = torch.randn(2, heads, 32, 40)
    value, gradient = value_and_gradient(loss, x, target.float())
    per_pixel = gradient.abs().sum(1, keepdim=True)
    assert per_pixel[target == 3].max() == 0
    assert per_pixel[target != 3].max() > 0
    x[:, :, ::2] += 50 * torch.randn(2, heads, 16, 40)
    torch.testing.assert_close(loss(x, target.float()), value, rtol=0, atol=1e-5)


def test_a_batch_that_is_ignored_everywhere(name: str) -> None:
    loss, labels = loss_for(name, {"background": 0, "a": 1, "b": 2, "ignore": 3})
    x = torch.randn(1, labels.num_segmentation_heads, 16, 16)
    _, gradient = value_and_gradient(loss, x, torch.full((1, 1, 16, 16), 3.0))
    assert gradient.abs().max() == 0


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_regions_that_are_empty_or_full(name: str, value: float, dtype: torch.dtype) -> None:
    loss, labels = loss_for(name, {"background": 0, "whole": [1, 2, 3], "core": [2, 3], "enhancing": [3]}, [1, 2, 3])
    heads = labels.num_segmentation_heads
    assert heads == 3
    value_and_gradient(loss, 8 * torch.randn(2, heads, 32, 32), torch.full((2, heads, 32, 32), value).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_regions_with_ignored_pixels(name: str, dtype: torch.dtype) -> None:
    loss, labels = loss_for(name, {"background": 0, "whole": [1, 2], "core": [2], "ignore": 3}, [1, 2])
    heads = labels.num_segmentation_heads
    target = torch.randint(0, 2, (2, heads + 1, 24, 24)).to(dtype)
    _, gradient = value_and_gradient(loss, torch.randn(2, heads, 24, 24), target)
    ignored = target[:, -1:].bool().expand(-1, heads, -1, -1)
    assert gradient[ignored].abs().max() == 0
    assert gradient[~ignored].abs().max() > 0


@pytest.mark.parametrize("label", [0, 1, 2])
def test_one_class_everywhere(name: str, label: int) -> None:
    loss, _ = loss_for(name, {"background": 0, "a": 1, "b": 2})
    value_and_gradient(loss, torch.randn(1, 3, 16, 16), torch.full((1, 1, 16, 16), float(label)))
