"""Memory of some megabytes that is asked for again and again."""

from functools import cache

import torch

__all__ = ["steady_heap"]

# Just below the largest size that glibc adapts to.
BYTES = 31 << 20


@cache
def steady_heap() -> None:
    """Let the C library keep what a fused form frees, once per process.

    glibc maps blocks above a threshold anew each time, and hands back the end of its heap beyond twice that threshold.
    For a few megabytes that means a page fault for every 4 kB written, which costs more than computing them. It raises
    the threshold to the size of a block that is freed; this one is never written to. Other libraries are not moved.
    """
    torch.empty(BYTES, dtype=torch.uint8)
