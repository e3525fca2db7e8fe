"""GDLA on a bag is the mixer of the segmentation network; the lattice convolution is that of an image with holes."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from nnunet_gdla.layers import GatedDifferentialLinearAttention
from nnunet_gdla.mil.models.heads import split_heads
from nnunet_gdla.mil.models.lattice import lattice_convolution
from nnunet_gdla.mil.models.slide_gdla import GDLASlideAttention
from nnunet_gdla.mil.models.tokens import SlideContext
from nnunet_gdla.ops.neighbours import grid_neighbours
from tests.reference.compare import assert_all_close, gradients, relative_error


def _rectangle(height: int, width: int) -> Tensor:
    """Return coordinates of a full rectangle in raster order."""
    rows = torch.arange(height * width)
    return torch.stack([rows % width, rows // width], dim=-1)


def test_on_a_full_rectangle_it_is_a_depthwise_convolution() -> None:
    height, width, channels = 4, 7, 6
    graph = grid_neighbours(_rectangle(height, width), 1.0)
    inputs = [
        torch.randn(*shape, dtype=torch.float64) for shape in ((2, 28, channels), (channels, 1, 3, 3), (channels,))
    ]

    def image(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        grid = x.transpose(1, 2).unflatten(2, (height, width))
        return F.conv2d(grid, weight, bias, padding=1, groups=channels).flatten(2).transpose(1, 2)

    actual = gradients(lambda x, weight, bias: lattice_convolution(x, graph, weight, bias), inputs)
    assert_all_close(actual, gradients(image, inputs), 1e-12)


def test_a_hole_is_a_zero_and_every_slide_has_its_own_graph() -> None:
    cells = _rectangle(5, 5)
    keep = torch.stack([torch.randperm(25)[:13] for _ in range(2)])
    coords = cells[keep]
    graph = grid_neighbours(coords, 1.0)
    x, weight, bias = torch.randn(2, 13, 4), torch.randn(4, 1, 3, 3), torch.randn(4)
    image = torch.zeros(2, 25, 4).scatter(1, keep[..., None].expand(-1, -1, 4), x)
    moved = F.conv2d(image.transpose(1, 2).unflatten(2, (5, 5)), weight, bias, padding=1, groups=4)
    expected = moved.flatten(2).transpose(1, 2).gather(1, keep[..., None].expand(-1, -1, 4))
    torch.testing.assert_close(lattice_convolution(x, graph, weight, bias), expected)


def test_gradcheck_with_holes() -> None:
    graph = grid_neighbours(_rectangle(3, 4)[torch.randperm(12)[:7]], 1.0)
    inputs = [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 7, 2), (2, 1, 3, 3), (2,))]
    assert torch.autograd.gradcheck(lambda x, weight, bias: lattice_convolution(x, graph, weight, bias), inputs)


def test_the_global_branch_is_the_mixer_of_the_segmentation_network() -> None:
    ours = GDLASlideAttention(16, 2)
    theirs = GatedDifferentialLinearAttention(16, 2, local_mixing=None)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 13, 16)
    assert relative_error(ours(x, SlideContext(12)), theirs(x, (13, 1))) < 1e-6


def test_the_local_branch_is_the_mixer_of_the_segmentation_network() -> None:
    ours, grid = GDLASlideAttention(16, 2, local_mixing="lattice"), (4, 5)
    theirs = GatedDifferentialLinearAttention(16, 2, local_mixing="joint")
    theirs.load_state_dict(ours.state_dict())
    # Both see the same patches; the class token has no place in an image, so it is masked from the bag's sums.
    x = torch.randn(1, 21, 16)
    mask = torch.ones(1, 21, dtype=torch.bool)
    mask[:, 0] = False
    context = SlideContext(20, grid_neighbours(_rectangle(*grid), 1.0))
    assert relative_error(ours(x, context, key_mask=mask)[:, 1:], theirs(x[:, 1:], grid)) < 1e-5


def test_the_row_is_what_the_class_token_averages_with_where_lambda_is_one_number_a_head() -> None:
    layer = GDLASlideAttention(16, 2)
    layer.lambda_global.data.copy_(torch.tensor([[0.3], [-0.7]]).expand(2, 8))
    x, context = torch.randn(1, 13, 16), SlideContext(12)
    values = split_heads(layer.qkvg(x).chunk(4, -1)[2], 2)
    expected, _ = layer._mix(layer._project(x, 1), layer.lambda_global, None)
    actual = layer.attention_row(x, context).unsqueeze(2) @ values
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.compile  # the shape checks would speak first
def test_what_does_not_fit_is_refused() -> None:
    layer = GDLASlideAttention(16, 2, local_mixing="lattice", correction="srp")
    with pytest.raises(ValueError, match="needs the neighbour graph"):
        layer(torch.zeros(1, 5, 16), SlideContext(4))
    with pytest.raises(ValueError, match="class row alone"):
        layer(torch.zeros(1, 5, 16), SlideContext(4), class_only=True)
    wide = grid_neighbours(_rectangle(2, 2), 1.0, window=5)
    with pytest.raises(ValueError, match=r"\(4, 24\) must be \(\.\.\., 4, 8\)"):
        lattice_convolution(torch.zeros(1, 4, 6), wide, torch.zeros(6, 1, 3, 3), torch.zeros(6))
