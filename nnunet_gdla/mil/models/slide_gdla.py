"""Gated differential linear attention on a bag of patches: exact, linear in the patches.

Shape legend (this file): B batch, L tokens, N patches, C channels, W convolved channels, H heads, D head width.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from nnunet_gdla.layers.norm import HeadRMSNorm
from nnunet_gdla.layers.untouched import is_untouched
from nnunet_gdla.mil.models.heads import linear_row, merge_heads, split_heads
from nnunet_gdla.mil.models.lattice import lattice_convolution
from nnunet_gdla.mil.models.slide_attention import build_correction, corrected
from nnunet_gdla.mil.models.tokens import SlideContext
from nnunet_gdla.ops import differential_linear_attention

__all__ = ["GDLASlideAttention"]


class GDLASlideAttention(nn.Module):
    r"""The mixer of the segmentation network on a class token and patches that lie anywhere.

    $$Y = A_1 - \lambda \odot A_2,\qquad \mathrm{head} = \mathrm{RMSNorm}(Z) \odot \mathrm{SiLU}(G),$$

    where Z is Y with the patch rows corrected along the mean of their neighbours' V. With `local_mixing` a second,
    uncorrected branch computes the same on the projections after a depthwise 3x3 and a 1x1 convolution.

    Args:
        dim: Channels C of the tokens.
        num_heads: Heads; a head's width is cut in two halves for the two branches.
        correction: "srp", "none", "fixed:<beta>" or "fixed:learned".
        gate_options: Keyword arguments of `GatedSRP`.
        local_mixing: None or "lattice": the local branch of the segmentation network, its depthwise convolution on the
            eight neighbours of the patch's cell and the patch (nothing there: zero); the class row passes it as it is.

    Raises:
        ValueError: If the heads do not divide `dim` into even widths or a choice is unknown.

    Parameters: those of `GatedDifferentialLinearAttention` under the same names, and `correction`.
    Differs from the paper: ours alone; the paper has no slides.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        correction: str = "none",
        gate_options: Mapping[str, Any] | None = None,
        local_mixing: Literal["lattice"] | None = None,
    ) -> None:
        super().__init__()
        if num_heads < 1 or dim % num_heads or (dim // num_heads) % 2:
            raise ValueError(f"num_heads {num_heads} must divide dim {dim} into even widths for attention 'gdla'")
        if local_mixing not in ("lattice", None):
            raise ValueError(f"unknown local_mixing {local_mixing!r}; choose 'lattice' or None")
        self.num_heads = num_heads
        self.qkvg = nn.Linear(dim, 4 * dim)
        self.norm = HeadRMSNorm(dim // num_heads)
        self.out_proj = nn.Linear(dim if local_mixing is None else 2 * dim, dim)
        self.local_depthwise = self.local_pointwise = self.lambda_local = None
        if local_mixing is not None:
            self.local_depthwise = nn.Conv2d(4 * dim, 4 * dim, 3, padding=1, groups=4 * dim)
            self.local_pointwise = nn.Conv2d(4 * dim, 4 * dim, 1)
            self.lambda_local = nn.Parameter(torch.empty(num_heads, dim // num_heads).normal_(std=0.1))
        self.lambda_global = nn.Parameter(torch.empty(num_heads, dim // num_heads).normal_(std=0.1))
        self.correction = build_correction(num_heads, correction, gate_options)

    def forward(
        self,
        x: Float[Tensor, "B L C"],
        context: SlideContext,
        *,
        key_mask: Bool[Tensor, "B L"] | None = None,
        class_only: bool = False,
    ) -> Float[Tensor, "B rows C"]:
        """Mix tokens: class token and patches; see `SlideAttention.forward`."""
        if class_only and self.correction is not None:
            raise ValueError("the class row alone cannot be had where a correction edits patch rows")
        rows = 1 if class_only else x.shape[1]
        projected = None if self.local_depthwise is None else self.qkvg(x)
        streams = self._project(x, rows) if projected is None else _first_rows(projected, rows)
        y, values = self._mix(streams, self.lambda_global, key_mask)
        if self.correction is not None:
            y = corrected(self.correction, y, values, context)
        mixed = self._gated(y, streams[3])
        if projected is not None and self.lambda_local is not None:
            local = self._local(projected, context, rows)
            local_y, _ = self._mix(local, self.lambda_local, key_mask)
            mixed = torch.cat([mixed, self._gated(local_y, local[3])], dim=-1)
        return self.out_proj(mixed)

    def attention_row(
        self, x: Float[Tensor, "B L C"], context: SlideContext, *, key_mask: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B H L"]:
        """Return the signed weights A1 - lambda A2 of the class token in the global branch.

        Lambda has an entry per value channel; the row takes its mean over the channels of the head.
        """
        q, k, _, _ = (split_heads(part, self.num_heads) for part in self._project(x, 1))
        first, second = (linear_row(*halves, key_mask) for halves in zip(q.chunk(2, -1), k.chunk(2, -1), strict=True))
        return first - self.lambda_global.mean(-1)[:, None] * second

    def _project(self, x: Tensor, rows: int) -> tuple[Tensor, ...]:
        """Project to q and g of the first rows and to k and v of all."""
        dim = x.shape[-1]
        if rows == x.shape[1] or not is_untouched(self.qkvg):
            return _first_rows(self.qkvg(x), rows)
        weight, bias = self.qkvg.weight, self.qkvg.bias
        k, v = F.linear(x, weight[dim : 3 * dim], bias[dim : 3 * dim]).chunk(2, dim=-1)
        q, _, _, g = F.linear(x[:, :rows], weight, bias).chunk(4, dim=-1)
        return q, k, v, g

    def _mix(self, streams: tuple[Tensor, ...], lam: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        q, k, v = (split_heads(part, self.num_heads) for part in streams[:3])
        return differential_linear_attention(q, k, v, lam, key_mask=key_mask), v

    def _gated(self, y: Tensor, gate: Tensor) -> Tensor:
        return merge_heads(self.norm(y)) * F.silu(gate)

    def _local(self, projected: Tensor, context: SlideContext, rows: int) -> tuple[Tensor, ...]:
        assert self.local_depthwise is not None
        assert self.local_pointwise is not None
        if context.graph is None:
            raise ValueError("local_mixing 'lattice' needs the neighbour graph of the patches")
        patches = lattice_convolution(projected[:, 1:], context.graph, *_taps(self.local_depthwise, projected))
        moved = torch.cat([projected[:, :1], patches.to(projected.dtype)], dim=1)
        if not is_untouched(self.local_pointwise):
            called = self.local_pointwise(moved.transpose(1, 2).unsqueeze(-1))
            return _first_rows(called.squeeze(-1).transpose(1, 2), rows)
        weight, bias = self.local_pointwise.weight[:, :, 0, 0], self.local_pointwise.get_parameter("bias")
        return _first_rows(F.linear(moved, weight, bias), rows)


def _taps(depthwise: nn.Module, like: Tensor) -> tuple[Tensor, Tensor]:
    """Kernel and bias of a depthwise 3x3 convolution; of one that was changed, what it does to a single cell."""
    if is_untouched(depthwise):
        return depthwise.get_parameter("weight"), depthwise.get_parameter("bias")
    bias = depthwise(like.new_zeros(1, like.shape[-1], 1, 1))
    impulse = F.pad(torch.ones_like(bias), (1, 1, 1, 1))
    return (depthwise(impulse) - bias).flip(-1, -2).transpose(0, 1), bias.flatten()


def _first_rows(projected: Tensor, rows: int) -> tuple[Tensor, ...]:
    """Cut into q, k, v, g, of which only the first rows of q and g are asked for."""
    q, k, v, g = projected.chunk(4, dim=-1)
    return q[:, :rows], k, v, g[:, :rows]
