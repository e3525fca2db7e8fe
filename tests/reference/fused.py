"""Naive twins of the fused forms that have no other: PVTv2's feed-forward part, one head's core, two pointwise maps."""

import torch
from jaxtyping import Float
from torch import Tensor

from tests.reference.differential import differential_linear_attention_naive
from tests.reference.feed_forward import depthwise_naive, linear_naive, silu_naive
from tests.reference.gdla import merge_heads, rms_naive, split_heads
from tests.reference.linear import linear_attention_naive

__all__ = ["gated_differential_naive", "gelu_feed_forward_naive", "relu_projection_naive"]


def gelu_feed_forward_naive(
    x: Float[Tensor, "B N C"],
    grid: tuple[int, int],
    expand: tuple[Float[Tensor, "F C"], Float[Tensor, " F"]],
    depthwise: tuple[Float[Tensor, "F 1 T T"], Float[Tensor, " F"]],
    project: tuple[Float[Tensor, "C F"], Float[Tensor, " C"]],
) -> Float[Tensor, "B N C"]:
    """Return `project gelu(depthwise(expand x))`, PVTv2's feed-forward part.

    Args:
        x: Tokens, row-major over the grid.
        grid: Height and width.
        expand: Weight and bias of the first projection.
        depthwise: Kernels and bias of the depthwise convolution.
        project: Weight and bias of the last projection.

    Returns:
        The new tokens.
    """
    mixed = depthwise_naive(linear_naive(x, *expand), grid, *depthwise)
    return linear_naive(mixed * 0.5 * (1 + torch.erf(mixed / 2**0.5)), *project)


def gated_differential_naive(
    projected: Float[Tensor, "B N PC"],
    lam: Float[Tensor, "H D"] | None,
    norm_weight: Float[Tensor, " D"],
    *,
    num_heads: int,
    gate: str | None,
) -> Float[Tensor, "B N C"]:
    """Return RMSNorm(A1 - lambda A2) times the gate, per head, heads side by side (GDLA, Eq. 13-20).

    Args:
        projected: q, k, v and, with a gate, g along the channels.
        lam: Weight of the second branch; None: one branch of full width.
        norm_weight: Weight of the norm.
        num_heads: How many heads.
        gate: "silu", "sigmoid" or None.

    Returns:
        The mixed tokens.
    """
    q, k, v, *g = (split_heads(part, num_heads) for part in projected.chunk(3 if gate is None else 4, -1))
    y = linear_attention_naive(q, k, v) if lam is None else differential_linear_attention_naive(q, k, v, lam)
    y = rms_naive(y) * norm_weight
    if gate == "silu":
        y = y * silu_naive(g[0])
    elif gate == "sigmoid":
        y = y / (1 + torch.exp(-g[0]))
    return merge_heads(y)


def relu_projection_naive(
    pixels: Float[Tensor, "B I N"],
    inner: Float[Tensor, "M I"],
    inner_bias: Float[Tensor, " M"],
    outer: Float[Tensor, "K M"],
    outer_bias: Float[Tensor, " K"],
) -> Float[Tensor, "B K N"]:
    """Return `outer max(inner p + inner_bias, 0) + outer_bias` for every pixel p.

    Args:
        pixels: Columns p.
        inner: First matrix.
        inner_bias: Added before the maximum.
        outer: Second matrix.
        outer_bias: Added at the end.

    Returns:
        The mapped pixels.
    """
    middle = torch.einsum("mi,bin->bmn", inner, pixels) + inner_bias[:, None]
    return torch.einsum("km,bmn->bkn", outer, torch.where(middle > 0, middle, 0)) + outer_bias[:, None]
