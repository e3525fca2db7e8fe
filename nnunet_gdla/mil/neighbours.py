"""The neighbours of a slide's patches, found once on the CPU and handed to the models.

Shape legend (this file): N patches, D feature width, K neighbour slots.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from jaxtyping import Float, Int64, Num
from torch import Tensor

from nnunet_gdla.ops.neighbours import NeighbourGraph, Shell, Weighting, grid_neighbours, local_homogeneity

__all__ = ["CACHE_BYTES", "NeighbourCache", "NeighbourOptions", "Neighbours", "find_neighbours", "lattice_graph"]

# What the caches of all readers of a loader may hold together.
CACHE_BYTES: Final = 512 * 2**20


@dataclass(frozen=True)
class NeighbourOptions:
    """What a model wants to know: the window as for `grid_neighbours`, and whether it looks at the homogeneity."""

    window: int = 3
    shell: Shell = "cumulative"
    weighting: Weighting = "uniform"
    sigma: float | int = 1.0
    homogeneity: bool = True


class Neighbours(NamedTuple):
    """The graph of one slide, as a batch of one, and the homogeneity of its patches where a model wants it."""

    graph: NeighbourGraph
    homogeneity: Float[Tensor, "1 N"] | None

    def pin_memory(self) -> "Neighbours":
        """Return a copy that CUDA fetches faster."""
        graph = NeighbourGraph(*(part.pin_memory() for part in self.graph))
        return Neighbours(graph, None if self.homogeneity is None else self.homogeneity.pin_memory())

    @property
    def nbytes(self) -> int:
        """Memory of the tensors."""
        return sum(part.nbytes for part in (*self.graph, self.homogeneity) if part is not None)


def lattice_graph(
    coords: Num[Tensor, "N 2"],
    stride: float | int,
    lattices: Int64[Tensor, " N"] | None = None,
    *,
    window: int = 3,
    shell: Shell = "cumulative",
    weighting: Weighting = "uniform",
    sigma: float | int = 1.0,
) -> NeighbourGraph:
    """Return the graph of one slide (1, N, K): `grid_neighbours`, for every lattice by itself.

    Args:
        coords: Upper left corners.
        stride: Distance of neighbouring patches.
        lattices: Lattice of each patch where lattices overlap: patches of two are no neighbours. None: there is one.
        window: See `grid_neighbours`, as all that follow.
        shell: "cumulative" or "ring".
        weighting: "uniform", "gaussian" or "inverse_distance".
        sigma: Width of "gaussian".
    """
    if lattices is not None:
        # the same cells, each lattice moved out of the reach of the others
        cell = torch.div(coords.double(), stride, rounding_mode="floor").long()
        span = int(cell[:, 0].max() - cell[:, 0].min()) + window
        coords, stride = torch.stack([cell[:, 0] + lattices * span, cell[:, 1]], dim=1), 1
    return grid_neighbours(coords[None], stride, window=window, shell=shell, weighting=weighting, sigma=sigma)


def find_neighbours(
    features: Float[Tensor, "N D"],
    coords: Num[Tensor, "N 2"],
    stride: float,
    lattices: Int64[Tensor, " N"] | None,
    options: NeighbourOptions,
) -> Neighbours:
    """Return what a model with these options looks at; the same numbers as it would find itself, on the CPU."""
    graph = lattice_graph(
        coords,
        stride,
        lattices,
        window=options.window,
        shell=options.shell,
        weighting=options.weighting,
        sigma=options.sigma,
    )
    return Neighbours(graph, local_homogeneity(features[None], graph) if options.homogeneity else None)


class NeighbourCache:
    """Neighbours of slides by number, up to a size; those that were used least recently go."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.nbytes = 0
        self._kept: OrderedDict[int, Mapping[NeighbourOptions, Neighbours]] = OrderedDict()

    def get(
        self, number: int, find: Callable[[], Mapping[NeighbourOptions, Neighbours]]
    ) -> Mapping[NeighbourOptions, Neighbours]:
        """Return what is kept of a slide, or find it and keep it where it fits."""
        if number in self._kept:
            self._kept.move_to_end(number)
            return self._kept[number]
        found = find()
        size = _size(found)
        if size <= self.most_bytes:
            while self.nbytes + size > self.most_bytes:
                self.nbytes -= _size(self._kept.popitem(last=False)[1])
            self._kept[number] = found
            self.nbytes += size
        return found

    def __len__(self) -> int:
        return len(self._kept)


def _size(found: Mapping[NeighbourOptions, Neighbours]) -> int:
    return sum(each.nbytes for each in found.values())
