"""Neighbour graphs and homogeneity straight from their definitions: loops over patches, exact fractions."""

import math
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

__all__ = ["grid_neighbours_naive", "local_homogeneity_naive", "nearest_neighbours_naive", "shuffled_naive"]

Slots = tuple[Tensor, Tensor, Tensor]


def grid_neighbours_naive(
    coords: Tensor,
    stride: float,
    *,
    window: int = 3,
    shell: str = "cumulative",
    weighting: str = "uniform",
    sigma: float = 1.0,
) -> Slots:
    cells = [tuple(math.floor(Fraction(x) / Fraction(stride)) for x in row[:2]) for row in coords.tolist()]
    first: dict[tuple[int, ...], int] = {}
    for row, cell in enumerate(cells):
        first.setdefault(cell, row)
    reach = (window - 1) // 2
    window_cells = [(dx, dy) for dx in range(-reach, reach + 1) for dy in range(-reach, reach + 1)]
    offsets = [
        (dx, dy)
        for dx, dy in window_cells
        if (dx, dy) != (0, 0) and (shell == "cumulative" or max(abs(dx), abs(dy)) == reach)
    ]
    index = [[first.get((x + dx, y + dy), -1) for dx, dy in offsets] for x, y in cells]
    distance = torch.tensor([math.hypot(dx, dy) for dx, dy in offsets], dtype=torch.float64).expand(len(cells), -1)
    return _slots(torch.tensor(index).reshape(len(cells), len(offsets)), distance, weighting, sigma)


def nearest_neighbours_naive(
    coords: Tensor, stride: float, k: int, *, weighting: str = "uniform", sigma: float = 1.0
) -> Slots:
    points = [tuple(map(Fraction, row[:2])) for row in coords.tolist()]
    index = torch.full((len(points), k), -1)
    distance = torch.ones(len(points), k, dtype=torch.float64)
    for i, (x, y) in enumerate(points):
        others = sorted(((x - u) ** 2 + (y - w) ** 2, j) for j, (u, w) in enumerate(points) if j != i)
        for slot, (squared, j) in enumerate(others[:k]):
            index[i, slot] = j
            distance[i, slot] = math.sqrt(squared) / stride
    return _slots(index, distance, weighting, sigma)


def shuffled_naive(index: Tensor, mask: Tensor, seed: int) -> Tensor:
    generator = np.random.default_rng(seed)
    drawn = torch.full_like(index, -1)
    everybody = np.arange(len(index))
    for i in range(len(index)):
        count = int(mask[i].sum())
        if count:
            drawn[i, mask[i]] = torch.from_numpy(generator.choice(np.delete(everybody, i), size=count, replace=False))
    return drawn


def local_homogeneity_naive(features: Tensor, index: Tensor, mask: Tensor) -> Tensor:
    unit = [row / max(float(row.norm()), 1e-12) for row in features.double()]
    out = torch.zeros(len(features), dtype=torch.float64)
    for i in range(len(features)):
        neighbours = [int(j) for j, there in zip(index[i], mask[i], strict=True) if there]
        if neighbours:
            out[i] = sum(float(unit[i] @ unit[j]) for j in neighbours) / len(neighbours)
    return out


def _slots(index: Tensor, distance: Tensor, weighting: str, sigma: float) -> Slots:
    mask = index >= 0
    weight = {
        "uniform": torch.ones_like(distance),
        "gaussian": torch.exp(-(distance**2) / (2 * sigma**2)),
        "inverse_distance": 1 / distance,
    }[weighting]
    return index, mask, weight.float() * mask
