"""Attention of slide models on a class token, patches and their copies, with a correction of what patches get.

Shape legend (this file): B batch, L tokens, N patches, C channels, H heads, D head width, R landmarks.
"""

from collections.abc import Mapping
from typing import Any, Literal, cast

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from nnunet_gdla.layers.redundancy import FixedSRP, GatedSRP
from nnunet_gdla.layers.untouched import has_hooks, is_untouched
from nnunet_gdla.mil.models.combinations import read_combination
from nnunet_gdla.mil.models.heads import linear_row, merge_heads, project_means, softmax_row, split_heads
from nnunet_gdla.mil.models.tokens import SlideContext
from nnunet_gdla.ops import linear_attention
from nnunet_gdla.ops._fusion import gradients_follow
from nnunet_gdla.ops.exclusive import exclusive_projection
from nnunet_gdla.ops.neighbours import NeighbourGraph
from nnunet_gdla.ops.nystrom import PinvInit, check_nystrom_options, nystrom_attention, nystrom_attention_row
from nnunet_gdla.ops.nystrom_class_row import nystrom_class_row
from nnunet_gdla.ops.nystrom_layer import Correction, LayerWeights, Patches, nystrom_layer, nystrom_layer_fits
from nnunet_gdla.ops.redundancy import Alignment

__all__ = ["SlideAttention", "build_correction", "corrected"]


