"""Naive twin of `nnunet_gdla.layers.gdla`: the mixer of the specification, switch by switch, from plain tensors.

Shape legend (this file): B batch, N tokens (row-major over the grid), C channels, h heads, d = C / h, P projections
(4 with a gate: q, k, v, g; 3 without), T kernel size.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tests.reference.differential import differential_linear_attention_naive
from tests.reference.feed_forward import depthwise_naive, linear_naive, silu_naive
from tests.reference.linear import linear_attention_naive

__all__ = ["GATES", "LocalWeights", "MixerWeights", "gdla_mixer_naive", "merge_heads", "rms_naive", "split_heads"]

GATES: dict[str, Callable[[Tensor], Tensor]] = {"silu": silu_naive, "sigmoid": torch.sigmoid}


@dataclass(frozen=True)
class LocalWeights:
    """The tensors of the local branch.

    `pointwise` is one (PC, PC) matrix for joint mixing, or P matrices (C, C), one per projection, for separate mixing.
    """

    depthwise: Float[Tensor, "PC 1 T T"]
    depthwise_bias: Float[Tensor, " PC"]
    pointwise: tuple[Float[Tensor, "O I"], ...]
    pointwise_bias: Float[Tensor, " PC"]
    lam: Float[Tensor, "h d"] | None


@dataclass(frozen=True)
class MixerWeights:
    """The tensors of the mixer; `lam` is None where the difference is off, `local` where the local branch is off."""

    projection: Float[Tensor, "PC C"]
    projection_bias: Float[Tensor, " PC"] | None
    lam: Float[Tensor, "h d"] | None
    norm: Float[Tensor, " d"]
    output: Float[Tensor, "C S"]
    output_bias: Float[Tensor, " C"]
    local: LocalWeights | None


def split_heads(x: Float[Tensor, "B N C"], num_heads: int) -> Float[Tensor, "B h N d"]:
    """Cut the channels into heads, first head first.

    Args:
        x: Tokens.
        num_heads: How many heads.

    Returns:
        The same values with a head axis.
    """
    return torch.stack(x.chunk(num_heads, -1), 1)


def merge_heads(x: Float[Tensor, "B h N d"]) -> Float[Tensor, "B N C"]:
    """Lay the heads side by side, first head first.

    Args:
        x: Values per head.

    Returns:
        Tokens.
    """
    return torch.cat(x.unbind(1), -1)


def rms_naive(x: Float[Tensor, "*shape d"], eps: float = 1e-5) -> Float[Tensor, "*shape d"]:
    """Divide by the root of the mean square over the last axis.

    Args:
        x: Any real tensor.
        eps: Added to the mean square.

    Returns:
        The scaled tensor.
    """
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)


def _branch(
    slab: Float[Tensor, "B N PC"], num_heads: int, lam: Float[Tensor, "h d"] | None, norm: Tensor, gate: str | None
) -> Float[Tensor, "B N C"]:
    parts = slab.chunk(3 if gate is None else 4, -1)
    q, k, v = (split_heads(part, num_heads) for part in parts[:3])
    y = linear_attention_naive(q, k, v) if lam is None else differential_linear_attention_naive(q, k, v, lam)
    z = rms_naive(y) * norm
    if gate is not None:
        z = z * GATES[gate](split_heads(parts[3], num_heads))
    return merge_heads(z)


def _local_slab(slab: Float[Tensor, "B N PC"], grid: tuple[int, int], weights: LocalWeights) -> Float[Tensor, "B N PC"]:
    filtered = depthwise_naive(slab, grid, weights.depthwise, weights.depthwise_bias)
    pieces = filtered.chunk(len(weights.pointwise), -1)
    mixed = [linear_naive(piece, matrix) for piece, matrix in zip(pieces, weights.pointwise, strict=True)]
    return torch.cat(mixed, -1) + weights.pointwise_bias


def gdla_mixer_naive(
    x: Float[Tensor, "B N C"], grid: tuple[int, int], weights: MixerWeights, *, num_heads: int, gate: str | None
) -> Float[Tensor, "B N C"]:
    """Mix the tokens globally and on the grid, as in GDLA Eq. 13-27 with the released code's joint projection.

    Args:
        x: Tokens, row-major over the grid.
        grid: Height and width.
        weights: All tensors; what is None in there is switched off.
        num_heads: How many heads.
        gate: "silu", "sigmoid" or None.

    Returns:
        The new tokens.
    """
    slab = linear_naive(x, weights.projection, weights.projection_bias)
    branches = [_branch(slab, num_heads, weights.lam, weights.norm, gate)]
    if weights.local is not None:
        local_slab = _local_slab(slab, grid, weights.local)
        branches.append(_branch(local_slab, num_heads, weights.local.lam, weights.norm, gate))
    return linear_naive(torch.cat(branches, -1), weights.output, weights.output_bias)
