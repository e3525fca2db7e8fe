"""Which patches are kept where a slide has more than a cap allows.

Shape legend (this file): N patches, M kept.
"""

import numpy as np
import torch
from jaxtyping import Int64, Num
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["cap_rows", "random_rows"]


def cap_rows(coords: Num[Tensor, "N _"] | NDArray[np.generic], cap: int) -> Int64[Tensor, " M"]:
    """Return `cap` rows spread evenly over the slide in coordinate order; all rows in file order where they fit.

    Rows are sorted by x, then y, then their place in the file; positions floor(linspace(0, N - 1, cap)) are kept, in
    this order.

    Raises:
        ValueError: If the cap is below 1.
    """
    if cap < 1:
        raise ValueError(f"a cap of {cap} patches keeps nothing; give at least 1")
    xy = np.asarray(coords)
    if len(xy) <= cap:
        return torch.arange(len(xy))
    order = np.lexsort((xy[:, 1], xy[:, 0]))
    return torch.from_numpy(order[np.floor(np.linspace(0, len(xy) - 1, cap)).astype(np.int64)])


def random_rows(rows: int, cap: int, *, seed: int, key: str) -> Int64[Tensor, " M"]:
    """Return `cap` of the rows drawn without replacement, in file order; the same ones for the same seed and key.

    Raises:
        ValueError: If the cap is below 1.
    """
    if cap < 1:
        raise ValueError(f"a cap of {cap} patches keeps nothing; give at least 1")
    if rows <= cap:
        return torch.arange(rows)
    name = key.encode()
    generator = np.random.default_rng(np.random.SeedSequence([seed, cap, rows, len(name), *name]))
    return torch.from_numpy(np.sort(generator.choice(rows, cap, replace=False)).astype(np.int64))
