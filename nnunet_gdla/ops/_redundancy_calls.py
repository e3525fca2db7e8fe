"""What the two operators of Gated SRP take and return, and small examples by which their kernels are checked.

Shape legend (this file): B batch, H heads, N patches, L rows of which N are patches, D head width, K neighbour slots.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from nnunet_gdla.ops._graph import NeighbourGraph

__all__ = [
    "Alignment",
    "AlignmentCall",
    "CorrectionCall",
    "alignment_example",
    "correction_example",
    "redundancy_key",
]

PATCHES = 37


class Alignment(NamedTuple):
    """How outputs lie to the unit vector of their neighbours' mean value; none of it carries gradients."""

    axis: Float[Tensor, "B H N D"]
    """The unit vectors, zero without neighbours."""
    dot: Float[Tensor, "B H N"]
    """Products of the outputs with them."""
    norm: Float[Tensor, "B H N"]
    """Lengths of the outputs."""


class AlignmentCall(NamedTuple):
    """Arguments of `alignment`."""

    y: Tensor
    v: Tensor
    graph: NeighbourGraph


class CorrectionCall(NamedTuple):
    """Arguments of `correction`."""

    y: Tensor
    found: Alignment
    beta: Tensor
    v: Tensor
    graph: NeighbourGraph
    first: int = 0


def redundancy_key(call: AlignmentCall | CorrectionCall) -> tuple[Any, ...]:
    """Return what the kernels are compiled for: device, dtypes, heads, width, slots."""
    y, device = call.y, call.y.device
    sizes = int(y.shape[1]), int(y.shape[3]), int(call.graph.index.shape[-1])
    return (
        device.type,
        device.index or 0,
        y.dtype,
        *sizes,
        call.beta.dtype if isinstance(call, CorrectionCall) else None,
    )


def alignment_example(call: AlignmentCall) -> AlignmentCall:
    """An odd number of patches, some of them without neighbours."""
    generator = torch.Generator().manual_seed(0)
    y, v = (_random(generator, part, 2, part.shape[1], PATCHES, part.shape[3]) for part in (call.y, call.v))
    return AlignmentCall(y, v, _graph(generator, call.graph))


def correction_example(call: CorrectionCall) -> CorrectionCall:
    """Likewise, with rows before and after the patches."""
    generator = torch.Generator().manual_seed(0)
    rows = call.first + PATCHES + 2
    y, v = (_random(generator, part, 2, part.shape[1], rows, part.shape[3]) for part in (call.y, call.v))
    graph = _graph(generator, call.graph)
    patches = slice(call.first, call.first + PATCHES)
    found = _aligned(y[:, :, patches].double(), v[:, :, patches].double(), graph)
    found = Alignment(*(part.to(torch.promote_types(y.dtype, torch.float32)) for part in found))
    beta = _random(generator, call.beta, 2, y.shape[1], PATCHES)
    return call._replace(y=y, found=found, beta=beta, v=v, graph=graph)


def _random(generator: torch.Generator, like: Tensor, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(like.device, like.dtype)


def _graph(generator: torch.Generator, like: NeighbourGraph) -> NeighbourGraph:
    shape = (PATCHES, like.index.shape[-1])
    mask = torch.rand(shape, generator=generator) < 0.7
    mask[0] = False
    index = torch.randint(0, PATCHES, shape, generator=generator).masked_fill(~mask, -1)
    weight = torch.rand(shape, generator=generator).masked_fill(~mask, 0)
    return NeighbourGraph(index, mask, weight.to(like.weight.dtype)).to(like.index.device)


def _aligned(y: Tensor, v: Tensor, graph: NeighbourGraph) -> Alignment:
    """The alignment by its definition, with an array of all neighbours."""
    weight = graph.weight.to(v.dtype)
    mean = (v[:, :, graph.index.clamp(min=0)] * weight.unsqueeze(-1)).sum(-2)
    mean = mean / weight.sum(-1).clamp(min=1).unsqueeze(-1)
    axis = mean / mean.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    return Alignment(axis, (y * axis).sum(-1), y.norm(dim=-1))
