"""Large images in strips of rows equal the naive twins, whatever the grid, the kernel and the library of products."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nnunet_gdla.layers import GatedDifferentialLinearAttention
from nnunet_gdla.ops import _products, _strips, conv_feed_forward
from nnunet_gdla.ops.local_mixing import LocalWeights, mix_in_place, mix_in_place_fits
from tests.ops.test_fused_forms import GRIDS, draw, feed_forward, feed_forward_shapes, naive_feed_forward


@pytest.fixture(autouse=True)
def few_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many rows in a strip as the convolution looks beyond it; one row for a 1x1."""
    monkeypatch.setattr(_strips, "LARGE_BYTES", 0)
    monkeypatch.setattr(_strips, "LEAST_ROWS", 1)


@pytest.mark.parametrize("kernel", [1, 3, 5, 7])
@pytest.mark.parametrize("grid", [*GRIDS, (9, 2), (40, 3)], ids=str)
def test_strips_are_the_image_once_and_hold_what_a_convolution_sees(kernel: int, grid: tuple[int, int]) -> None:
    height, width = grid
    image, found = torch.arange(height * width).view(grid), []
    padded = F.pad(image, (0, 0, kernel // 2, kernel // 2), value=-1)
    for strip in _strips.strips(grid, kernel, row_bytes=4):
        around = image.flatten()[strip.around].view(strip.grid)
        inner = around.flatten()[strip.within].view(-1, width)
        found.append(inner)
        assert torch.equal(inner, image.flatten()[strip.tokens].view(-1, width))
        first = int(inner[0, 0]) // width
        seen = padded[first : first + len(inner) + kernel // 2 * 2]
        assert torch.equal(seen[seen >= 0], around.flatten())
    assert torch.equal(torch.cat(found), image)


@pytest.mark.parametrize("grid", [*GRIDS, (9, 2)], ids=str)
@pytest.mark.parametrize("middle", ["gelu", "gated_silu"])
@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("groups", ["one", "many"])
def test_feed_forward_equals_its_naive_twin(
    middle: str, grid: tuple[int, int], kernel: int, groups: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if groups == "many":
        monkeypatch.setattr(conv_feed_forward, "GROUP_BYTES", 1)
        monkeypatch.setattr(conv_feed_forward, "LEAST_CHANNELS", 3)
    monkeypatch.setattr(conv_feed_forward, "_ConvFeedForward", None)  # the other way
    inputs = draw(*feed_forward_shapes(middle, grid, kernel))
    ours, naive = (partial(function, middle, grid) for function in (feed_forward, naive_feed_forward))
    torch.testing.assert_close(ours(*inputs), naive(*inputs), rtol=1e-11, atol=1e-11)


def test_with_gradients_no_strips_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_feed_forward, "_in_strips", None)
    x, *weights = draw(*feed_forward_shapes("gelu", (2, 3)))
    feed_forward("gelu", (2, 3), x.requires_grad_(), *weights).sum().backward()
    assert x.grad is not None


def local_weights(channels: int, kernel: int, dtype: torch.dtype) -> LocalWeights:
    shapes = [(channels, 1, kernel, kernel), (channels,), (channels, channels), (channels,)]
    return LocalWeights(*draw(*shapes, dtype=dtype, seed=1))


@pytest.mark.parametrize("library", ["0", "1"])
@pytest.mark.parametrize("grid", [*GRIDS, (9, 2)], ids=str)
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_mixing_in_place_equals_the_two_convolutions(
    grid: tuple[int, int], kernel: int, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(_products.PRODUCTS_VARIABLE, library)
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        weights, (x,) = local_weights(6, kernel, dtype), draw((2, grid[0] * grid[1], 6), dtype=dtype)
        image = x.mT.unflatten(2, grid)
        mixed = F.conv2d(image, weights.depthwise, weights.depthwise_bias, padding=kernel // 2, groups=6)
        expected = F.conv2d(mixed, weights.pointwise[:, :, None, None], weights.pointwise_bias).flatten(2).mT
        assert mix_in_place_fits(x, weights)
        found = mix_in_place(x, grid, weights)
        assert found is x
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_only_large_contiguous_tokens_without_gradients_are_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, (x,) = local_weights(6, 3, torch.float32), draw((2, 4, 6), dtype=torch.float32)
    assert mix_in_place_fits(x, weights)
    assert not mix_in_place_fits(x.mT.contiguous().mT, weights)
    assert not mix_in_place_fits(x.bfloat16(), weights)
    assert not mix_in_place_fits(x.clone().requires_grad_(), weights)
    assert not mix_in_place_fits(x, weights._replace(pointwise=weights.pointwise.clone().requires_grad_()))
    monkeypatch.setattr(_strips, "LARGE_BYTES", 2**30)
    assert not mix_in_place_fits(x, weights)


@pytest.mark.parametrize("local_mixing", ["joint", "separate", None])
@pytest.mark.parametrize("hooked", [None, "qkvg", "local_depthwise", "local_pointwise"])
def test_the_mixer_gives_the_same_and_what_hooks_saw_stays(local_mixing: str | None, hooked: str | None) -> None:
    mixer = GatedDifferentialLinearAttention(8, 2, local_mixing=local_mixing)  # type: ignore[arg-type]
    x, seen = torch.randn(2, 12, 8), list[tuple[Tensor, Tensor]]()

    def hook(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.extend((tensor, tensor.clone()) for tensor in (inputs[0], output))

    expected = mixer(x, (3, 4))
    layer = None if hooked is None else getattr(mixer, hooked)
    if layer is not None:
        layer.register_forward_hook(hook)
    with torch.no_grad():
        torch.testing.assert_close(mixer(x, (3, 4)), expected)
    assert bool(seen) == (layer is not None)
    assert all(torch.equal(tensor, before) for tensor, before in seen)
