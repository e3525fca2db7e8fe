"""Naive twins of `nnunet_gdla.layers.feed_forward` and the small pieces they share with the mixer.

Shape legend (this file): B batch, N tokens (row-major over H x W), C channels, O output channels, T kernel size.
"""

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["depthwise_naive", "linear_naive", "mix_ffn_naive", "mlp_naive", "silu_naive", "swiglu_naive"]


def silu_naive(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return x times its logistic sigmoid.

    Args:
        x: Any real tensor.

    Returns:
        SiLU, element by element.
    """
    return x * torch.sigmoid(x)


def linear_naive(
    x: Float[Tensor, "*shape C"], weight: Float[Tensor, "O C"], bias: Float[Tensor, " O"] | None = None
) -> Float[Tensor, "*shape O"]:
    """Return `x weight^T + bias`.

    Args:
        x: Tokens.
        weight: One row per output channel.
        bias: One value per output channel, or None.

    Returns:
        The projected tokens.
    """
    projected = torch.einsum("...c,oc->...o", x, weight)
    return projected if bias is None else projected + bias


def depthwise_naive(
    x: Float[Tensor, "B N C"],
    grid: tuple[int, int],
    weight: Float[Tensor, "C 1 T T"],
    bias: Float[Tensor, " C"],
) -> Float[Tensor, "B N C"]:
    """Sum each channel's neighbours with the channel's own kernel, zeros outside the grid.

    Written as one shifted copy of the token grid per kernel element, so that rows and columns cannot be confused.

    Args:
        x: Tokens, row-major over the grid.
        grid: Height and width.
        weight: One odd, square kernel per channel (cross-correlation, as torch convolves).
        bias: One value per channel.

    Returns:
        The filtered tokens, same order.
    """
    height, width = grid
    size = weight.shape[-1]
    reach = size // 2
    image = x.reshape(x.shape[0], height, width, x.shape[2])
    padded = torch.zeros(
        (x.shape[0], height + 2 * reach, width + 2 * reach, x.shape[2]), dtype=x.dtype, device=x.device
    )
    padded[:, reach : reach + height, reach : reach + width] = image
    total = torch.zeros_like(image)
    for dy in range(size):
        for dx in range(size):
            total = total + weight[:, 0, dy, dx] * padded[:, dy : dy + height, dx : dx + width]
    return (total + bias).reshape(x.shape)


def mlp_naive(
    x: Float[Tensor, "*shape C"],
    fc1: tuple[Float[Tensor, "F C"], Float[Tensor, " F"]],
    fc2: tuple[Float[Tensor, "C F"], Float[Tensor, " C"]],
) -> Float[Tensor, "*shape C"]:
    """Return `fc2(gelu(fc1 x))` with the exact GELU.

    Args:
        x: Tokens.
        fc1: Weight and bias of the expansion.
        fc2: Weight and bias of the projection.

    Returns:
        The new tokens.
    """
    hidden = linear_naive(x, *fc1)
    return linear_naive(hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5)), *fc2)


def swiglu_naive(
    x: Float[Tensor, "*shape C"],
    fc1: tuple[Float[Tensor, "F2 C"], Float[Tensor, " F2"]],
    fc2: tuple[Float[Tensor, "C F"], Float[Tensor, " C"]],
) -> Float[Tensor, "*shape C"]:
    """Return `fc2(a * silu(b))` with `[a, b] = fc1 x`.

    Args:
        x: Tokens.
        fc1: Weight and bias of the expansion, both halves.
        fc2: Weight and bias of the projection.

    Returns:
        The new tokens.
    """
    hidden = linear_naive(x, *fc1)
    half = hidden.shape[-1] // 2
    return linear_naive(hidden[..., :half] * silu_naive(hidden[..., half:]), *fc2)


def mix_ffn_naive(
    x: Float[Tensor, "B N C"],
    grid: tuple[int, int],
    expand: tuple[Float[Tensor, "F2 C"], Float[Tensor, " F2"]],
    depthwise: tuple[Float[Tensor, "F2 1 T T"], Float[Tensor, " F2"]],
    project: Float[Tensor, "C F"],
) -> Float[Tensor, "B N C"]:
    """Return `project (a * silu(b))` with `[a, b] = depthwise(silu(expand x))` (GDLA, Eq. 28).

    Args:
        x: Tokens, row-major over the grid.
        grid: Height and width.
        expand: Weight and bias of the first projection.
        depthwise: Kernels and bias of the depthwise convolution.
        project: Weight of the last projection, which has no bias.

    Returns:
        The new tokens.
    """
    mixed = depthwise_naive(silu_naive(linear_naive(x, *expand)), grid, *depthwise)
    half = mixed.shape[-1] // 2
    return linear_naive(mixed[..., :half] * silu_naive(mixed[..., half:]), project)