class SlideAttention(nn.Module):
    r"""Nystrom, softmax or linear attention per head, a correction of the patch rows, the output projection.

    Placed "post", the correction edits what attention returns for the real patches, along the mean of their neighbours'
    values; "pre_q", "pre_k" and "pre_v" edit that stream before attention, along the neighbours of the same stream. The
    class row and the copies behind the patches are never edited, except by "xsa", which edits every row.

    Args:
        dim: Channels C of the tokens.
        num_heads: Heads, a divisor of `dim`.
        attention: "nystrom", "softmax" or "linear".
        correction: "srp", "xsa", "none", "fixed:<beta>" or "fixed:learned".
        placement: "post", "pre_q", "pre_k" or "pre_v".
        num_landmarks: Landmarks R of "nystrom"; they are means over consecutive rows, so that row order matters.
        pinv_iterations: Steps of its pseudo-inverse.
        pinv_init: Start of its pseudo-inverse.
        gate_options: Keyword arguments of `GatedSRP`.
        xsa_rows: "all" as published, or "patches": leave the class row as it is.

    Raises:
        ValueError: If the heads do not divide `dim` or the choices do not go together.

    Parameters: `qkv` (C -> 3C, rows q, k, v, each head-major), `out_proj` (C -> C), both with bias; `correction`.
    Reference: Gated SRP paper; specification of the released code.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        attention: Literal["nystrom", "softmax", "linear"] = "nystrom",
        correction: str = "none",
        placement: str = "post",
        num_landmarks: int = 64,
        pinv_iterations: int = 6,
        pinv_init: PinvInit = "per_matrix",
        gate_options: Mapping[str, Any] | None = None,
        xsa_rows: Literal["all", "patches"] = "all",
    ) -> None:
        super().__init__()
        self.combination = read_combination(attention, correction, placement)
        if attention not in ("nystrom", "softmax", "linear"):
            raise ValueError(f"attention {attention!r} has a layer of its own; choose nystrom, softmax or linear here")
        if num_heads < 1 or dim % num_heads:
            raise ValueError(f"num_heads {num_heads} must divide dim {dim}")
        check_nystrom_options(num_landmarks, pinv_iterations, pinv_init)
        self.num_heads, self.num_landmarks, self.xsa_rows = num_heads, num_landmarks, xsa_rows
        self.pinv_iterations, self.pinv_init = pinv_iterations, pinv_init
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out_proj = nn.Linear(dim, dim)
        self.correction = build_correction(num_heads, correction, gate_options)

    def forward(
        self,
        x: Float[Tensor, "B L C"],
        context: SlideContext,
        *,
        key_mask: Bool[Tensor, "B L"] | None = None,
        class_only: bool = False,
    ) -> Float[Tensor, "B rows C"]:
        """Mix tokens: class token, patches, copies.

        Args:
            x: Tokens.
            context: Number of real patches; graph and homogeneity where the correction asks for them.
            key_mask: Tokens that may be attended to.
            class_only: Return the class row alone. Only where no correction edits patch rows or queries.
        """
        if class_only and self.correction is not None and self.combination.placement in ("post", "pre_q"):
            raise ValueError("the class row alone cannot be had where a correction edits patch rows or queries")
        if key_mask is None and self._fits(x):
            return self._class_row(x) if class_only else self._whole_layer(x, context)
        short = class_only and is_untouched(self.qkv)
        q, k, v, landmarks = self._class_projection(x, key_mask) if short else (*self._split(self.qkv(x)), None)
        q, k, v = (self._edited(part, name, context) for name, part in (("pre_q", q), ("pre_k", k), ("pre_v", v)))
        y = self._attend(q, k, v, key_mask, landmarks)[:, :, : 1 if class_only else None]
        if self.combination.correction == "xsa":
            y = self._exclusive(y, v)
        if self.correction is not None and self.combination.placement == "post":
            y = corrected(self.correction, y, v, context)
        return self.out_proj(merge_heads(y))

    def attention_row(
        self, x: Float[Tensor, "B L C"], context: SlideContext, *, key_mask: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B H L"]:
        """Return how the class token weighs all tokens, per head: exact for softmax and linear attention."""
        q, k, _ = self._split(self.qkv(x))
        q, k = self._edited(q, "pre_q", context), self._edited(k, "pre_k", context)
        if self.combination.attention == "nystrom":
            return nystrom_attention_row(q, k, key_mask=key_mask, **self._nystrom_options())
        row = softmax_row if self.combination.attention == "softmax" else linear_row
        return row(q[:, :, :1], k, key_mask)

    def _weights(self) -> LayerWeights:
        return LayerWeights(self.qkv.weight, self.qkv.bias, self.out_proj.weight, self.out_proj.bias)

    def _fits(self, x: Tensor) -> bool:
        """Whether the faster form of the whole layer can be taken: nothing else looks at what it never builds."""
        choice = self.combination
        if choice.attention != "nystrom" or choice.correction == "xsa" or choice.placement != "post":
            return False
        if not is_untouched(self.qkv, self.out_proj):
            return False
        part = self.correction
        if part is not None and (type(part) not in (GatedSRP, FixedSRP) or has_hooks(part)):
            return False  # to be called as a whole
        if isinstance(part, GatedSRP) and not getattr(part.gate, "detach", False):  # a wrapper has no such switch
            return False
        if part is not None and len(x) > 1 and _watched(part):
            return False  # a hook is to see the whole batch
        return nystrom_layer_fits(x, self._weights(), num_heads=self.num_heads, num_landmarks=self.num_landmarks)

    def _class_row(self, x: Tensor) -> Tensor:
        return nystrom_class_row(x, self._weights(), num_heads=self.num_heads, **self._nystrom_options())

    def _whole_layer(self, x: Tensor, context: SlideContext) -> Tensor:
        options = self._nystrom_options() | {"num_heads": self.num_heads}
        part = self.correction
        if part is None or self._changes_nothing(part, x):
            return nystrom_layer(x, self._weights(), **options)
        graph, homogeneity = _neighbours(context)

        def beta(y: Tensor, found: Alignment, patches: Patches) -> Tensor:
            here = slice(patches.element, patches.element + 1)
            return part.coefficients(y, found, graph.part(*patches), homogeneity[here, patches.rows])

        correction = Correction(graph, 1, beta, at_once=_watched(part))
        return nystrom_layer(x, self._weights(), correction=correction, **options)

    def _changes_nothing(self, correction: GatedSRP | FixedSRP, x: Tensor) -> bool:
        """Whether the layer without a correction gives the same; it also takes a shorter way where nothing is kept."""
        if gradients_follow(x, *self._weights(), *correction.parameters()) or _watched(correction):
            return False
        return correction.is_identity()

    def _edited(self, stream: Tensor, placement: str, context: SlideContext) -> Tensor:
        if self.correction is None or self.combination.placement != placement:
            return stream
        return corrected(self.correction, stream, stream, context)

    def _nystrom_options(self) -> dict[str, Any]:
        return {
            "num_landmarks": self.num_landmarks,
            "pinv_iterations": self.pinv_iterations,
            "pinv_init": self.pinv_init,
        }

    def _split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = rearrange(qkv, "b l (p h d) -> p b h l d", p=3, h=self.num_heads)
        return q, k, v

    def _class_projection(self, x: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Project what the class row needs: its own query, the means of the others, all keys and values."""
        dim = x.shape[-1]
        weight, bias = self.qkv.weight, self.qkv.bias
        q = split_heads(F.linear(x[:, :1], weight[:dim], bias[:dim]), self.num_heads)
        k, v = rearrange(F.linear(x, weight[dim:], bias[dim:]), "b l (p h d) -> p b h l d", p=2, h=self.num_heads)
        if self.combination.attention != "nystrom":
            return q, k, v, None
        means = project_means(x, weight[:dim], bias[:dim], self.num_landmarks, key_mask)
        return q, k, v, split_heads(means, self.num_heads)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, landmarks: Tensor | None) -> Tensor:
        if self.combination.attention == "nystrom":
            return nystrom_attention(q, k, v, key_mask=key_mask, query_landmarks=landmarks, **self._nystrom_options())
        if self.combination.attention == "linear":
            return linear_attention(q, k, v, key_mask=key_mask)
        if key_mask is None:
            return F.scaled_dot_product_attention(q, k, v)
        drop = ~key_mask[:, None, :, None]
        return F.scaled_dot_product_attention(
            q, k.masked_fill(drop, 0), v.masked_fill(drop, 0), attn_mask=key_mask[:, None, None, :]
        )

    def _exclusive(self, y: Tensor, v: Tensor) -> Tensor:
        if self.xsa_rows == "all":
            return exclusive_projection(y, v[:, :, : y.shape[2]])
        return torch.cat([y[:, :, :1], exclusive_projection(y[:, :, 1:], v[:, :, 1:])], dim=2)


