"""Differential attention of slide models: two Nystrom attentions that share their values.

Shape legend (this file): B batch, L tokens, C channels, H differential heads, D width of one branch.
"""

import math
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from nnunet_gdla.layers.norm import HeadRMSNorm
from nnunet_gdla.layers.untouched import is_untouched
from nnunet_gdla.mil.models.heads import merge_heads, project_means, split_heads
from nnunet_gdla.mil.models.tokens import SlideContext
from nnunet_gdla.ops._checks import without_autocast
from nnunet_gdla.ops.nystrom import PinvInit, check_nystrom_options, nystrom_attention, nystrom_attention_row

__all__ = ["DifferentialNystromAttention"]


class DifferentialNystromAttention(nn.Module):
    r"""$(1 - \lambda_0)\,\mathrm{RMSNorm}(y_1 - \lambda y_2)$ per head, then the output projection.

    $$\lambda = e^{\lambda_{q1} \cdot \lambda_{k1}} - e^{\lambda_{q2} \cdot \lambda_{k2}} + \lambda_0,\qquad
      \lambda_0 = 0.8 - 0.6\, e^{-0.3\, \mathrm{block}}.$$

    Args:
        dim: Channels C of the tokens.
        num_heads: Heads of the model it stands in; there are half as many differential heads.
        block: Number of the block, from 0.
        num_landmarks: Of both Nystrom attentions; each has its own.
        pinv_iterations: Steps of their pseudo-inverses.
        pinv_init: Start of their pseudo-inverses.

    Raises:
        ValueError: If the number of heads is odd or does not divide `dim`.

    Parameters: `qkv` (C -> 3C; q and k head, branch, channel; v head, channel) and `out_proj` (C -> C), without biases;
    `lambda_q1`, `lambda_k1`, `lambda_q2`, `lambda_k2` (D) from N(0, 0.1), `norm` (2 D) ones.
    Reference: Differential Transformer (arXiv:2410.05258) as a comparator of the Gated SRP paper.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        block: int,
        num_landmarks: int = 64,
        pinv_iterations: int = 6,
        pinv_init: PinvInit = "per_matrix",
    ) -> None:
        super().__init__()
        if num_heads < 2 or num_heads % 2 or dim % num_heads:
            raise ValueError(f"num_heads {num_heads} must be even and divide dim {dim} for attention 'diff'")
        check_nystrom_options(num_landmarks, pinv_iterations, pinv_init)
        width = dim // num_heads
        self.num_heads, self.num_landmarks = num_heads // 2, num_landmarks
        self.options: dict[str, Any] = {
            "num_landmarks": num_landmarks,
            "pinv_iterations": pinv_iterations,
            "pinv_init": pinv_init,
        }
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * block)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2 = (
            nn.Parameter(torch.empty(width).normal_(std=0.1)) for _ in range(4)
        )
        self.norm = HeadRMSNorm(2 * width)
        self.out_proj = nn.Linear(dim, dim, bias=False)

    def forward(
        self,
        x: Float[Tensor, "B L C"],
        context: SlideContext,
        *,
        key_mask: Bool[Tensor, "B L"] | None = None,
        class_only: bool = False,
    ) -> Float[Tensor, "B rows C"]:
        """Mix tokens: class token, patches, copies; see `SlideAttention.forward`. The context is not used."""
        if class_only and is_untouched(self.qkv):
            q_weight, kv_weight = self.qkv.weight.split([x.shape[-1], 2 * x.shape[-1]])
            q = F.linear(x[:, :1], q_weight)
            k, v = F.linear(x, kv_weight).chunk(2, dim=-1)
            means = project_means(x, q_weight, None, self.num_landmarks, key_mask)
            landmarks: tuple[Tensor | None, ...] = self._branches(means)
        else:
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            landmarks = (None, None)
        values = split_heads(v, self.num_heads)
        first, second = (
            nystrom_attention(q_part, k_part, values, key_mask=key_mask, query_landmarks=means, **self.options)
            for q_part, k_part, means in zip(self._branches(q), self._branches(k), landmarks, strict=True)
        )
        y = self.norm(first - self.lambda_full().to(first.dtype) * second) * (1 - self.lambda_init)
        return self.out_proj(merge_heads(y[:, :, : 1 if class_only else None]))

    def attention_row(
        self, x: Float[Tensor, "B L C"], context: SlideContext, *, key_mask: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B H L"]:
        """Return the signed weights A1 - lambda A2 of the class token on all tokens, per differential head."""
        q, k, _ = self.qkv(x).chunk(3, dim=-1)
        first, second = (
            nystrom_attention_row(*streams, key_mask=key_mask, **self.options)
            for streams in zip(self._branches(q), self._branches(k), strict=True)
        )
        return first - self.lambda_full() * second

    def lambda_full(self) -> Float[Tensor, ""]:
        """Return lambda, in the dtype of the parameters whatever autocast says."""
        with without_autocast(self.lambda_q1):
            first = torch.exp((self.lambda_q1 * self.lambda_k1).sum())
            second = torch.exp((self.lambda_q2 * self.lambda_k2).sum())
            return first - second + self.lambda_init

    def _branches(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = rearrange(x, "b l (h two d) -> two b h l d", two=2, h=self.num_heads)
        return first, second
