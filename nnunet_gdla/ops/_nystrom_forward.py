"""The forward pass of a whole Nystrom layer: small matrices from the landmarks, then the passes over all rows.

Shape legend (this file): B batch, L tokens, N patches, C channels = H D, H heads, D head width, R landmarks, S = H R.
"""

import dataclasses
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from nnunet_gdla.ops._graph import NeighbourGraph
from nnunet_gdla.ops._nystrom_rows import Mixing, Summary, chunks, mixed_rows, summarise
from nnunet_gdla.ops.nystrom import PinvInit, landmark_inverse, segment_means
from nnunet_gdla.ops.redundancy import Alignment, alignment

__all__ = [
    "LayerWeights",
    "Maps",
    "Run",
    "Sizes",
    "attend",
    "landmark_maps",
    "project",
    "shared_rows",
    "steps",
    "value_part",
]


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


@dataclasses.dataclass
class Run:
    """One forward pass up to the last projection."""

    sizes: Sizes
    means: Tensor
    summaries: list[Summary]
    mixings: list[Mixing]
    exponentials: Tensor | None
    """(B, L, S), kept for backward, as the next."""
    softmax: Tensor | None
    y: Tensor | None = None
    """(B, L, C), the heads' outputs where a correction needs them."""
    values: Tensor | None = None
    """(B, L, C), likewise."""
    graph: NeighbourGraph | None = None
    first: int = 0
    found: Alignment | None = None

    def patches(self, rows: Tensor) -> Tensor:
        """Rows (B, L, C) of the patches as (B, H, N, D)."""
        assert self.graph is not None
        count = self.graph.index.shape[-2]
        return rows.narrow(1, self.first, count).unflatten(-1, (self.sizes.heads, -1)).transpose(1, 2)

    def align(self, graph: NeighbourGraph, first: int) -> None:
        """Find how the outputs of the patches lie to their neighbours' values, which are not needed any more then."""
        assert self.y is not None
        assert self.values is not None
        self.graph, self.first = graph, first
        self.found = alignment(self.patches(self.y), self.patches(self.values), graph)
        self.values = None


def value_part(weights: LayerWeights) -> tuple[Tensor, Tensor]:
    """Return weight (C, C) and bias (C) from tokens to values."""
    channels = weights.qkv.shape[1]
    return weights.qkv[2 * channels :], weights.qkv_bias[2 * channels :]


def attend(x: Tensor, weights: LayerWeights, sizes: Sizes, *, keep: bool, whole: bool) -> Run:
    """Summarise the tokens; with `whole`, also mix all rows and hold their values."""
    batch, rows, channels = x.shape
    keys = sizes.heads * sizes.landmarks
    means = segment_means(x, sizes.landmarks)
    maps = landmark_maps(means, rows, weights.qkv[: 2 * channels], weights.qkv_bias[: 2 * channels], sizes)
    exponentials, softmax = (x.new_empty(batch, rows, keys) if keep else None for _ in range(2))
    y, values = (x.new_empty(x.shape) if whole else None for _ in range(2))
    run = Run(sizes, means, [], [], exponentials, softmax, y=y, values=values)
    for b in range(batch):
        kept, held = (None if whole_batch is None else whole_batch[b] for whole_batch in (exponentials, values))
        summary = summarise(x[b], maps.key[b], value_part(weights), sizes.heads, kept, held)
        mixing = Mixing(maps.query[b], maps.bias[b], maps.inverse[b] @ summary.values)
        run.summaries.append(summary)
        run.mixings.append(mixing)
        if y is not None:
            for _ in mixed_rows(x[b], mixing, None if softmax is None else softmax[b], y[b]):
                pass
    return run


def project(x: Tensor, weights: LayerWeights, beta: Tensor | None, run: Run) -> Tensor:
    """Return the layer's output; with a correction it takes the memory of the heads' outputs."""
    out = x.new_empty(x.shape) if run.y is None else run.y
    for b, mixing in enumerate(run.mixings):
        if beta is None:
            kept = None if run.softmax is None else run.softmax[b]
            for cut, y_nC in mixed_rows(x[b], mixing, kept, None):
                torch.addmm(weights.out_bias, y_nC, weights.out.T, out=out[b, cut])
            continue
        for cut in chunks(*x.shape[1:]):
            y_nC = out[b, cut]
            _correct_chunk(y_nC, cut, b, beta, run)
            y_nC.copy_(torch.addmm(weights.out_bias, y_nC, weights.out.T))
    return out


def shared_rows(cut: slice, first: int, count: int) -> tuple[slice, slice]:
    """Which rows of a chunk are patches: counted within the chunk, and within the patches; perhaps none."""
    start, stop = max(cut.start, first), min(cut.stop, first + count)
    stop = max(start, stop)
    return slice(start - cut.start, stop - cut.start), slice(start - first, stop - first)


def _correct_chunk(y_nC: Tensor, cut: slice, b: int, beta: Tensor, run: Run) -> None:
    assert run.found is not None
    inner, outer = shared_rows(cut, run.first, beta.shape[-1])
    if inner.start == inner.stop:
        return
    y_nHD, axis_nHD = y_nC[inner].unflatten(-1, (run.sizes.heads, -1)), run.found.axis[b, :, outer].transpose(0, 1)
    y_nHD.sub_(axis_nHD.mul_(steps(beta[b, :, outer], run.found.dot[b, :, outer])))


def steps(beta_Hn: Tensor, dot_Hn: Tensor) -> Tensor:
    """How far (n, H, 1) to go against the axis; an infinite output that is to stay as it is must not become NaN."""
    return torch.where(beta_Hn == 0, 0, beta_Hn * dot_Hn).T.contiguous().unsqueeze(-1)
