# ruff: noqa: ANN001, ANN202 - Triton has its own types
"""Triton kernels of the correction along the neighbours' mean value; `_triton_redundancy` launches them.

One program serves a few rows of one batch element with all heads, so that the graph is read once: tiles (ROWS, H, D),
heads and widths padded to powers of two. Axis 0 of the grids counts blocks of rows, axis 1 batch elements. The unit
vectors are computed where they are needed and never stored, unless somebody asks for them.
"""

from typing import no_type_check

import triton
from triton import language as tl

__all__ = ["alignment_kernel", "correction_gradient_kernel", "correction_kernel"]

SMALLEST_NORM = tl.constexpr(1e-12)


@triton.jit
@no_type_check
def _tile(stride_n, stride_h, stride_d, rows, H: tl.constexpr, D: tl.constexpr):
    """Return the offsets (ROWS, H, D) of all channels of these rows."""
    heads, channels = tl.arange(0, H)[None, :, None], tl.arange(0, D)[None, None, :]
    return rows.to(tl.int64)[:, None, None] * stride_n + heads * stride_h + channels * stride_d


@triton.jit
@no_type_check
def _direction(
    v,
    index,
    mask,
    weight,
    patch,
    is_patch,
    channels,
    first,
    v_n,
    v_h,
    v_d,
    graph_n,
    graph_k,
    SLOTS: tl.constexpr,
    ROWS: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    ACC: tl.constexpr,
):
    """Return the unit vectors (ROWS, H, D) of the mean neighbour values, and which rows (ROWS) have a neighbour."""
    mean = tl.zeros((ROWS, H, D), ACC)
    weights, filled = tl.zeros((ROWS,), ACC), tl.zeros((ROWS,), tl.int32)
    for slot in tl.static_range(SLOTS):
        place = patch.to(tl.int64) * graph_n + slot * graph_k
        there = is_patch & (tl.load(mask + place, mask=is_patch, other=0) != 0)
        neighbour = tl.load(index + place, mask=there, other=0) + first
        w = tl.load(weight + place, mask=there, other=0.0).to(ACC)
        values = tl.load(v + _tile(v_n, v_h, v_d, neighbour, H, D), mask=channels & there[:, None, None], other=0.0).to(
            ACC
        )
        mean += w[:, None, None] * values
        weights += w
        filled += there.to(tl.int32)
    mean = mean / tl.where(weights > 1, weights, 1.0)[:, None, None]
    length = tl.sqrt(tl.sum(mean * mean, 2))
    # not a maximum, which would turn the length of a vector with NaN into the smallest one
    length = tl.where(length < SMALLEST_NORM, SMALLEST_NORM, length)
    return mean / length[:, :, None], filled > 0


@triton.jit
@no_type_check
def alignment_kernel(
    y,
    v,
    index,
    mask,
    weight,
    axis,
    dot,
    norm,
    count,
    heads,
    y_b,
    y_n,
    y_h,
    y_d,
    v_b,
    v_n,
    v_h,
    v_d,
    graph_b,
    graph_n,
    graph_k,
    WIDTH: tl.constexpr,
    SLOTS: tl.constexpr,
    WITH_AXIS: tl.constexpr,
    ROWS: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    ACC: tl.constexpr,
):
    """Write y.r and |y| of all patches, (batch, heads, patches), and the unit vectors r, (batch, patches, heads, D)."""
    batch = tl.program_id(1).to(tl.int64)
    rows, head = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, H)
    inside = rows < count
    channels = (head < heads)[None, :, None] & (tl.arange(0, D) < WIDTH)[None, None, :]
    graph = batch * graph_b
    r, _ = _direction(
        v + batch * v_b, index + graph, mask + graph, weight + graph, rows, inside, channels, 0, v_n, v_h, v_d,
        graph_n, graph_k, SLOTS, ROWS, H, D, ACC,
    )  # fmt: skip
    tile = inside[:, None, None] & channels
    own = tl.load(y + batch * y_b + _tile(y_n, y_h, y_d, rows, H, D), mask=tile, other=0.0).to(ACC)
    place = (batch * heads + head[None, :]) * count + rows[:, None]
    written = inside[:, None] & (head < heads)[None, :]
    tl.store(dot + place, tl.sum(own * r, 2), mask=written)
    tl.store(norm + place, tl.sqrt(tl.sum(own * own, 2)), mask=written)
    if WITH_AXIS:
        place = axis + batch * count * heads * WIDTH + _tile(heads * WIDTH, WIDTH, 1, rows, H, D)
        tl.store(place, r, mask=tile)


