"""Neighbour graphs of the patches of a slide.

Shape legend (this file): B batch, N patches, K neighbour slots, C coordinate columns of which the first two are used.
"""

from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nnunet_gdla.ops._graph import NeighbourGraph as NeighbourGraph
from nnunet_gdla.ops._lattice import cells, first_in_cell, nearest_rows, slot_weights, window_offsets
from nnunet_gdla.ops.homogeneity import local_homogeneity as local_homogeneity

__all__ = [
    "NeighbourGraph",
    "Shell",
    "Weighting",
    "grid_neighbours",
    "local_homogeneity",
    "nearest_neighbours",
    "shuffled",
]

Shell = Literal["cumulative", "ring"]
Weighting = Literal["uniform", "gaussian", "inverse_distance"]


def grid_neighbours(
    coords: Int[Tensor, "*B N C"] | Float[Tensor, "*B N C"],
    stride: float | int,
    *,
    window: int = 3,
    shell: Shell = "cumulative",
    weighting: Weighting = "uniform",
    sigma: float | int = 1.0,
    mask: Bool[Tensor, "*B N"] | None = None,
) -> NeighbourGraph:
    r"""Find the patches in the cells around each patch's own cell, $\lfloor x / s \rfloor$ per axis.

    Slots are the offsets (dx, dy) of the window, dx outer, dy inner, both ascending, without the centre. Of several
    patches in one cell the first row is found; the others look up their neighbours but are seen by nobody.

    Args:
        coords: Upper left corners of the patches, integers or floats, any sign.
        stride: Distance s of neighbouring patches in units of `coords`.
        window: Odd edge of the window in cells: 3, 5, 7, ... hold 8, 24, 48, ... slots.
        shell: "cumulative" takes the whole window, "ring" its outermost cells only.
        weighting: "uniform" 1, "gaussian" exp(-d^2 / (2 sigma^2)), "inverse_distance" 1 / d, with d in cells.
        sigma: Width of "gaussian" in cells.
        mask: True for patches that take part; others have no neighbours and are nobody's. None: all take part.

    Returns:
        Slots (..., N, K) on the device of `coords`, weights float32.

    Raises:
        ValueError: If stride or sigma is not positive, the window even or below 3, coordinates are not finite, or a
            choice is unknown.

    Numerics: the floor is exact, also for a stride that is no integer (in float64) and for negative coordinates.
    Cost: one table over the bounding box, O(N K); sorted keys where the box is much larger than N.
    Reference: `grid_neighbours_naive` in tests/reference; slots of patches on a regular lattice do not depend on the
        order of rows other than by their numbers.
    """
    _check_coords(coords, mask)
    _check_weighting(weighting, sigma)
    if shell not in get_args(Shell):
        raise ValueError(f"unknown shell {shell!r}; choose one of {', '.join(map(repr, get_args(Shell)))}")
    if window < 3 or window % 2 == 0:
        raise ValueError(f"window must be odd and at least 3, got {window}")
    offsets = window_offsets(window, ring=shell == "ring")
    if coords.is_meta:  # shapes alone
        index = coords.new_empty((*coords.shape[:-1], len(offsets)), dtype=torch.int64)
        return NeighbourGraph(index, index.bool(), index.float())
    distance = torch.tensor(offsets, dtype=torch.float64).norm(dim=-1)
    slot_K = slot_weights(distance, weighting, sigma).to(coords.device, torch.float32)
    found = [first_in_cell(*element, offsets) for element in _elements(cells(coords, stride), mask)]
    return _graph(coords, mask, [(rows_NK, slot_K.expand(rows_NK.shape)) for rows_NK in found], len(offsets))


def nearest_neighbours(
    coords: Int[Tensor, "*B N C"] | Float[Tensor, "*B N C"],
    stride: float | int,
    k: int,
    *,
    weighting: Weighting = "uniform",
    sigma: float | int = 1.0,
    mask: Bool[Tensor, "*B N"] | None = None,
) -> NeighbourGraph:
    """Find the k nearest other patches, whatever lies between: for bags of which few patches were kept.

    Args:
        coords: Upper left corners of the patches.
        stride: Unit of distances, in units of `coords`.
        k: Slots; those beyond the number of other patches stay empty.
        weighting: As for `grid_neighbours`, with real distances. Patches on the same spot, whose inverse distance would
            be infinite, count as one `stride` apart there.
        sigma: Width of "gaussian" in strides.
        mask: True for patches that take part; others have no neighbours and are nobody's. None: all take part.

    Returns:
        Slots (..., N, k), nearest first, of equally near ones the first row first.

    Raises:
        ValueError: If stride, sigma or k is not positive, coordinates are not finite, or a choice is unknown.

    Numerics: distances are compared in float64, squared, before the division by `stride`.
    Cost: rows are compared with those in a strip around them, about O(N^1.5 k) time for patches on a lattice and
        O(N^2) at worst; O(N k) memory beside a chunk.
    Reference: `nearest_neighbours_naive` in tests/reference.
    """
    _check_coords(coords, mask)
    _check_weighting(weighting, sigma)
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    cells(coords, stride)  # refuses the same strides and coordinates
    found = [nearest_rows(*element, k) for element in _elements(coords[..., :2].double(), mask)]
    weights = [slot_weights(squared.sqrt() / stride, weighting, sigma).float() for _, squared in found]
    return _graph(coords, mask, [(rows_NK, weight) for (rows_NK, _), weight in zip(found, weights, strict=True)], k)


