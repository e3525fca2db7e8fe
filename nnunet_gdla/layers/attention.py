"""The three attentions that the paper compares GDLA with; tokens (B, N, C) in and out."""

import math

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nnunet_gdla.layers.norm import HeadRMSNorm
from nnunet_gdla.layers.position import rotate_by_position
from nnunet_gdla.ops import differential_attention, elu_plus_one, linear_attention
from nnunet_gdla.ops._checks import without_autocast

__all__ = ["DifferentialAttention", "LinearAttention", "SoftmaxAttention"]


def _split_qkv(qkv: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = rearrange(qkv, "b n (p h d) -> p b h n d", p=3, h=num_heads)
    return q, k, v


def _check_heads(dim: int, num_heads: int, *, divisor: int) -> None:
    if num_heads < 1 or dim % (num_heads * divisor):
        raise ValueError(f"dim {dim} must be a multiple of num_heads {num_heads} times {divisor}")


class SoftmaxAttention(nn.Module):
    r"""$\mathrm{softmax}(d^{-1/2} Q K^\top) V$ per head, then the output projection.

    Args:
        dim: Channels of the tokens.
        num_heads: Heads, a divisor of `dim`.
        qkv_bias: Bias of the first projection.
        rope: Turn queries and keys by their raster index (`rotate_by_position`).

    Raises:
        ValueError: If the heads do not divide `dim` (with `rope`: into even widths).

    Parameters: `qkv` (C -> 3C), `out_proj` (C -> C, bias).
    """

    def __init__(self, dim: int, num_heads: int, *, qkv_bias: bool = True, rope: bool = False) -> None:
        super().__init__()
        _check_heads(dim, num_heads, divisor=2 if rope else 1)
        self.num_heads, self.rope = num_heads, rope
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x: Float[Tensor, "B N C"]) -> Float[Tensor, "B N C"]:
        """Mix tokens given in raster order."""
        q, k, v = _split_qkv(self.qkv(x), self.num_heads)
        if self.rope:
            q, k = rotate_by_position(q), rotate_by_position(k)
        out = F.scaled_dot_product_attention(q, k, v)
        return self.out_proj(rearrange(out, "b h n d -> b n (h d)"))


class LinearAttention(nn.Module):
    r"""`linear_attention` per head, then the output projection.

    Args:
        dim: Channels of the tokens.
        num_heads: Heads, a divisor of `dim`.
        qkv_bias: Bias of the first projection.
        rope: Turn the mapped queries and keys by their raster index, as the released code would.

    Raises:
        ValueError: If the heads do not divide `dim` (with `rope`: into even widths).

    Parameters: `qkv` (C -> 3C), `out_proj` (C -> C, bias).
    """

    def __init__(self, dim: int, num_heads: int, *, qkv_bias: bool = True, rope: bool = False) -> None:
        super().__init__()
        _check_heads(dim, num_heads, divisor=2 if rope else 1)
        self.num_heads, self.rope = num_heads, rope
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x: Float[Tensor, "B N C"]) -> Float[Tensor, "B N C"]:
        """Mix tokens given in raster order."""
        q, k, v = _split_qkv(self.qkv(x), self.num_heads)
        if self.rope:
            acc = torch.promote_types(q.dtype, torch.float32)
            q, k = (rotate_by_position(elu_plus_one(part.to(acc))) for part in (q, k))
        out = linear_attention(q, k, v, feature_map=None if self.rope else "elu1")
        return self.out_proj(rearrange(out, "b h n d -> b n (h d)"))


class DifferentialAttention(nn.Module):
    r"""Softmax differential attention: `differential_attention`, RMSNorm per head, factor $1 - \lambda_0$.

    $$\lambda = e^{\lambda_{q1} \cdot \lambda_{k1}} - e^{\lambda_{q2} \cdot \lambda_{k2}} + \lambda_0,\qquad
      \lambda_0 = 0.8 - 0.6\, e^{-0.3\, \mathrm{depth}}.$$

    Args:
        dim: Channels of the tokens.
        num_heads: Heads; a head's width is cut in two halves for the two branches.
        depth: Depth in the decoder that sets $\lambda_0$ (released: 3, 2, 1 from coarse to fine).
        qkv_bias: Bias of the first projection.
        rope: Turn queries and keys of each branch by their raster index.

    Raises:
        ValueError: If `dim` is not a multiple of twice the heads (with `rope`: four times).

    Parameters: `qkv` (C -> 3C), `lambda_q1`, `lambda_k1`, `lambda_q2`, `lambda_k2` (head width) from N(0, 0.1), `norm`,
    `out_proj` (C -> C, no bias).
    Reference: Differential Transformer, eq. 1-3 (arXiv:2410.05258); GDLA paper, Eq. 1-8.
    """

    def __init__(self, dim: int, num_heads: int, *, depth: int, qkv_bias: bool = True, rope: bool = True) -> None:
        super().__init__()
        _check_heads(dim, num_heads, divisor=4 if rope else 2)
        self.num_heads, self.rope = num_heads, rope
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * depth)
        head_dim = dim // num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2 = (
            nn.Parameter(torch.empty(head_dim).normal_(std=0.1)) for _ in range(4)
        )
        self.norm = HeadRMSNorm(head_dim)
        self.out_proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Float[Tensor, "B N C"]) -> Float[Tensor, "B N C"]:
        """Mix tokens given in raster order."""
        q, k, v = _split_qkv(self.qkv(x), self.num_heads)
        if self.rope:
            q, k = (torch.cat([rotate_by_position(half) for half in part.chunk(2, -1)], -1) for part in (q, k))
        out = self.norm(differential_attention(q, k, v, self._lambda())) * (1 - self.lambda_init)
        return self.out_proj(rearrange(out, "b h n d -> b n (h d)"))

    def _lambda(self) -> Tensor:
        with without_autocast(self.lambda_q1):
            first = torch.exp((self.lambda_q1 * self.lambda_k1).sum())
            second = torch.exp((self.lambda_q2 * self.lambda_k2).sum())
            return first - second + self.lambda_init
