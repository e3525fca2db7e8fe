"""The fused gather-and-sum behind every neighbourhood mean, and the row chunks that keep its results in the cache.

Shape legend (this file): B batch, H heads, N patches, K neighbour slots, D head width, C channels = H D.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["Neighbourhood", "gather_sum", "neighbourhood", "neighbourhood_rows", "row_chunks", "safe_index"]

# Numbers of one chunk: a few of those fit a core's cache on a CPU; a GPU wants few launches and only needs a bound.
CHUNK_CPU = 1 << 19
CHUNK_ELSEWHERE = 1 << 26


def row_chunks(rows: int, numbers_per_row: int, device: torch.device) -> list[slice]:
    """Cut rows into chunks that fit the cache; one chunk while a program is traced, which may know no sizes."""
    if torch.compiler.is_compiling():
        return [slice(None)]
    numbers = CHUNK_CPU if device.type == "cpu" else CHUNK_ELSEWHERE
    at_once = max(1, numbers // max(numbers_per_row, 1))
    return [slice(first, min(first + at_once, rows)) for first in range(0, rows, at_once)]


def safe_index(index: Tensor, mask: Tensor) -> Tensor:
    """Return an index without -1: an empty slot names a neighbour that the row has anyway, row 0 where it has none.

    The kernel reads every slot. This way it reads, with weight zero, nothing that the row would not have read: what a
    patch holds that nobody sees, NaN included, reaches nobody. Rows without neighbours have to be cleared afterwards.
    """
    own = index.masked_fill(~mask, -1)
    return torch.where(mask, own, own.amax(-1, keepdim=True)).clamp(min=0)


def gather_sum(table: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """Return sum_k weight[n,k] table[index[n,k]] for table (R, C), index and weight (..., K): (..., C)."""
    # The kernel's fast path wants contiguous rows; it takes bags of equal size as two axes.
    flat = F.embedding_bag(index.flatten(0, -2), table, per_sample_weights=weight.flatten(0, -2), mode="sum")
    return flat.unflatten(0, index.shape[:-1])


class Neighbourhood(NamedTuple):
    """What the kernel needs to average any chunk of rows."""

    table: Tensor
    """(R, C), rows of the kernel."""
    position: Tensor
    """(B, N, K), rows of the table, all valid."""
    weight: Tensor
    """(B, N, K), zero in empty slots."""
    alone: Tensor
    """(B, N, 1), True without neighbours."""
    any_alone: bool
    """Whether there is such a row, if that costs nothing to know; else True."""


def neighbourhood_rows(around: Neighbourhood, rows: slice) -> Tensor:
    """Return the weighted means (B, n, C) of the neighbours of these rows."""
    mean = gather_sum(around.table, around.position[:, rows], around.weight[:, rows])
    return mean.masked_fill_(around.alone[:, rows], 0) if around.any_alone else mean


def neighbourhood(values_BHND: Tensor, acc: torch.dtype, index: Tensor, mask: Tensor, weight: Tensor) -> Neighbourhood:
    """Prepare weighted means sum_k w v / max(sum_k w, 1) over all heads at once.

    Args:
        values_BHND: Values; gradients flow if they need any.
        acc: dtype of the sums.
        index: (B, N, K), or (1, N, K) where the batch shares it.
        mask: Likewise.
        weight: Likewise.
    """
    batch = values_BHND.shape[0]
    table_RC, per_patch, per_element = _table(values_BHND.to(acc))
    index_BNK = safe_index(index, mask) * per_patch
    if batch > 1:
        index_BNK = index_BNK + per_element * torch.arange(batch, device=index.device)[:, None, None]
    filled = weight.to(acc).masked_fill(~mask, 0)
    weight_BNK = (filled / filled.sum(-1, keepdim=True).clamp(min=1)).expand(index_BNK.shape)
    alone_BN1 = ~mask.any(-1, keepdim=True)
    known = alone_BN1.device.type == "cpu" and not torch.compiler.is_compiling()
    return Neighbourhood(table_RC, index_BNK, weight_BNK, alone_BN1, bool(alone_BN1.any()) if known else True)


def _table(values_BHND: Tensor) -> tuple[Tensor, int, int]:
    """Return a contiguous table of patches with all heads in a row, and its rows per patch and per batch element.

    Values that are a third of a joint projection are not copied: their rows are every third of the whole.
    """
    batch, heads, rows, width = values_BHND.shape
    channels = heads * width
    of_batch, of_head, of_row, of_channel = values_BHND.stride()
    in_rows = of_channel == 1 and (heads == 1 or of_head == width) and of_row % channels == 0 and of_row > 0
    traced = torch.compiler.is_compiling() or values_BHND.requires_grad
    if traced or not in_rows or (batch > 1 and of_batch % channels) or values_BHND.numel() == 0:
        return values_BHND.transpose(1, 2).reshape(batch * rows, channels).contiguous(), 1, rows
    per_patch, per_element = of_row // channels, of_batch // channels if batch > 1 else 0
    size = (batch - 1) * per_element + (rows - 1) * per_patch + 1
    return values_BHND.as_strided((size, channels), (channels, 1)), per_patch, per_element