def shuffled(graph: NeighbourGraph, seed: int) -> NeighbourGraph:
    """Return a control with the same slots filled by other patches, drawn without replacement from all other rows.

    Args:
        graph: Any graph; for a batch every element is drawn with the same seed, as if it were alone.
        seed: Of numpy's `default_rng`, as in published runs (there run seed plus the slide's place in its split).

    Returns:
        A graph with the mask and weights of `graph`.

    Raises:
        ValueError: If a patch has more neighbours than there are other patches.

    Numerics: row by row, so that the draw of a row depends on the filled slots of the rows before it.
    Reference: the golden vectors; `shuffled_naive` in tests/reference.
    """
    import numpy as np

    masks = graph.mask.cpu()
    most, rows = int(graph.count.max()) if masks.numel() else 0, masks.shape[-2]
    if most > max(rows - 1, 0):
        raise ValueError(f"a patch has {most} neighbours, but there are only {rows - 1} other patches")
    drawn = torch.full(masks.shape, -1)
    elements = [(drawn, masks)] if masks.ndim == 2 else zip(drawn, masks, strict=True)
    for index_NK, mask_NK in elements:
        generator = np.random.default_rng(seed)
        counts = mask_NK.sum(-1).tolist()
        # among the others, numbered without the row itself
        places = [torch.from_numpy(generator.choice(rows - 1, size=n, replace=False)) for n in counts if n]
        if places:
            place = torch.cat(places)
            own = torch.arange(rows).repeat_interleave(torch.tensor(counts))
            index_NK[mask_NK] = place + (place >= own)
    return graph._replace(index=drawn.to(graph.index.device))


def _elements(places: Tensor, mask: Tensor | None) -> list[tuple[Tensor, Tensor | None]]:
    """Return the places and mask of each batch element; none where there is nothing to look up."""
    if places.numel() == 0:
        return []
    if places.ndim == 2:
        return [(places, mask)]
    return [(element, None if mask is None else mask[number]) for number, element in enumerate(places)]


def _graph(coords: Tensor, mask: Tensor | None, elements: list[tuple[Tensor, Tensor]], slots: int) -> NeighbourGraph:
    """Put the batch elements' found rows and weights together and clear what is not there."""
    shape, rows = (*coords.shape[:-1], slots), coords.shape[-2]
    if elements:
        found, weight = (torch.stack(parts).reshape(shape) for parts in zip(*elements, strict=True))
    else:
        found = torch.zeros(shape, dtype=torch.int64, device=coords.device)
        weight = torch.zeros(shape, device=coords.device)
    filled = found < rows if mask is None else (found < rows) & mask.unsqueeze(-1)
    return NeighbourGraph(found.masked_fill(~filled, -1), filled, weight.masked_fill(~filled, 0))


def _check_coords(coords: Tensor, mask: Tensor | None) -> None:
    if coords.ndim not in (2, 3) or coords.shape[-1] < 2:
        raise ValueError(f"coords {tuple(coords.shape)} must be (N, 2) or (B, N, 2); more columns are not read")
    if mask is not None and (mask.shape != coords.shape[:-1] or mask.dtype != torch.bool):
        raise ValueError(
            f"mask {tuple(mask.shape)} {mask.dtype} must be {tuple(coords.shape[:-1])} torch.bool, True for patches "
            "that take part"
        )


def _check_weighting(weighting: Weighting, sigma: float | int) -> None:
    if weighting not in get_args(Weighting):
        known = ", ".join(map(repr, get_args(Weighting)))
        raise ValueError(f"unknown weighting {weighting!r}; choose one of {known}")
    if not 0 < sigma < float("inf"):
        raise ValueError(f"sigma must be a positive number of cells, got {sigma}")
