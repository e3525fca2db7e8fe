"""The neighbour graph and its fit to the tensors it is used with."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

__all__ = ["NeighbourGraph", "graph_for"]


class NeighbourGraph(NamedTuple):
    """Who is a neighbour of whom: K slots a patch, empty ones hold -1, False and weight 0.

    `index` counts rows within the batch element, in the order in which the patches were given.
    """

    index: Int64[Tensor, "*B N K"]  # type: ignore[assignment] # a tuple's own `index` is of no use here
    mask: Bool[Tensor, "*B N K"]
    weight: Float[Tensor, "*B N K"]

    @property
    def count(self) -> Int64[Tensor, "*B N"]:  # type: ignore[override]
        """Filled slots per patch, not weighted."""
        return self.mask.sum(-1)

    def to(self, device: torch.device | str) -> "NeighbourGraph":
        """Return the graph on another device."""
        return NeighbourGraph(self.index.to(device), self.mask.to(device), self.weight.to(device))

    def part(self, element: int, rows: slice) -> "NeighbourGraph":
        """Return some rows of one batch element; their `index` still counts from the element's first row."""
        shared = self.index.ndim == 2 or len(self.index) == 1
        cut = (..., rows, slice(None)) if shared else (slice(element, element + 1), rows)
        return NeighbourGraph(self.index[cut], self.mask[cut], self.weight[cut])


def graph_for(graph: NeighbourGraph, shape: torch.Size | tuple[int, ...]) -> NeighbourGraph:
    """Return the graph with a batch axis, 1 where it is shared.

    Raises:
        ValueError: If it is not one of a batch (B, N) or of N patches as `shape` says.
    """
    *batch, rows = shape
    sizes = tuple(graph.index.shape)
    if not graph.index.shape == graph.mask.shape == graph.weight.shape:
        parts = ", ".join(f"{name} {tuple(part.shape)}" for name, part in zip(graph._fields, graph, strict=True))
        raise ValueError(f"the parts of the graph must have one shape: {parts}")
    if len(sizes) not in (2, 3) or sizes[-2] != rows or (len(sizes) == 3 and list(sizes[:1]) != batch):
        wanted = " or ".join(str((*lead, rows, "K")) for lead in ([], batch) if lead == [] or batch)
        raise ValueError(f"graph {sizes} does not fit patches {tuple(shape)}; it must be {wanted}")
    return graph if len(sizes) == 3 else NeighbourGraph(*(part.unsqueeze(0) for part in graph))
