"""Naive twins of `nnunet_gdla.layers.attention`: rotary positions and the three comparator attentions.

Shape legend (this file): B batch, N tokens, C channels, h heads, d = C / h, D width of a rotated head (even).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tests.reference.differential import differential_attention_naive, softmax_attention_naive
from tests.reference.feed_forward import linear_naive
from tests.reference.gdla import merge_heads, rms_naive, split_heads
from tests.reference.linear import elu_plus_one_naive, linear_attention_naive

__all__ = [
    "AttentionWeights",
    "DifferentialWeights",
    "lambda_init_naive",
    "mhda_naive",
    "mhla_naive",
    "mhsa_naive",
    "rope_naive",
]


@dataclass(frozen=True)
class AttentionWeights:
    """The tensors of an attention; `projection` holds q, k and v, each C wide, in this order."""

    projection: Float[Tensor, "C3 C"]
    projection_bias: Float[Tensor, " C3"] | None
    output: Float[Tensor, "C C"]
    output_bias: Float[Tensor, " C"] | None


@dataclass(frozen=True)
class DifferentialWeights:
    """What differential softmax attention adds: four vectors that make lambda, and the norm's weight."""

    lambda_q1: Float[Tensor, " d"]
    lambda_k1: Float[Tensor, " d"]
    lambda_q2: Float[Tensor, " d"]
    lambda_k2: Float[Tensor, " d"]
    norm: Float[Tensor, " d"]


def rope_naive(x: Float[Tensor, "B h N D"], base: float = 10000.0) -> Float[Tensor, "B h N D"]:
    r"""Turn each channel pair $(2i, 2i+1)$ of token n by the angle $n \cdot base^{-2i/D}$.

    Args:
        x: Queries or keys; the token's raster index is its position.
        base: Base of the wavelengths.

    Returns:
        The rotated tensor.
    """
    tokens, width = x.shape[-2:]
    columns = []
    for i in range(width // 2):
        angle = torch.arange(tokens, dtype=torch.float64, device=x.device) * base ** (-2 * i / width)
        cos, sin = torch.cos(angle).to(x.dtype), torch.sin(angle).to(x.dtype)
        even, odd = x[..., 2 * i], x[..., 2 * i + 1]
        columns += [even * cos - odd * sin, even * sin + odd * cos]
    return torch.stack(columns, -1)


def lambda_init_naive(depth: int) -> float:
    r"""Return $0.8 - 0.6 e^{-0.3\,depth}$.

    Args:
        depth: Position of the layer, 3, 2, 1 from the coarse to the fine decoder stage.

    Returns:
        The constant part of lambda.
    """
    return float(0.8 - 0.6 * torch.exp(torch.tensor(-0.3 * depth, dtype=torch.float64)))


def _project(x: Float[Tensor, "B N C"], weights: AttentionWeights, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = linear_naive(x, weights.projection, weights.projection_bias).chunk(3, -1)
    return split_heads(q, num_heads), split_heads(k, num_heads), split_heads(v, num_heads)


def mhsa_naive(
    x: Float[Tensor, "B N C"], weights: AttentionWeights, *, num_heads: int, rope: bool
) -> Float[Tensor, "B N C"]:
    """Softmax attention, scale d^-0.5.

    Args:
        x: Tokens.
        weights: Projections.
        num_heads: How many heads.
        rope: Whether queries and keys are rotated.

    Returns:
        The new tokens.
    """
    q, k, v = _project(x, weights, num_heads)
    if rope:
        q, k = rope_naive(q), rope_naive(k)
    y = softmax_attention_naive(q, k, v, scale=q.shape[-1] ** -0.5)
    return linear_naive(merge_heads(y), weights.output, weights.output_bias)


def mhla_naive(
    x: Float[Tensor, "B N C"], weights: AttentionWeights, *, num_heads: int, rope: bool
) -> Float[Tensor, "B N C"]:
    """Linear attention; the rotation, where on, comes after the feature map and enters the normaliser.

    Args:
        x: Tokens.
        weights: Projections.
        num_heads: How many heads.
        rope: Whether mapped queries and keys are rotated.

    Returns:
        The new tokens.
    """
    q, k, v = _project(x, weights, num_heads)
    q, k = elu_plus_one_naive(q), elu_plus_one_naive(k)
    if rope:
        q, k = rope_naive(q), rope_naive(k)
    y = linear_attention_naive(q, k, v, feature_map=None)
    return linear_naive(merge_heads(y), weights.output, weights.output_bias)


def mhda_naive(
    x: Float[Tensor, "B N C"],
    weights: AttentionWeights,
    differential: DifferentialWeights,
    *,
    num_heads: int,
    depth: int,
    rope: bool,
) -> Float[Tensor, "B N C"]:
    """Differential softmax attention with its norm and (1 - lambda_init); q and k are twice as many half-width heads.

    Args:
        x: Tokens.
        weights: Projections.
        differential: Lambda vectors and norm weight.
        num_heads: How many value heads.
        depth: Position of the layer, sets lambda_init.
        rope: Whether the half-width queries and keys are rotated.

    Returns:
        The new tokens.
    """
    init = lambda_init_naive(depth)
    lam = (
        torch.exp((differential.lambda_q1 * differential.lambda_k1).sum())
        - torch.exp((differential.lambda_q2 * differential.lambda_k2).sum())
        + init
    )
    q, k, v = linear_naive(x, weights.projection, weights.projection_bias).chunk(3, -1)
    q_pairs, k_pairs = split_heads(q, 2 * num_heads), split_heads(k, 2 * num_heads)
    if rope:
        q_pairs, k_pairs = rope_naive(q_pairs), rope_naive(k_pairs)
    q_full = torch.cat([q_pairs[:, 0::2], q_pairs[:, 1::2]], -1)
    k_full = torch.cat([k_pairs[:, 0::2], k_pairs[:, 1::2]], -1)
    y = differential_attention_naive(q_full, k_full, split_heads(v, num_heads), lam)
    y = (1 - init) * rms_naive(y) * differential.norm
    return linear_naive(merge_heads(y), weights.output, weights.output_bias)
