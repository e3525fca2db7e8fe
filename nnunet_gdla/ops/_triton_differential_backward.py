# ruff: noqa: ANN001, ANN202 - Triton has its own types
"""Triton kernels of the gated differential linear attention, backward; see `_triton_differential_forward`.

Nothing but the states is left from the forward pass: what belongs to a token is computed again. With P = phi(q) /
normaliser of a branch and dY the gradient of A1 - lambda A2, T = P^T dY gives everything that is summed over tokens:
the gradient of S1 is T1, that of S2 is -lambda T2, and lambda's is -sum(S2 T2).
"""

from typing import no_type_check

import triton
from triton import language as tl

from nnunet_gdla.ops._triton_differential_forward import (
    channels_of,
    head_place,
    mapped,
    sigmoid,
    signed_state,
    takes_part,
)

__all__ = ["key_gradient_kernel", "query_gradient_kernel"]


@triton.jit
@no_type_check
def _slope(phi):
    """Return the derivative of the feature map, min(phi, 1)."""
    return tl.where(phi > 1, 1.0, phi)


@triton.jit
@no_type_check
def _branch_gradient(
    q,
    of_q,
    state,
    lam,
    branch: tl.constexpr,
    head,
    inside,
    asked,
    d_y,
    norm,
    along,
    of_state,
    of_total,
    slab_c,
    of_slab_c,
    DIFFERENTIAL: tl.constexpr,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
    V: tl.constexpr,
    PRECISION: tl.constexpr,
    ACC: tl.constexpr,
):
    """Write the gradient of a branch's queries and return the sums T and of_total with these rows added.

    The queries and the state are loaded once more: kept from before, they would not fit the registers.
    """
    channels, there = channels_of(branch, WIDTH, D)
    total = tl.load(state + 2 * D * V + branch * D + tl.arange(0, D))
    phi = mapped(q + channels[None, :] * slab_c, asked[:, None] & there[None, :], ACC)
    inverse = (1.0 / norm)[:, None]
    scaled = phi * inverse
    signed = signed_state(state, lam, branch, head, WIDTH, DIFFERENTIAL, D, V)
    d_scaled = tl.dot(d_y, tl.trans(signed), input_precision=PRECISION)
    if DIFFERENTIAL:
        along = tl.sum(scaled * d_scaled, 1)
    d_q = (d_scaled - along[:, None] * total[None, :]) * inverse * _slope(phi)
    tl.store(of_q + channels[None, :] * of_slab_c, d_q.to(of_q.dtype.element_ty), mask=inside[:, None] & there[None, :])
    of_state += tl.dot(tl.trans(scaled), d_y, input_precision=PRECISION)
    return of_state, of_total - tl.sum(along[:, None] * scaled, 0)


@triton.jit
@no_type_check
def _rows_again(
    q,
    state,
    lam,
    head,
    asked,
    slab_c,
    EPS: tl.constexpr,
    DIFFERENTIAL: tl.constexpr,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
    V: tl.constexpr,
    PRECISION: tl.constexpr,
    ACC: tl.constexpr,
):
    """Compute the normalisers of both branches and the difference of their outputs once more, from the queries."""
    one, one_there = channels_of(0, WIDTH, D)
    two, two_there = channels_of(1, WIDTH, D)
    phi_1 = mapped(q + one[None, :] * slab_c, asked[:, None] & one_there[None, :], ACC)
    phi_2 = mapped(q + two[None, :] * slab_c, asked[:, None] & two_there[None, :], ACC)
    norm_1 = tl.sum(phi_1 * tl.load(state + 2 * D * V + tl.arange(0, D))[None, :], 1)
    norm_2 = tl.sum(phi_2 * tl.load(state + 2 * D * V + D + tl.arange(0, D))[None, :], 1)
    if not DIFFERENTIAL:
        norm_1 += norm_2
        norm_2 = norm_1
    # Rows that nobody asks for have weights of zero; without an eps they would be divided by zero, and NaN would get
    # into the sums over rows.
    norm_1, norm_2 = tl.where(asked, norm_1 + EPS, 1.0), tl.where(asked, norm_2 + EPS, 1.0)
    signed = signed_state(state, lam, 0, head, WIDTH, DIFFERENTIAL, D, V)
    y = tl.dot(phi_1 / norm_1[:, None], signed, input_precision=PRECISION)
    signed = signed_state(state, lam, 1, head, WIDTH, DIFFERENTIAL, D, V)
    y += tl.dot(phi_2 / norm_2[:, None], signed, input_precision=PRECISION)
    return norm_1, norm_2, y


