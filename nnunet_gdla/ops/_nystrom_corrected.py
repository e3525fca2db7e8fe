"""The forward pass of a Nystrom layer that corrects the rows of the patches before the last projection.

A few chunks at a time, while they lie in the cache: mix the rows, find how they lie to their neighbours' values, ask
for the coefficients, correct, project. The values of the whole slide, which the neighbours need, lie where the output
will: an output is written as soon as no later row has a neighbour there, for patches in reading order a chunk later.

Shape legend (this file): B batch, L tokens, N patches, n rows of some chunks, C channels = H D, H heads, D head width,
K neighbour slots.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from nnunet_gdla.ops._gather import Neighbourhood, neighbourhood
from nnunet_gdla.ops._graph import NeighbourGraph, graph_for
from nnunet_gdla.ops._nystrom_forward import Elements, Kept, LayerWeights, Sizes
from nnunet_gdla.ops._nystrom_rows import chunks, longest
from nnunet_gdla.ops.redundancy import Alignment, directions

__all__ = ["Corrected", "Correction", "Patches", "attend_and_correct", "shared_rows", "steps"]

# Chunks whose coefficients are asked for at once: few calls of the gate, and still in a cache that cores share.
TOGETHER = 4


class Patches(NamedTuple):
    """Some patches of one batch element."""

    element: int
    rows: slice
    """Counted within the patches."""


class Correction(NamedTuple):
    """A correction of the patch rows along their neighbours' values, between attention and the last projection."""

    graph: NeighbourGraph
    first: int
    """Row of the first patch."""
    beta: Callable[[Float[Tensor, "1 H n D"], Alignment, Patches], Float[Tensor, "1 H n"]]
    """From outputs of patches and how they lie; only its own parameters may get gradients through it."""
    at_once: bool = False
    """Whether `beta` is to be asked once for all patches of an element."""


class Corrected(NamedTuple):
    """What a corrected pass gives; coefficients and products in pieces, those of an element after one another.

    Not joined: the gate keeps the same pieces for its own backward pass.
    """

    out: Tensor
    """(B, L, C)."""
    betas: list[Tensor]
    """(1, H, n) each, with gradients."""
    dots: list[Tensor]
    """(1, H, n) each, products of the outputs with the axes."""
    kept: Kept | None


def attend_and_correct(
    x: Tensor, weights: LayerWeights, sizes: Sizes, correction: Correction, *, keep: bool
) -> Corrected:
    """Run the layer with a correction; gradients flow into the coefficients alone, and with `keep` only.

    Raises:
        ValueError: If the graph does not fit the tokens.
    """
    count = min(correction.graph.index.shape[-2], max(x.shape[1] - correction.first, 0))
    graph = graph_for(correction.graph, (len(x), count))
    found = Corrected(torch.empty_like(x), [], [], None)
    with torch.no_grad():
        elements = Elements(x, weights, sizes, keep=keep)
        for b in range(len(x)):
            _element(b, elements, correction._replace(graph=graph.part(b, slice(None))), found)
    return found._replace(kept=elements.kept())


def _element(b: int, elements: Elements, correction: Correction, found: Corrected) -> None:
    """Write the output of one batch element, and append its coefficients and products."""
    heads, (first, count) = elements.sizes.heads, (correction.first, correction.graph.index.shape[-2])
    out, keep = found.out[b], elements.exponentials is not None
    mix = elements.mixer(b, values=out)
    patch_values = out.narrow(0, first, count).unflatten(-1, (heads, -1)).transpose(0, 1)
    around = neighbourhood(patch_values[None], out.dtype, *correction.graph)
    cuts = chunks(*out.shape)
    groups = [cuts] if correction.at_once else [cuts[i : i + TOGETHER] for i in range(0, len(cuts), TOGETHER)]
    late = _LateOutput(out, elements.weights, _needed_from(correction, groups))
    for group in groups:
        y_nC, before = late.buffer(group), group[0].start
        for cut in group:
            mix(cut, y_nC[cut.start - before :])
        inner, outer = shared_rows(slice(before, group[-1].stop), first, count)
        if inner.start < inner.stop:
            y_nHD = y_nC[inner].unflatten(-1, (heads, -1))
            beta, dot = _correct(y_nHD, Patches(b, outer), around, correction, keep=keep)
            found.betas.append(beta)
            found.dots.append(dot)
        late.add(group, y_nC)