def corrected(
    correction: nn.Module,
    stream: Float[Tensor, "B H L D"],
    values: Float[Tensor, "B H L D"],
    context: SlideContext,
) -> Float[Tensor, "B H L D"]:
    """Correct the rows of real patches along their neighbours' values; the class row and copies stay as they are.

    Raises:
        ValueError: If the context lacks the graph or the homogeneity.
    """
    graph, homogeneity = _neighbours(context)
    return cast(Tensor, correction(stream, values, graph, homogeneity, first=1))


def _watched(module: nn.Module) -> bool:
    return any(has_hooks(part) for part in module.modules())


def _neighbours(context: SlideContext) -> tuple[NeighbourGraph, Tensor]:
    if context.graph is None or context.homogeneity is None:
        raise ValueError("this correction needs the neighbour graph and the local homogeneity of the patches")
    return context.graph, context.homogeneity


def build_correction(
    num_heads: int, correction: str, gate_options: Mapping[str, Any] | None
) -> GatedSRP | FixedSRP | None:
    """Build what edits patch rows, None for "none" and "xsa"; it leaves the random generator where it was."""
    choice = read_combination("softmax", correction, "post")
    if not choice.needs_graph:
        return None
    if choice.beta is not None:
        return FixedSRP(num_heads, choice.beta)
    return GatedSRP(num_heads, **(gate_options or {}))
