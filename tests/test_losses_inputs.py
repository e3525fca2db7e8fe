"""What the loss takes (dtypes, autocast, devices) and what it refuses, in words."""

import pickle
from collections.abc import Iterator
from typing import Any

import jaxtyping
import pytest
import torch

from nnunet_gdla.losses import BoundaryDoULoss
from tests.reference.boundary_dou import blobs, value_and_grad
from tests.reference.compare import relative_error

IGNORE = 7


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    ],
)
def test_label_values_of_any_dtype(dtype: torch.dtype) -> None:
    net_output, target = torch.randn(2, 3, 9, 8), blobs(2, 1, 9, 8, 3)
    target[:, :, 2:4] = IGNORE
    loss = BoundaryDoULoss(ignore_label=IGNORE)
    assert torch.equal(loss(net_output, target.to(dtype)), loss(net_output, target))


def test_bool_labels() -> None:
    net_output, target = torch.randn(2, 2, 9, 8), blobs(2, 1, 9, 8, 2)
    assert torch.equal(BoundaryDoULoss()(net_output, target.bool()), BoundaryDoULoss()(net_output, target))


def test_minus_one_is_not_the_largest_small_integer() -> None:
    net_output, target = torch.randn(1, 3, 4, 4), torch.full((1, 1, 4, 4), 255, dtype=torch.uint8)
    with pytest.raises(ValueError, match="label 255"):
        BoundaryDoULoss(ignore_label=-1)(net_output, target)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("regions", [False, True])
def test_half_precision_input_is_computed_in_float32(dtype: torch.dtype, regions: bool) -> None:
    net_output = (20 * torch.randn(4, 3, 64, 96)).to(dtype)
    target = blobs(4, 3, 64, 96, 2).bool() if regions else blobs(4, 1, 64, 96, 3)
    loss = BoundaryDoULoss(regions=regions)
    actual, expected = value_and_grad(loss, net_output, target), value_and_grad(loss, net_output.double(), target)
    assert actual["loss"].dtype == torch.float32
    assert actual["grad"].dtype == dtype
    assert relative_error(actual["loss"], expected["loss"]) < 1e-6
    # what is left is the rounding of the gradient itself; float16's smallest steps are 6e-8
    torch.testing.assert_close(actual["grad"].double(), expected["grad"], rtol=torch.finfo(dtype).eps, atol=6e-8)


def test_autocast_changes_nothing() -> None:
    net_output, target = torch.randn(2, 3, 9, 8), blobs(2, 1, 9, 8, 3)
    expected = value_and_grad(BoundaryDoULoss(), net_output, target)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = value_and_grad(BoundaryDoULoss(), net_output, target)
    assert actual["loss"].dtype == torch.float32
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_inference_mode_and_pickle() -> None:
    net_output, target = torch.randn(2, 3, 9, 8), blobs(2, 1, 9, 8, 3)
    loss = BoundaryDoULoss(ignore_label=IGNORE)
    with torch.inference_mode():
        assert torch.equal(pickle.loads(pickle.dumps(loss))(net_output, target), loss(net_output, target))
    assert "ignore_label=7" in repr(loss)


@pytest.fixture
def _without_shape_checks() -> Iterator[None]:
    """Users do not run them; what they then see is our own sentence."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.usefixtures("_without_shape_checks")
@pytest.mark.parametrize(
    ("output", "target", "options"),
    [
        ((2, 3, 8, 8), (2, 1, 8, 9), {}),
        ((2, 3, 8, 8), (1, 1, 8, 8), {}),
        ((2, 3, 8, 8), (2, 8, 8), {}),
        ((2, 3, 8, 8), (2, 3, 8, 8), {}),
        ((2, 3, 8), (2, 1, 8), {}),
        ((2, 3, 4, 8, 8), (2, 1, 4, 8, 8), {}),
        ((2, 3, 8, 8), (2, 4, 8, 8), {"regions": True}),
        ((2, 3, 8, 8), (2, 3, 8, 8), {"regions": True, "ignore_label": 4}),
    ],
)
def test_wrong_shapes_are_refused_with_both_shapes(
    output: tuple[int, ...], target: tuple[int, ...], options: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="network output") as error:
        BoundaryDoULoss(**options)(torch.zeros(output), torch.zeros(target))
    assert str(output) in str(error.value)
    assert str(target) in str(error.value)


@pytest.mark.parametrize("value", [3, -1, 1.5, torch.nan])
def test_a_label_without_an_output_is_named(value: float) -> None:
    target = torch.zeros(1, 1, 4, 4)
    target[0, 0, 1, 2] = value
    target[0, 0, 3] = IGNORE
    with pytest.raises(ValueError, match=rf"label {value:g}, but 3 outputs .*ignore_label is 7"):
        BoundaryDoULoss(ignore_label=IGNORE)(torch.zeros(1, 3, 4, 4), target)


def test_a_soft_region_mask_is_refused_unless_ignored() -> None:
    target = torch.zeros(1, 3, 4, 4)
    target[0, 1, 2, 2] = 0.25
    loss = BoundaryDoULoss(regions=True, ignore_label=IGNORE)
    with pytest.raises(ValueError, match=r"hold 0\.25; they may hold only 0 and 1"):
        loss(torch.zeros(1, 2, 4, 4), target)
    target[0, 2, 2, 2] = 1
    assert torch.isfinite(loss(torch.zeros(1, 2, 4, 4), target))


@pytest.mark.usefixtures("_without_shape_checks")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation": "tanh"}, "choose one of softmax, sigmoid, none"),
        ({"activation": "softmax", "regions": True}, "regions may overlap"),
        ({"alpha_cap": 1.0}, "alpha_cap must lie in"),
        ({"eps": 0.0}, "eps above 0"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BoundaryDoULoss(**options)


@pytest.mark.gpu
@pytest.mark.parametrize("regions", [False, True])
def test_on_a_gpu_nothing_waits_and_a_wrong_target_gives_nan(regions: bool) -> None:
    loss = BoundaryDoULoss(regions=regions, ignore_label=IGNORE)
    net_output = torch.randn(2, 3, 33, 40)
    target = blobs(2, 4 if regions else 1, 33, 40, 2 if regions else 3)
    expected = value_and_grad(loss, net_output, target)
    net_output, target, wrong = net_output.cuda(), target.cuda(), target.clone().cuda()
    wrong[:, 0] = 5
    torch.cuda.set_sync_debug_mode("error")
    try:
        actual, poisoned = value_and_grad(loss, net_output, target), loss(net_output, wrong)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close({name: value.cpu() for name, value in actual.items()}, expected)
    assert poisoned.isnan()
