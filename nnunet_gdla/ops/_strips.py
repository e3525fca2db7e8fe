"""Strips of rows of an image: what a convolution over a large image touches at once fits the cache.

Beyond 32 MB the C library maps memory anew at every call, and a page fault for every 4 kB costs more than the sums.
"""

from typing import NamedTuple

__all__ = ["Strip", "strips", "wants_strips"]

# Bytes of the widest tensor of all tokens from which strips are faster.
LARGE_BYTES = 8 * 2**20
# Rows of a strip for each row that it shares with a neighbour.
LEAST_ROWS = 24


class Strip(NamedTuple):
    """Some rows of an image whose tokens lie in raster order."""

    tokens: slice
    """Of the image, those of the strip."""
    around: slice
    """Of the image, with the rows that a convolution of the strip looks at."""
    within: slice
    """Those of the strip, counted within `around`."""
    grid: tuple[int, int]
    """Rows and columns of `around`."""


def wants_strips(tokens: int, channels: int, element_size: int) -> bool:
    """Whether tensors of so many channels are large."""
    return tokens * channels * element_size > LARGE_BYTES


def strips(grid: tuple[int, int], kernel: int, row_bytes: int) -> list[Strip]:
    """Cut an image for a convolution with an odd kernel; zero padding at the cuts reaches only rows that are left out.

    Args:
        grid: Rows and columns.
        kernel: Edge of the convolution.
        row_bytes: Of the widest tensor, in one row of the image.
    """
    height, width = grid
    halo = kernel // 2
    at_once = max(LEAST_ROWS * halo, LARGE_BYTES // (2 * row_bytes), 1)
    found = []
    for first in range(0, height, at_once):
        last = min(first + at_once, height)
        begin, end = max(first - halo, 0), min(last + halo, height)
        within = slice((first - begin) * width, (last - begin) * width)
        around = slice(begin * width, end * width)
        found.append(Strip(slice(first * width, last * width), around, within, (end - begin, width)))
    return found
