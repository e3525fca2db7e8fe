"""How alike the features of neighbouring patches are.

Shape legend (this file): B batch, N patches, K neighbour slots, D feature width.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from nnunet_gdla.ops._gather import gather_sum, row_chunks, safe_index
from nnunet_gdla.ops._graph import NeighbourGraph, graph_for

__all__ = ["local_homogeneity"]

# Numbers of a part of the features that are held in full precision at once.
FEATURES_AT_ONCE = 1 << 24
SMALLEST_NORM = 1e-12


@torch.no_grad()
def local_homogeneity(features: Float[Tensor, "*B N D"], graph: NeighbourGraph) -> Float[Tensor, "*B N"]:
    r"""Average the cosine of each patch's features with those of its neighbours.

    $$h_i = \frac{1}{|N(i)|} \sum_{j \in N(i)} \cos(x_i, x_j)
          = \Big\langle \frac{x_i}{|x_i|},\ \frac{1}{|N(i)|} \sum_{j \in N(i)} \frac{x_j}{|x_j|} \Big\rangle,$$

    0 without neighbours. The weights of the slots are not used.

    Args:
        features: Of the frozen encoder, any floating dtype.
        graph: (N, K), then shared by the batch, or (B, N, K).

    Returns:
        float32 (float64 for float64 features), without gradient.

    Raises:
        ValueError: If the sizes of features and graph do not fit.

    Numerics: a norm below 1e-12 counts as 1e-12, so that a zero feature has cosine 0. Features that nobody sees, NaN
        included, reach nobody.
    Cost: O(N K D) time. The right-hand form needs no (N, K, D) array; columns are taken to float32 in chunks.
    Reference: `local_homogeneity_naive` in tests/reference.
    """
    graph = graph_for(graph, features.shape[:-1])
    acc = torch.promote_types(features.dtype, torch.float32)
    x_BND = features if features.ndim == 3 else features.unsqueeze(0)
    index, mask = (part.expand(x_BND.shape[0], -1, -1) for part in (graph.index, graph.mask))
    each = [_homogeneity(*element, acc) for element in zip(x_BND, index, mask, strict=True) if features.numel()]
    return torch.stack(each).reshape(features.shape[:-1]) if each else x_BND.new_zeros(features.shape[:-1], dtype=acc)


def _homogeneity(x_ND: Tensor, index: Tensor, mask: Tensor, acc: torch.dtype) -> Tensor:
    rows = x_ND.shape[0]
    inverse = _norms(x_ND, acc).clamp(min=SMALLEST_NORM).reciprocal()
    safe_NK, count_N1 = safe_index(index, mask), mask.sum(-1, keepdim=True)
    weight_NK = (inverse[safe_NK] * inverse[:, None] / count_N1.clamp(min=1)).masked_fill(~mask, 0)
    total = x_ND.new_zeros(rows, dtype=acc)
    for part_ND in _column_chunks(x_ND, acc):
        for part in row_chunks(rows, part_ND.shape[1], x_ND.device):
            total[part] += gather_sum(part_ND, safe_NK[part], weight_NK[part]).mul_(part_ND[part]).sum(-1)
    return total.masked_fill(count_N1[:, 0] == 0, 0)


def _norms(x_ND: Tensor, acc: torch.dtype) -> Tensor:
    rows, width = x_ND.shape
    # copied first: the norm of half precision in one step is many times slower
    parts = (x_ND[part].to(acc) for part in row_chunks(rows, width, x_ND.device))
    return torch.cat([torch.linalg.vector_norm(part, dim=-1) for part in parts])


def _column_chunks(x_ND: Tensor, acc: torch.dtype) -> Iterator[Tensor]:
    """Give the features as they are, or as many columns in full precision as may be held at once, in one buffer."""
    if x_ND.dtype == acc and x_ND.is_contiguous():
        yield x_ND
        return
    rows = x_ND.shape[0]
    step = min(max(FEATURES_AT_ONCE // max(rows, 1), 64) // 16 * 16, 256)
    buffer = x_ND.new_empty(rows * step, dtype=acc)
    for columns in x_ND.split(step, dim=1):
        yield buffer[: columns.numel()].view(columns.shape).copy_(columns)
