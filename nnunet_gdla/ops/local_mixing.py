"""A depthwise and a 1x1 convolution over the tokens of a large image, written over what they read.

Shape legend (this file): B batch, N = H W tokens in raster order, C channels, k edge of the depthwise convolution.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from nnunet_gdla.ops._fusion import gradients_follow, may_fuse
from nnunet_gdla.ops._products import linear
from nnunet_gdla.ops._strips import strips, wants_strips

__all__ = ["LocalWeights", "mix_in_place", "mix_in_place_fits"]


class LocalWeights(NamedTuple):
    """Of both convolutions."""

    depthwise: Float[Tensor, "C 1 k k"]
    depthwise_bias: Float[Tensor, " C"]
    pointwise: Float[Tensor, "C C"]
    pointwise_bias: Float[Tensor, " C"]


def mix_in_place_fits(x: Float[Tensor, "B N C"], weights: LocalWeights) -> bool:
    """Whether `mix_in_place` can be used and is the faster way: large, on the CPU, no gradients to follow."""
    if gradients_follow(x, *weights) or not may_fuse(x, *weights):
        return False
    return x.is_contiguous() and wants_strips(x.shape[0] * x.shape[1], x.shape[2], x.element_size())


def mix_in_place(x: Float[Tensor, "B N C"], grid: tuple[int, int], weights: LocalWeights) -> Float[Tensor, "B N C"]:
    """Convolve some rows of an image at a time, and write the result over the tokens, which are returned.

    Args:
        x: Contiguous tokens; nobody may read them any more.
        grid: Height and width of the image.
        weights: Kernels with an odd edge, zero padding.
    """
    kernel = weights.depthwise
    halo = kernel.shape[-1] // 2 * grid[1]  # tokens
    for image_NC in x:
        above = image_NC[:0]
        for strip in strips(grid, kernel.shape[-1], grid[1] * x.shape[2] * x.element_size()):
            target = image_NC[strip.tokens]
            rows_nC = torch.cat([above, image_NC[strip.tokens.start : strip.around.stop]])
            above = target[-halo:].clone() if halo else above
            rows = rows_nC.unsqueeze(0).unflatten(1, strip.grid).permute(0, 3, 1, 2)  # in the strides of channels-last
            mixed = F.conv2d(rows, kernel, weights.depthwise_bias, padding=kernel.shape[-1] // 2, groups=len(kernel))
            found = linear(mixed.flatten(2).mT[0, strip.within], weights.pointwise, weights.pointwise_bias, target)
            if found is not target:
                target.copy_(found)
    return x
