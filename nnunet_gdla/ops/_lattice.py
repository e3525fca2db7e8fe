"""Cells of patches and the look-up of a cell's first patch.

Shape legend (this file): N patches, K neighbour slots.
"""

import torch
from torch import Tensor

__all__ = ["cells", "first_in_cell", "nearest_rows", "slot_weights", "window_offsets"]

# A table over the bounding box may have this many entries a patch, before the sorted keys take over.
TABLE_ENTRIES_PER_PATCH = 32
SMALL_TABLE = 1 << 16
LARGEST_CELL = 2.0**62
# Entries of the distance matrix that are held at once.
DISTANCES_AT_ONCE = 1 << 22
ROWS_AT_ONCE = 512


def cells(coords: Tensor, stride: float | int) -> Tensor:
    """Return floor(coords / stride) of the first two columns as int64, exactly.

    Raises:
        ValueError: If the stride is not a positive number, or coordinates are not finite or beyond int64.
    """
    if not 0 < stride < float("inf"):
        raise ValueError(f"stride must be a positive number, got {stride}")
    xy = coords[..., :2]
    if not xy.is_floating_point():
        xy = xy.to(torch.int64)
        if stride == int(stride):
            return torch.div(xy, int(stride), rounding_mode="floor")
    exact = xy.double()
    if not torch.isfinite(exact).all():
        row = (~torch.isfinite(exact)).any(-1).nonzero()[0].tolist()
        raise ValueError(f"coords must be finite, row {row[-1] if len(row) == 1 else tuple(row)} is not")
    # torch's floor division of floats is built on the exact remainder, as Python's is; floor(x / s) is not.
    cell = torch.div(exact, float(stride), rounding_mode="floor")
    if (cell.abs() >= LARGEST_CELL).any():
        raise ValueError(f"coords / stride must stay below 2^62, the largest is {cell.abs().max().item():.3g}")
    return cell.to(torch.int64)


def window_offsets(window: int, ring: bool) -> list[tuple[int, int]]:
    """Return the offsets (dx, dy) around a cell, dx outer, both ascending, without the centre."""
    reach = window // 2
    steps = range(-reach, reach + 1)
    offsets = [(dx, dy) for dx in steps for dy in steps if (dx, dy) != (0, 0)]
    return [(dx, dy) for dx, dy in offsets if not ring or max(abs(dx), abs(dy)) == reach]


def first_in_cell(cell: Tensor, takes_part: Tensor | None, offsets: list[tuple[int, int]]) -> Tensor:
    """Return for every patch and offset the first row whose cell lies there; N where there is none.

    Args:
        cell: (N, 2) int64, at least one patch.
        takes_part: (N) bool; other rows are not found. They still look up: the caller clears them.
        offsets: K steps in cells.

    Returns:
        (N, K) int64.
    """
    reach = max(max(abs(dx), abs(dy)) for dx, dy in offsets)
    rows = cell.shape[0]
    xy, spans = _from_zero(cell, reach)
    entries = (spans[0] + 2 * reach) * (spans[1] + 2 * reach)
    largest = max(TABLE_ENTRIES_PER_PATCH * rows, SMALL_TABLE)
    if entries > largest:  # far apart fragments: nothing changes when the gaps between them shrink
        xy, spans = _without_gaps(cell, reach)
        entries = (spans[0] + 2 * reach) * (spans[1] + 2 * reach)
    width = spans[1] + 2 * reach
    key = (xy[:, 0] + reach) * width + xy[:, 1] + reach
    wanted = key[:, None] + torch.tensor([dx * width + dy for dx, dy in offsets], device=cell.device)
    row = torch.arange(rows, device=cell.device)
    if takes_part is not None:
        key, row = key[takes_part], row[takes_part]
    look_up = _from_table if entries <= largest else _from_sorted
    return look_up(key, row, wanted, entries, rows)


def _from_zero(cell: Tensor, reach: int) -> tuple[Tensor, list[int]]:
    """Cells relative to the corner of their bounding box, and its edges; zeros where those would not fit int64."""
    lowest, highest = cell.amin(0), cell.amax(0)
    spans = [high - low + 1 for low, high in zip(lowest.tolist(), highest.tolist(), strict=True)]
    return cell - lowest, spans


def _without_gaps(cell: Tensor, reach: int) -> tuple[Tensor, list[int]]:
    """Cells whose empty columns and rows are cut to `reach` + 1 a gap, which no offset can span."""
    axes, spans = [], []
    for axis in range(2):
        values, position = torch.unique(cell[:, axis], return_inverse=True)
        gap = values.diff()
        # sorted values differ by at least 1: what is not positive has left int64, so it is far
        gap = torch.where((gap < 1) | (gap > reach), reach + 1, gap)
        placed = torch.cat([gap.new_zeros(1), gap.cumsum(0)])
        axes.append(placed[position])
        spans.append(int(placed[-1]) + 1)
    return torch.stack(axes, dim=1), spans


