"""The forward pass of a whole Nystrom layer: small matrices from the landmarks, then the passes over all rows.

Shape legend (this file): B batch, L tokens, N patches, C channels = H D, H heads, D head width, R landmarks, S = H R.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from nnunet_gdla.ops._memory import steady_heap
from nnunet_gdla.ops._nystrom_rows import Mixing, Summary, chunks, longest, mix_rows, soften_rows, summarise
from nnunet_gdla.ops.nystrom import PinvInit, landmark_inverse, segment_means

__all__ = ["Elements", "Kept", "LayerWeights", "Maps", "Sizes", "attend", "landmark_maps", "value_part"]


class LayerWeights(NamedTuple):
    """Of the two linear layers around the attention."""

    qkv: Float[Tensor, "C3 C"]
    qkv_bias: Float[Tensor, " C3"]
    out: Float[Tensor, "C C"]
    out_bias: Float[Tensor, " C"]


class Sizes(NamedTuple):
    """Options of the layer."""

    heads: int
    landmarks: int
    iterations: int
    init: PinvInit


class Maps(NamedTuple):
    """The small matrices."""

    query: Tensor
    """(B, S, C), from tokens to scores over landmarks."""
    bias: Tensor
    """(B, S), of these."""
    key: Tensor
    """(B, S, C), from tokens to scores of landmarks."""
    inverse: Tensor
    """(B, H, R, R)."""


def landmark_maps(means_BRC: Tensor, rows: int, weight: Tensor, bias: Tensor, sizes: Sizes) -> Maps:
    """Make the small matrices of means (B, R, C) and the first two thirds of the projection; gradients flow."""
    run = -(-rows // sizes.landmarks)
    filled_R1 = (torch.arange(sizes.landmarks) * run < rows).unsqueeze(-1)
    projected = (F.linear(means_BRC, weight, bias) * filled_R1).unflatten(-1, (2, sizes.heads, -1))
    q_BHRD, k_BHRD = projected.permute(2, 0, 3, 1, 4)
    of_q, of_k = weight.unflatten(0, (2, sizes.heads, -1))
    scale = q_BHRD.shape[-1] ** -0.5
    bias_HD1 = bias.unflatten(0, (2, sizes.heads, -1))[0].unsqueeze(-1)
    return Maps(
        (scale * k_BHRD @ of_q).flatten(1, 2),
        (scale * k_BHRD @ bias_HD1).flatten(1),
        (scale * q_BHRD @ of_k).flatten(1, 2),
        landmark_inverse(q_BHRD, k_BHRD, sizes.iterations, sizes.init),
    )


class Kept(NamedTuple):
    """What a forward pass leaves for the backward pass."""

    means: Tensor
    """(B, R, C)."""
    exponentials: Tensor
    """(B, L, S), those of the softmax over all rows."""
    softmax: Tensor
    """(B, L, S), over the landmarks."""
    summaries: list[Summary]


def value_part(weights: LayerWeights) -> tuple[Tensor, Tensor]:
    """Return weight (C, C) and bias (C) from tokens to values."""
    channels = weights.qkv.shape[1]
    return weights.qkv[2 * channels :], weights.qkv_bias[2 * channels :]


class Elements:
    """The batch elements of one forward pass, one after another: what all rows need to be mixed."""

    def __init__(self, x: Tensor, weights: LayerWeights, sizes: Sizes, *, keep: bool) -> None:
        steady_heap()
        batch, rows, channels = x.shape
        self.x, self.weights, self.sizes = x, weights, sizes
        self.means = segment_means(x, sizes.landmarks)
        both = 2 * channels
        self.maps = landmark_maps(self.means, rows, weights.qkv[:both], weights.qkv_bias[:both], sizes)
        kept = (batch, rows, sizes.heads * sizes.landmarks)
        self.exponentials, self.softmax = (x.new_empty(kept) if keep else None for _ in range(2))
        self.summaries: list[Summary] = []

    def mixing(self, b: int, values: Tensor | None = None) -> Mixing:
        """Summarise element b, and return what its rows are mixed by; the values are written to `values` (L, C)."""
        kept, maps = None if self.exponentials is None else self.exponentials[b], self.maps
        summary = summarise(self.x[b], maps.key[b], value_part(self.weights), self.sizes.heads, kept, values)
        self.summaries.append(summary)
        return Mixing(maps.query[b], maps.bias[b], maps.inverse[b] @ summary.values)

    def mixer(self, b: int, values: Tensor | None = None) -> Callable[[slice, Tensor], Tensor]:
        """As `mixing`, and return what writes the mixed rows of a chunk to the begin of a buffer (n, C)."""
        mixing = self.mixing(b, values)
        at_once = longest(chunks(*self.x.shape[1:]))
        scores, softmax = (self.x.new_empty(at_once, len(mixing.query)) for _ in range(2))

        def mix(cut: slice, rows: Tensor) -> Tensor:
            size = cut.stop - cut.start
            here = softmax[:size] if self.softmax is None else self.softmax[b, cut]
            mix_rows(self.x[b, cut], mixing, scores, here, rows[:size])
            return rows[:size]

        return mix

    def kept(self) -> Kept | None:
        """Return what backward needs, None where nothing is kept."""
        if self.exponentials is None or self.softmax is None:
            return None
        return Kept(self.means, self.exponentials, self.softmax, self.summaries)


def attend(x: Tensor, weights: LayerWeights, sizes: Sizes, *, keep: bool) -> tuple[Tensor, Kept | None]:
    """Run the layer without a correction."""
    if not keep:
        return _attend_only(x, weights, sizes), None
    out, elements, cuts = torch.empty_like(x), Elements(x, weights, sizes, keep=True), chunks(*x.shape[1:])
    y = x.new_empty(longest(cuts), x.shape[-1])
    for b in range(len(x)):
        mix = elements.mixer(b)
        for cut in cuts:
            y_nC = mix(cut, y)
            torch.addmm(weights.out_bias, y_nC, weights.out.T, out=out[b, cut])
    return out, elements.kept()


def _attend_only(x: Tensor, weights: LayerWeights, sizes: Sizes) -> Tensor:
    """Mix rows and project them in one product: what the landmarks say is projected beforehand."""
    out, elements, cuts = torch.empty_like(x), Elements(x, weights, sizes, keep=False), chunks(*x.shape[1:])
    scores, softmax = (x.new_empty(longest(cuts), sizes.heads * sizes.landmarks) for _ in range(2))
    of_head_HCD = weights.out.unflatten(1, (sizes.heads, -1)).transpose(0, 1)
    for b in range(len(x)):
        mixing = elements.mixing(b)
        said_SC = (mixing.values @ of_head_HCD.mT).flatten(0, 1)
        for cut in cuts:
            soft_nS = soften_rows(x[b, cut], mixing, scores, softmax[: cut.stop - cut.start])
            torch.addmm(weights.out_bias, soft_nS, said_SC, out=out[b, cut])
    return out