@triton.jit
@no_type_check
def correction_kernel(
    y,
    v,
    index,
    mask,
    weight,
    beta,
    dot,
    z,
    length,
    count,
    first,
    heads,
    y_b,
    y_n,
    y_h,
    y_d,
    v_b,
    v_n,
    v_h,
    v_d,
    graph_b,
    graph_n,
    graph_k,
    beta_b,
    beta_h,
    beta_n,
    z_b,
    z_n,
    z_h,
    z_d,
    WIDTH: tl.constexpr,
    SLOTS: tl.constexpr,
    ROWS: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    ACC: tl.constexpr,
):
    """Write z = y - beta (y.r) r for patches, z = y for rows before and behind them; dot (batch, heads, patches)."""
    batch = tl.program_id(1).to(tl.int64)
    rows, head = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, H)
    inside, patch = rows < length, rows - first
    is_patch = (patch >= 0) & (patch < count)
    channels = (head < heads)[None, :, None] & (tl.arange(0, D) < WIDTH)[None, None, :]
    tile = inside[:, None, None] & channels
    own = tl.load(y + batch * y_b + _tile(y_n, y_h, y_d, rows, H, D), mask=tile, other=0.0).to(ACC)
    graph = batch * graph_b
    r, has_neighbours = _direction(
        v + batch * v_b, index + graph, mask + graph, weight + graph, patch, is_patch, channels, first, v_n, v_h, v_d,
        graph_n, graph_k, SLOTS, ROWS, H, D, ACC,
    )  # fmt: skip
    used = has_neighbours[:, None] & (head < heads)[None, :]
    place = batch * beta_b + head[None, :] * beta_h + patch.to(tl.int64)[:, None] * beta_n
    strength = tl.load(beta + place, mask=used, other=0.0).to(ACC)
    along = tl.load(dot + (batch * heads + head[None, :]) * count + patch[:, None], mask=used, other=0.0).to(ACC)
    # where beta is zero, an infinite output must not become NaN, nor -0 become 0
    step = tl.where(strength == 0, 0.0, strength * along)[:, :, None]
    result = tl.where(step == 0, own, own - step * r)
    tl.store(z + batch * z_b + _tile(z_n, z_h, z_d, rows, H, D), result.to(z.dtype.element_ty), mask=tile)


@triton.jit
@no_type_check
def correction_gradient_kernel(
    grad,
    v,
    index,
    mask,
    weight,
    beta,
    dot,
    of_y,
    of_beta,
    length,
    count,
    first,
    heads,
    grad_b,
    grad_n,
    grad_h,
    grad_d,
    v_b,
    v_n,
    v_h,
    v_d,
    graph_b,
    graph_n,
    graph_k,
    beta_b,
    beta_h,
    beta_n,
    of_y_b,
    of_y_n,
    of_y_h,
    of_y_d,
    WIDTH: tl.constexpr,
    SLOTS: tl.constexpr,
    ROWS: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    ACC: tl.constexpr,
):
    """Write dz - beta (dz.r) r, the gradient of y, and -(dz.r)(y.r), that of beta (batch, heads, patches)."""
    batch = tl.program_id(1).to(tl.int64)
    rows, head = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, H)
    inside, patch = rows < length, rows - first
    is_patch = (patch >= 0) & (patch < count)
    channels = (head < heads)[None, :, None] & (tl.arange(0, D) < WIDTH)[None, None, :]
    tile = inside[:, None, None] & channels
    d_z = tl.load(grad + batch * grad_b + _tile(grad_n, grad_h, grad_d, rows, H, D), mask=tile, other=0.0).to(ACC)
    graph = batch * graph_b
    r, has_neighbours = _direction(
        v + batch * v_b, index + graph, mask + graph, weight + graph, patch, is_patch, channels, first, v_n, v_h, v_d,
        graph_n, graph_k, SLOTS, ROWS, H, D, ACC,
    )  # fmt: skip
    used = has_neighbours[:, None] & (head < heads)[None, :]
    place = batch * beta_b + head[None, :] * beta_h + patch.to(tl.int64)[:, None] * beta_n
    strength = tl.load(beta + place, mask=used, other=0.0).to(ACC)
    place = (batch * heads + head[None, :]) * count + patch[:, None]
    along = tl.load(dot + place, mask=used, other=0.0).to(ACC)
    d_along = tl.sum(d_z * r, 2)
    written = is_patch[:, None] & (head < heads)[None, :]
    tl.store(of_beta + place, tl.where(used, -d_along * along, 0.0), mask=written)
    result = d_z - (strength * d_along)[:, :, None] * r
    place = of_y + batch * of_y_b + _tile(of_y_n, of_y_h, of_y_d, rows, H, D)
    tl.store(place, result.to(of_y.dtype.element_ty), mask=tile)