def _from_table(key: Tensor, row: Tensor, wanted: Tensor, entries: int, nobody: int) -> Tensor:
    # The smallest row wins: what writing in reverse order would leave, but with a defined result on every device.
    table = torch.full((entries,), nobody, dtype=torch.int64, device=key.device)
    table.scatter_reduce_(0, key, row, "amin")
    return table.index_select(0, wanted.flatten()).reshape(wanted.shape)


def _from_sorted(key: Tensor, row: Tensor, wanted: Tensor, entries: int, nobody: int) -> Tensor:
    if key.numel() == 0:
        return torch.full_like(wanted, nobody)
    ordered, order = torch.sort(key, stable=True)
    place = torch.searchsorted(ordered, wanted).clamp(max=len(ordered) - 1)
    return torch.where(ordered[place] == wanted, row[order][place], nobody)


def slot_weights(distance: Tensor, weighting: str, sigma: float | int) -> Tensor:
    """Return the weight of a neighbour at this distance in cells."""
    if weighting == "gaussian":
        return torch.exp(-(distance**2) / (2 * sigma**2))
    if weighting == "inverse_distance":
        return 1 / torch.where(distance > 0, distance, 1.0)
    return torch.ones_like(distance)


def nearest_rows(xy: Tensor, takes_part: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """Return the k nearest other rows, nearest first, of equally near ones the first; N where there are not so many.

    Args:
        xy: (N, 2) float64.
        takes_part: (N) bool; other rows are not found and find nobody.
        k: At least 1.

    Returns:
        Rows (N, k) int64 and squared distances (N, k), infinite where there is no row.
    """
    rows = xy.shape[0]
    found = torch.full((rows, k), rows, device=xy.device)
    squared = torch.full((rows, k), torch.inf, dtype=xy.dtype, device=xy.device)
    here = torch.arange(rows, device=xy.device) if takes_part is None else takes_part.nonzero()[:, 0]
    order = here[xy[here, 0].argsort(stable=True)]
    for first in range(0, len(order), ROWS_AT_ONCE):
        asking = order[first : first + ROWS_AT_ONCE]
        around = order[max(first - ROWS_AT_ONCE, 0) : first + 2 * ROWS_AT_ONCE]
        candidates = _within_reach(xy, order, asking, _farthest(xy, asking, around, k))
        for part in asking.split(max(1, DISTANCES_AT_ONCE // len(candidates))):
            near, column = _smallest(_squared(xy, part, candidates), min(k, len(candidates)))
            slots = near.shape[1]
            squared[part, :slots] = near
            found[part, :slots] = torch.where(near < torch.inf, candidates[column], rows)
    return found, squared


def _squared(xy: Tensor, asking: Tensor, others: Tensor) -> Tensor:
    """Return squared distances of rows to rows, infinite to themselves."""
    apart = (xy[asking, None, 0] - xy[others, 0]).square_() + (xy[asking, None, 1] - xy[others, 1]).square_()
    return apart.masked_fill_(asking[:, None] == others, torch.inf)


def _farthest(xy: Tensor, asking: Tensor, around: Tensor, k: int) -> Tensor:
    """Return a distance within which every asking row has k others; infinite if there are not so many around."""
    if len(around) <= k:
        return xy.new_tensor(torch.inf)
    return _squared(xy, asking, around).topk(k, largest=False).values.max().sqrt()


def _within_reach(xy: Tensor, order: Tensor, asking: Tensor, distance: Tensor) -> Tensor:
    """Return, by number, the rows whose x is that near to those of the asking rows; `order` sorts rows by x."""
    x, reach = xy[order, 0].contiguous(), distance * (1 + 1e-9)
    edges = torch.stack([xy[asking[0], 0] - reach, xy[asking[-1], 0] + reach])
    low, _ = torch.searchsorted(x, edges).tolist()
    _, high = torch.searchsorted(x, edges, right=True).tolist()
    return order[low:high].sort().values


def _smallest(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k smallest of each row in order and their columns, of equal ones the first columns."""
    largest = values.topk(k, largest=False).values[:, -1:]
    below, equal = values < largest, values == largest
    missing = k - below.sum(-1, keepdim=True)
    column = (below | (equal & (equal.cumsum(-1) <= missing))).nonzero()[:, 1].reshape(-1, k)
    chosen, order = values.gather(1, column).sort(stable=True)
    return chosen, column.gather(1, order)
