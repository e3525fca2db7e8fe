"""The loss is its formula: naive twin, golden numbers, counts by hand; ignored pixels and absent classes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nnunet_gdla.losses import BoundaryDoULoss, _read_labels, _read_regions
from tests.golden_files import GoldenFile, golden_params
from tests.reference.boundary_dou import blobs, boundary_dou_naive, boundary_pixels_naive, value_and_grad
from tests.reference.compare import assert_all_close

IGNORE = 7


def naive(**options: Any) -> Callable[[Tensor, Tensor], Tensor]:  # noqa: ANN401 - the options of the loss
    return lambda net_output, target: boundary_dou_naive(net_output, target, **options)


@st.composite
def label_problems(draw: st.DrawFn) -> tuple[Tensor, Tensor, dict[str, Any]]:
    size = st.integers(1, 11)
    batch, num_classes, height, width = draw(st.integers(1, 3)), draw(st.integers(1, 20)), draw(size), draw(size)
    torch.manual_seed(draw(st.integers(0, 2**31)))
    activation = draw(st.sampled_from(["softmax", "sigmoid", "none"]))
    net_output = 3 * torch.randn(batch, num_classes, height, width, dtype=torch.float64)
    target = blobs(batch, 1, height, width, num_classes).to(draw(st.sampled_from([torch.int16, torch.float32])))
    options: dict[str, Any] = {"activation": activation, "alpha_cap": draw(st.sampled_from([0.8, -0.5]))}
    ignored_share = draw(st.sampled_from([None, 0.0, 0.3, 1.0]))
    if ignored_share is not None:
        options["ignore_label"] = draw(st.sampled_from([num_classes, 255, -1, 0]))
        target[torch.rand(target.shape) < ignored_share] = options["ignore_label"]
    return net_output.sigmoid() if activation == "none" else net_output, target, options


@st.composite
def region_problems(draw: st.DrawFn) -> tuple[Tensor, Tensor, dict[str, Any]]:
    size = st.integers(1, 11)
    batch, num_regions, height, width = draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(size), draw(size)
    torch.manual_seed(draw(st.integers(0, 2**31)))
    net_output = 3 * torch.randn(batch, num_regions, height, width, dtype=torch.float64)
    target = blobs(batch, num_regions, height, width, draw(st.integers(1, 2)))
    options: dict[str, Any] = {"activation": "sigmoid", "regions": True}
    ignored_share = draw(st.sampled_from([None, 0.0, 0.3, 1.0]))
    if ignored_share is not None:
        options["ignore_label"] = 3
        target = torch.cat([target, torch.rand(batch, 1, height, width) < ignored_share], 1)
    return net_output, target.to(draw(st.sampled_from([torch.bool, torch.float32, torch.uint8]))), options


@settings(max_examples=150)
@given(label_problems())
def test_labels_equal_the_naive_formula(problem: tuple[Tensor, Tensor, dict[str, Any]]) -> None:
    net_output, target, options = problem
    actual = value_and_grad(BoundaryDoULoss(**options), net_output, target)
    torch.testing.assert_close(actual, value_and_grad(naive(**options), net_output, target), rtol=1e-10, atol=1e-13)


@settings(max_examples=150)
@given(region_problems())
def test_regions_equal_the_naive_formula(problem: tuple[Tensor, Tensor, dict[str, Any]]) -> None:
    net_output, target, options = problem
    actual = value_and_grad(BoundaryDoULoss(**options), net_output, target)
    torch.testing.assert_close(actual, value_and_grad(naive(**options), net_output, target), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("ignore_label", [None, IGNORE])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid", "none"])
def test_gradcheck_of_labels(activation: str, ignore_label: int | None) -> None:
    target = blobs(2, 1, 5, 4, 3)
    if ignore_label is not None:
        target[:, :, 1::3] = ignore_label
    net_output = torch.rand(2, 3, 5, 4, dtype=torch.float64, requires_grad=True)
    loss = BoundaryDoULoss(activation=activation, ignore_label=ignore_label)  # type: ignore[arg-type]
    assert torch.autograd.gradcheck(lambda x: loss(x, target), net_output)


def test_gradcheck_of_regions() -> None:
    target = blobs(2, 4, 5, 4, 2).bool()
    net_output = torch.randn(2, 3, 5, 4, dtype=torch.float64, requires_grad=True)
    loss = BoundaryDoULoss(regions=True, ignore_label=IGNORE)
    assert torch.autograd.gradcheck(lambda x: loss(x, target), net_output)


@pytest.mark.parametrize("golden", golden_params("BoundaryDoULoss"))
@pytest.mark.parametrize("which", ["ours", "naive"])
def test_golden_values_and_gradients(golden: GoldenFile, which: str) -> None:
    mode, tensors = golden.meta["mode"], golden.tensors
    inputs = tensors["input.probs" if mode == "none" else "input.logits"]
    loss = BoundaryDoULoss(activation=mode) if which == "ours" else naive(activation=mode)
    actual = value_and_grad(loss, inputs, tensors["input.labels"].unsqueeze(1))
    assert_all_close(
        {"loss": actual["loss"].reshape(1), "grad": actual["grad"]},
        {"loss": tensors["output.loss"], "grad": tensors["grad.input"]},
        1e-5,
        exceptions={"grad": 1e-4},
    )


@pytest.mark.parametrize("golden", golden_params("BoundaryDoULoss"))
def test_golden_counts(golden: GoldenFile) -> None:
    labels = golden.tensors["input.labels"].unsqueeze(1)
    size, boundary = _read_labels(labels, golden.meta["classes"], None).counts
    assert torch.equal(size, golden.tensors["aux.size"])
    assert torch.equal(boundary, golden.tensors["aux.boundary_count"])


def test_boundary_pixels_counted_by_hand() -> None:
    # A 3x3 square in a 5x7 image: all of it but the centre touches the background. Of the 26 background pixels 20 lie
    # at the edge of the image, and of the other six, to the right of the square, three touch it.
    square = torch.zeros(1, 1, 5, 7, dtype=torch.int64)
    square[:, :, 1:4, 1:4] = 1
    touching_edge, touching_square = 20, 3
    assert _read_labels(square, 2, None).counts.tolist() == [[26, 9], [touching_edge + touching_square, 8]]
    # With an ignored ring around it the centre touches nothing that counts, and neither does the background.
    ring = square.clone()
    ring[:, :, 1:4, 1:4] = IGNORE
    ring[:, :, 2, 2] = 1
    assert _read_labels(ring, 2, IGNORE).counts.tolist() == [[26, 1], [touching_edge, 0]]
    regions = torch.cat([ring == 1, ring == IGNORE], 1)
    assert _read_regions(regions, 1, IGNORE).counts.tolist() == [[1], [0]]


def test_boundary_twin_counts_the_same_by_hand() -> None:
    square = torch.zeros(1, 5, 7, dtype=torch.bool)
    square[:, 1:4, 1:4] = True
    assert boundary_pixels_naive(square, torch.ones_like(square)).sum() == 8
    assert boundary_pixels_naive(~square, torch.ones_like(square)).sum() == 23


# the five blocks of the ignore-label-and-regions report


def test_ignored_pixels_change_neither_loss_nor_gradient() -> None:
    loss = BoundaryDoULoss(ignore_label=3)
    target = torch.randint(0, 3, (2, 1, 32, 40)).float()
    target[:, :, ::2] = 3
    x = torch.randn(2, 3, 32, 40)
    expected = value_and_grad(loss, x, target)
    size = expected["grad"].abs().sum(1, keepdim=True)
    assert size[target == 3].max() == 0
    assert size[target != 3].max() > 0
    x[:, :, ::2] += 50 * torch.randn(2, 3, 16, 40)
    assert torch.equal(value_and_grad(loss, x, target)["loss"], expected["loss"])


@pytest.mark.parametrize("regions", [False, True])
def test_a_batch_that_is_ignored_everywhere_gives_one_and_no_gradient(regions: bool) -> None:
    target = torch.full((1, 4 if regions else 1, 16, 16), 1.0 if regions else 3.0)
    actual = value_and_grad(BoundaryDoULoss(ignore_label=3, regions=regions), torch.randn(1, 3, 16, 16), target)
    assert actual["loss"] == 1
    assert torch.equal(actual["grad"], torch.zeros(1, 3, 16, 16))


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_empty_and_full_regions_are_finite(value: float) -> None:
    target = torch.full((2, 3, 32, 32), value)
    actual = value_and_grad(BoundaryDoULoss(regions=True), 8 * torch.randn(2, 3, 32, 32), target)
    assert torch.isfinite(actual["loss"])
    assert torch.isfinite(actual["grad"]).all()
    assert bool(actual["grad"].any()) == bool(value)  # an absent region sends no gradient


def test_regions_with_ignored_pixels() -> None:
    target = torch.randint(0, 2, (2, 3, 24, 24)).float()
    grad = value_and_grad(BoundaryDoULoss(regions=True, ignore_label=3), torch.randn(2, 2, 24, 24), target)["grad"]
    ignored = target[:, -1:].bool().expand(-1, 2, -1, -1)
    assert grad[ignored].abs().max() == 0
    assert (grad[~ignored] != 0).all()


@pytest.mark.parametrize("value", [0, 1, 2])
def test_an_image_of_one_class_is_finite(value: int) -> None:
    target = torch.full((1, 1, 16, 16), float(value))
    actual = value_and_grad(BoundaryDoULoss(), torch.randn(1, 3, 16, 16), target)
    assert torch.isfinite(actual["loss"])
    assert torch.isfinite(actual["grad"]).all()


# further properties


def test_an_absent_class_adds_exactly_one_and_no_gradient() -> None:
    # the output is p itself, so that the gradient of each class stands alone
    p, target = torch.rand(2, 3, 9, 8), blobs(2, 1, 9, 8, 2)
    actual = value_and_grad(BoundaryDoULoss(activation="none"), p, target)
    present = value_and_grad(BoundaryDoULoss(activation="none"), p[:, :2], target)
    torch.testing.assert_close(actual["loss"], (2 * present["loss"] + 1) / 3)
    assert torch.equal(actual["grad"][:, 2], torch.zeros(2, 9, 8))
    only_absent = value_and_grad(BoundaryDoULoss(regions=True), torch.randn(1, 1, 9, 8), torch.zeros(1, 1, 9, 8))
    assert only_absent["loss"] == 1


@pytest.mark.parametrize("activation", ["softmax", "sigmoid", "none"])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
def test_nan_and_inf_in_ignored_pixels_never_leak(activation: str, poison: float) -> None:
    target = blobs(2, 1, 9, 8, 3)
    target[:, :, 2:5, 1:7] = IGNORE
    loss = BoundaryDoULoss(activation=activation, ignore_label=IGNORE)  # type: ignore[arg-type]
    clean = torch.rand(2, 3, 9, 8)
    poisoned = clean.masked_fill(target == IGNORE, poison)
    expected, actual = value_and_grad(loss, clean, target), value_and_grad(loss, poisoned, target)
    assert torch.equal(actual["loss"], expected["loss"])
    assert torch.equal(actual["grad"], expected["grad"])


def test_nan_in_a_pixel_that_counts_shows() -> None:
    net_output = torch.randn(1, 3, 4, 4)
    net_output[0, 1, 2, 2] = torch.nan
    assert BoundaryDoULoss()(net_output, torch.zeros(1, 1, 4, 4)).isnan()


def test_statistics_are_those_of_the_whole_batch() -> None:
    net_output, target = torch.randn(2, 3, 12, 12), blobs(2, 1, 12, 12, 3)
    stacked = BoundaryDoULoss()(net_output, target)
    alone = torch.stack([BoundaryDoULoss()(net_output[i : i + 1], target[i : i + 1]) for i in range(2)]).mean()
    assert abs(stacked - alone) > 1e-4
    assert torch.equal(BoundaryDoULoss()(net_output.flip(0), target.flip(0)), stacked)


def test_a_perfect_prediction_costs_nothing() -> None:
    target = blobs(2, 1, 12, 12, 3)
    logits = 60 * torch.stack([target[:, 0] == k for k in range(3)], 1).float()
    assert BoundaryDoULoss()(logits, target).abs() < 1e-6