@triton.jit
@no_type_check
def _through_gate(g, of_g, read, written, d_out, normed, GATE: tl.constexpr, ACC: tl.constexpr):
    """Write the gradient of the gate's input, and return that of what it multiplies."""
    value = tl.load(g, mask=read, other=0.0).to(ACC)
    gate = sigmoid(value)
    slope = gate * (1.0 - gate)
    if GATE == "silu":
        slope = gate + value * slope
        gate = value * gate
    tl.store(of_g, (d_out * normed * slope).to(of_g.dtype.element_ty), mask=written)
    return d_out * gate


@triton.jit
@no_type_check
def query_gradient_kernel(
    grad,
    slab,
    lam,
    weight,
    state,
    of_slab,
    partial,
    tokens,
    blocks,
    heads,
    grad_b,
    grad_n,
    grad_c,
    slab_b,
    slab_n,
    slab_c,
    of_slab_b,
    of_slab_n,
    of_slab_c,
    NORM_EPS: tl.constexpr,
    EPS: tl.constexpr,
    DIFFERENTIAL: tl.constexpr,
    GATE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    D: tl.constexpr,
    V: tl.constexpr,
    PRECISION: tl.constexpr,
    ACC: tl.constexpr,
):
    """Write the gradients of q and g; sum T, those of the sums of phi(k) and of the norm's weight over `blocks` blocks.

    partial (batch heads, splits, 2 D V + 2 D + V): as a state, then the weight.
    """
    batch_head, split = tl.program_id(0), tl.program_id(1)
    rows, columns = tl.arange(0, ROWS), tl.arange(0, V)
    head = batch_head % heads
    state += batch_head.to(tl.int64) * (2 * D * V + 2 * D)
    w = tl.load(weight + columns, mask=columns < WIDTH, other=0.0).to(ACC)
    of_state_1, of_state_2 = tl.zeros((D, V), ACC), tl.zeros((D, V), ACC)
    of_total_1, of_total_2 = tl.zeros((D,), ACC), tl.zeros((D,), ACC)
    of_weight = tl.zeros((V,), ACC)
    for block in range(blocks):
        start = (split.to(tl.int64) * blocks + block) * ROWS
        inside = start + rows < tokens
        written = inside[:, None] & (columns < WIDTH)[None, :]
        place = head_place(grad, 0, batch_head, start, heads, WIDTH, grad_b, grad_n, grad_c)
        place += rows[:, None] * grad_n + columns[None, :] * grad_c
        d_out = tl.load(place, mask=written, other=0.0).to(ACC)
        # A row that nobody asks a gradient of gives none, whatever it holds: padding may be NaN.
        asked = inside & (tl.max((d_out != 0).to(tl.int32), 1) > 0)
        q = head_place(slab, 0, batch_head, start, heads, WIDTH, slab_b, slab_n, slab_c) + rows[:, None] * slab_n
        norm_1, norm_2, y = _rows_again(
            q, state, lam, head, asked, slab_c, EPS, DIFFERENTIAL, WIDTH, D, V, PRECISION, ACC
        )
        mean_square = tl.where(asked, tl.sum(y * y, 1) / WIDTH + NORM_EPS, 1.0)
        inverse_root = (1.0 / tl.sqrt(mean_square))[:, None]
        unit = y * inverse_root

        d_normed = d_out
        if GATE != "none":
            g = head_place(slab, 3, batch_head, start, heads, WIDTH, slab_b, slab_n, slab_c)
            g += rows[:, None] * slab_n + columns[None, :] * slab_c
            of_g = head_place(of_slab, 3, batch_head, start, heads, WIDTH, of_slab_b, of_slab_n, of_slab_c)
            of_g += rows[:, None] * of_slab_n + columns[None, :] * of_slab_c
            read = asked[:, None] & (columns < WIDTH)[None, :]
            d_normed = _through_gate(g, of_g, read, written, d_out, unit * w[None, :], GATE, ACC)
        of_weight += tl.sum(d_normed * unit, 0)
        d_unit = d_normed * w[None, :]
        d_y = (d_unit - unit * (tl.sum(d_unit * unit, 1) / WIDTH)[:, None]) * inverse_root

        place = head_place(of_slab, 0, batch_head, start, heads, WIDTH, of_slab_b, of_slab_n, of_slab_c)
        place += rows[:, None] * of_slab_n
        along = tl.sum(d_y * y, 1)  # over both "branches"
        of_state_1, of_total_1 = _branch_gradient(
            q, place, state, lam, 0, head, inside, asked, d_y, norm_1, along, of_state_1, of_total_1, slab_c, of_slab_c,
            DIFFERENTIAL, WIDTH, D, V, PRECISION, ACC,
        )  # fmt: skip
        of_state_2, of_total_2 = _branch_gradient(
            q, place, state, lam, 1, head, inside, asked, d_y, norm_2, along, of_state_2, of_total_2, slab_c, of_slab_c,
            DIFFERENTIAL, WIDTH, D, V, PRECISION, ACC,
        )  # fmt: skip
    out = partial + (batch_head.to(tl.int64) * tl.num_programs(1) + split) * (2 * D * V + 2 * D + V)
    matrix = tl.arange(0, D)[:, None] * V + columns[None, :]
    tl.store(out + matrix, of_state_1)
    tl.store(out + D * V + matrix, of_state_2)
    tl.store(out + 2 * D * V + tl.arange(0, D), of_total_1)
    tl.store(out + 2 * D * V + D + tl.arange(0, D), of_total_2)
    tl.store(out + 2 * D * V + 2 * D + columns, of_weight)