class _LateOutput:
    """Projects corrected rows into memory that holds values until later rows do not need these any more."""

    def __init__(self, out: Tensor, weights: LayerWeights, needed_from: list[int]) -> None:
        self.out, self.weights, self.needed_from = out, weights, needed_from
        self.waiting: deque[tuple[list[slice], Tensor]] = deque()
        self.free: list[Tensor] = []

    def buffer(self, group: list[slice]) -> Tensor:
        """Return memory for the rows (n, C) of some chunks."""
        rows = group[-1].stop - group[0].start
        whole = self.free.pop() if self.free else self.out.new_empty(len(group) * longest(group), self.out.shape[-1])
        return whole[:rows]

    def add(self, group: list[slice], rows_nC: Tensor) -> None:
        """Take the rows of the next chunks, and write whatever can be written."""
        self.waiting.append((group, rows_nC))
        needed_from = self.needed_from.pop(0)
        while self.waiting and self.waiting[0][0][-1].stop <= needed_from:
            cuts, rows = self.waiting.popleft()
            for cut in cuts:
                here = rows[cut.start - cuts[0].start : cut.stop - cuts[0].start]
                torch.addmm(self.weights.out_bias, here, self.weights.out.T, out=self.out[cut])
            self.free.append(rows)


def _needed_from(correction: Correction, groups: list[list[slice]]) -> list[int]:
    """For each group the first row of which a later group needs the value; behind the last group none is needed."""
    index, mask, _ = correction.graph
    count, first = index.shape[-2], correction.first
    lowest_N = index.masked_fill(~mask, count).amin((0, -1)) + first
    found, limit = [], first + count + groups[-1][-1].stop
    for group in reversed(groups):
        found.append(limit)
        _, outer = shared_rows(slice(group[0].start, group[-1].stop), first, count)
        if outer.start < outer.stop:
            limit = min(limit, int(lowest_N[outer].amin()))
    return found[::-1]


def _correct(
    y_nHD: Tensor, patches: Patches, around: Neighbourhood, correction: Correction, *, keep: bool
) -> tuple[Tensor, Tensor]:
    """Correct outputs in place, and return their coefficients and their products with the axes, both (1, H, n)."""
    axis_nHD = directions(around, y_nHD.shape[1], patches.rows)[0].transpose(0, 1)
    dot_Hn = (y_nHD * axis_nHD).sum(-1).T
    norm_Hn = torch.linalg.vector_norm(y_nHD, dim=-1).T
    found = Alignment(axis_nHD.transpose(0, 1)[None], dot_Hn[None], norm_Hn[None])
    with torch.set_grad_enabled(keep):
        # somebody may keep what he is asked with
        y_shown = y_nHD.clone() if correction.at_once else y_nHD
        beta = correction.beta(y_shown.transpose(0, 1)[None], found, patches).to(y_nHD.dtype)
        if around.any_alone:
            beta = beta.masked_fill(around.alone[:, None, patches.rows, 0], 0)
    y_nHD.addcmul_(steps(beta[0].detach(), dot_Hn), axis_nHD, value=-1)
    return beta, dot_Hn[None]


def shared_rows(cut: slice, first: int, count: int) -> tuple[slice, slice]:
    """Which rows of a chunk are patches: counted within the chunk, and within the patches; perhaps none."""
    start, stop = max(cut.start, first), min(cut.stop, first + count)
    stop = max(start, stop)
    return slice(start - cut.start, stop - cut.start), slice(start - first, stop - first)


def steps(beta_Hn: Tensor, dot_Hn: Tensor) -> Tensor:
    """How far (n, H, 1) to go against the axis; an infinite output that is to stay as it is must not become NaN."""
    return torch.where(beta_Hn == 0, 0, beta_Hn * dot_Hn).T.contiguous().unsqueeze(-1)
