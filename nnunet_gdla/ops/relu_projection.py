"""Two pointwise maps with a ReLU between them, over every pixel of an image, without the map in the middle; moments.

Shape legend (this file): B batch, I input rows a pixel, M channels in the middle, K outputs, N pixels.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nnunet_gdla.ops._checks import without_autocast
from nnunet_gdla.ops._fusion import gradients_with_graph

__all__ = ["relu_projection", "second_moments"]

# Pixels at a time: the middle of 64 channels is then 1 MB, which stays in a core's cache.
CHUNK = 4096


def relu_projection(
    pixels: Float[Tensor, "B I N"],
    inner: Float[Tensor, "M I"],
    inner_bias: Float[Tensor, " M"],
    outer: Float[Tensor, "K M"],
    outer_bias: Float[Tensor, " K"],
) -> Float[Tensor, "B K N"]:
    r"""Compute $W_2\,\mathrm{ReLU}(W_1 p + b_1) + b_2$ for every pixel p.

    Returns:
        (B, K, N), in the dtype of `pixels`, which all tensors share.

    Cost: O(B N M (I + K)) time; keeps `pixels` alone for backward, which computes the middle again.
    Reference: `relu_projection_naive` in tests/reference.
    """
    return _ReluProjection.apply(pixels, inner, inner_bias, outer, outer_bias)


class _ReluProjection(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        pixels: Tensor,
        inner: Tensor,
        inner_bias: Tensor,
        outer: Tensor,
        outer_bias: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(pixels, inner, inner_bias, outer)
        out_BKN = pixels.new_empty(len(pixels), len(outer), pixels.shape[-1])
        for image_IN, image_KN in zip(pixels, out_BKN, strict=True):
            for chunk_IN, chunk_KN in zip(image_IN.split(CHUNK, -1), image_KN.split(CHUNK, -1), strict=True):
                middle_MN = torch.addmm(inner_bias.unsqueeze(1), inner, chunk_IN).relu_()
                chunk_KN.copy_(torch.addmm(outer_bias.unsqueeze(1), outer, middle_MN))
        return out_BKN

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        pixels, inner, inner_bias, outer = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *gradients_with_graph(_plain, (pixels, inner, inner_bias, outer), grad), grad.sum((0, 2))
        with without_autocast(grad):
            return _backward(pixels, inner, inner_bias, outer, grad, wants_pixels=ctx.needs_input_grad[0])


def _plain(pixels: Tensor, inner: Tensor, inner_bias: Tensor, outer: Tensor) -> Tensor:
    """All but the last bias."""
    return outer @ (inner @ pixels + inner_bias.unsqueeze(1)).relu()


def _backward(
    pixels: Tensor, inner: Tensor, inner_bias: Tensor, outer: Tensor, grad: Tensor, *, wants_pixels: bool
) -> tuple[Tensor | None, ...]:
    """Gradients of the five inputs."""
    grad_pixels = torch.empty_like(pixels) if wants_pixels else None
    grad_inner, grad_inner_bias = torch.zeros_like(inner), torch.zeros_like(inner_bias)
    grad_outer = torch.zeros_like(outer)
    for number, (image_IN, grad_KN) in enumerate(zip(pixels, grad, strict=True)):
        for start in range(0, image_IN.shape[-1], CHUNK):
            span = slice(start, start + CHUNK)
            chunk_IN, chunk_KN = image_IN[:, span], grad_KN[:, span]
            middle_MN = torch.addmm(inner_bias.unsqueeze(1), inner, chunk_IN).relu_()
            grad_outer.addmm_(chunk_KN, middle_MN.mT)
            grad_MN = torch.ops.aten.threshold_backward(outer.mT @ chunk_KN, middle_MN, 0)
            grad_inner.addmm_(grad_MN, chunk_IN.mT)
            grad_inner_bias.add_(grad_MN.sum(1))
            if grad_pixels is not None:
                grad_pixels[number, :, span] = inner.mT @ grad_MN
    return grad_pixels, grad_inner, grad_inner_bias, grad_outer, grad.sum((0, 2))


def second_moments(pixels: Float[Tensor, "B I N"]) -> Float[Tensor, "I I"]:
    r"""Average $p p^\top$ over all pixels p of all images.

    Returns:
        (I, I) in the dtype of `pixels`; with centred pixels their covariance.

    Numerics: summed in float64. In float32 a sum over 10^5 pixels is off by 1e-5 of itself.
    """
    return _SecondMoments.apply(pixels)


class _SecondMoments(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pixels: Tensor) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(pixels)
        moments = pixels.new_zeros(pixels.shape[1], pixels.shape[1], dtype=torch.float64)
        for image_IN in pixels.double():
            moments.addmm_(image_IN, image_IN.mT)
        return (moments / (len(pixels) * pixels.shape[-1])).to(pixels.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ANN401
        (pixels,) = ctx.saved_tensors
        with without_autocast(grad):
            return torch.matmul((grad + grad.mT) / (len(pixels) * pixels.shape[-1]), pixels)