@triton.jit
@no_type_check
def key_gradient_kernel(
    slab,
    key_mask,
    lam,
    sums,
    of_slab,
    tokens,
    heads,
    slab_b,
    slab_n,
    slab_c,
    mask_b,
    mask_n,
    of_slab_b,
    of_slab_n,
    of_slab_c,
    MASKED: tl.constexpr,
    DIFFERENTIAL: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    D: tl.constexpr,
    V: tl.constexpr,
    PRECISION: tl.constexpr,
    ACC: tl.constexpr,
):
    """Write the gradients of k and v of one block of tokens from what `query_gradient_kernel` has summed."""
    batch_head, start = tl.program_id(0), tl.program_id(1).to(tl.int64) * ROWS
    rows, columns = tl.arange(0, ROWS), tl.arange(0, V)
    head, inside = batch_head % heads, start + rows < tokens
    there = takes_part(key_mask, batch_head, start, rows, inside, heads, mask_b, mask_n, MASKED)
    sums += batch_head.to(tl.int64) * (2 * D * V + 2 * D + V)
    k = head_place(slab, 1, batch_head, start, heads, WIDTH, slab_b, slab_n, slab_c) + rows[:, None] * slab_n
    of_k = head_place(of_slab, 1, batch_head, start, heads, WIDTH, of_slab_b, of_slab_n, of_slab_c)
    of_k += rows[:, None] * of_slab_n
    place = head_place(slab, 2, batch_head, start, heads, WIDTH, slab_b, slab_n, slab_c) + rows[:, None] * slab_n
    read = there[:, None] & (columns < WIDTH)[None, :]
    v = tl.load(place + columns[None, :] * slab_c, mask=read, other=0.0).to(ACC)
    d_v = tl.zeros((ROWS, V), ACC)
    for branch in tl.static_range(2):
        channels, real = channels_of(branch, WIDTH, D)
        phi = mapped(k + channels[None, :] * slab_c, there[:, None] & real[None, :], ACC)
        of_state = signed_state(sums, lam, branch, head, WIDTH, DIFFERENTIAL, D, V)
        of_total = tl.load(sums + 2 * D * V + branch * D + tl.arange(0, D))
        d_v += tl.dot(phi, of_state, input_precision=PRECISION)
        d_phi = tl.dot(v, tl.trans(of_state), input_precision=PRECISION) + of_total[None, :]
        # Masked rows have phi = 0 and with it gradient 0.
        d_k = (d_phi * _slope(phi)).to(of_slab.dtype.element_ty)
        tl.store(of_k + channels[None, :] * of_slab_c, d_k, mask=inside[:, None] & real[None, :])
    place = head_place(of_slab, 2, batch_head, start, heads, WIDTH, of_slab_b, of_slab_n, of_slab_c)
    place += rows[:, None] * of_slab_n + columns[None, :] * of_slab_c
    tl.store(place, d_v.to(of_slab.dtype.element_ty), mask=inside[:, None] & (columns < WIDTH)[None, :])
