# ruff: noqa: ANN001, ANN202 - Triton has its own types
"""Triton kernels of the gated differential linear attention, forward; `_triton_differential` launches them.

One program serves one head of one batch element: axis 0 of every grid counts (batch, head), axis 1 blocks of tokens.
D is the width of a branch and V that of a head, padded to powers of two; padded channels of the mapped queries and
keys are zero, and so are those of the states. The branches are two products, not one: tensor cores keep whole operands
in registers. Everything is computed in ACC, float32 but in tests.

A state lies as S1 (D V), S2 (D V), sums of phi(k1) (D), of phi(k2) (D). Without the difference the two "branches" are
the halves of one: their normaliser is shared and lambda is -1.
"""

from typing import no_type_check

import triton
from triton import language as tl

__all__ = [
    "channels_of",
    "head_place",
    "mapped",
    "output_kernel",
    "sigmoid",
    "signed_state",
    "state_kernel",
    "takes_part",
]


@triton.jit
@no_type_check
def head_place(slab, part, batch_head, start, heads, WIDTH: tl.constexpr, stride_b, stride_n, stride_c):
    """Return where channel 0 of the head lies in projection `part` of token `start`."""
    batch, head = (batch_head // heads).to(tl.int64), batch_head % heads
    return slab + batch * stride_b + start * stride_n + ((part * heads + head) * WIDTH).to(tl.int64) * stride_c


@triton.jit
@no_type_check
def channels_of(branch: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr):
    """Return the channels (D) of a branch within its head, and which of them are there."""
    half: tl.constexpr = (WIDTH + 1) // 2
    channels = tl.arange(0, D)
    return branch * half + channels, channels < (half if branch == 0 else WIDTH - half)


@triton.jit
@no_type_check
def mapped(place, there, ACC: tl.constexpr):
    """Load and return exp(min(x, 0)) + max(x, 0), zero where nothing is, such that NaN stays NaN."""
    x = tl.load(place, mask=there, other=0.0).to(ACC)
    positive = x > 0
    return tl.where(there, tl.exp(tl.where(positive, 0.0, x)) + tl.where(positive, x, 0.0), 0.0)


@triton.jit
@no_type_check
def sigmoid(x):
    """1 / (1 + exp(-x)), such that nothing overflows."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x < 0, small, 1.0) / (1.0 + small)


@triton.jit
@no_type_check
def takes_part(key_mask, batch_head, start, rows, inside, heads, stride_b, stride_n, MASKED: tl.constexpr):
    """Return which of the tokens are there and not masked."""
    if MASKED:
        base = key_mask + (batch_head // heads).to(tl.int64) * stride_b + start * stride_n
        return inside & (tl.load(base + rows * stride_n, mask=inside, other=0) != 0)
    return inside


@triton.jit
@no_type_check
def signed_state(
    state,
    lam,
    branch: tl.constexpr,
    head,
    WIDTH: tl.constexpr,
    DIFFERENTIAL: tl.constexpr,
    D: tl.constexpr,
    V: tl.constexpr,
):
    """Load the state (D, V) of a branch, the second one times -lambda."""
    columns = tl.arange(0, V)
    matrix = tl.load(state + branch * D * V + tl.arange(0, D)[:, None] * V + columns[None, :])
    if DIFFERENTIAL and branch == 1:
        lam_V = tl.load(lam + head * WIDTH + columns, mask=columns < WIDTH, other=0.0).to(matrix.dtype)
        matrix = -lam_V[None, :] * matrix
    return matrix


@triton.jit
@no_type_check
def state_kernel(
    slab,
    key_mask,
    partial,
    tokens,
    blocks,
    heads,
    slab_b,
    slab_n,
    slab_c,
    mask_b,
    mask_n,
    MASKED: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    D: tl.constexpr,
    V: tl.constexpr,
    PRECISION: tl.constexpr,
    ACC: tl.constexpr,
):
    """Sum the state over `blocks` blocks of tokens: partial (batch heads, splits, 2 D V + 2 D)."""
    batch_head, split = tl.program_id(0), tl.program_id(1)
    rows, columns = tl.arange(0, ROWS), tl.arange(0, V)
    one, one_there = channels_of(0, WIDTH, D)
    two, two_there = channels_of(1, WIDTH, D)
    state_1, state_2 = tl.zeros((D, V), ACC), tl.zeros((D, V), ACC)
    total_1, total_2 = tl.zeros((D,), ACC), tl.zeros((D,), ACC)
    for block in range(blocks):
        start = (split.to(tl.int64) * blocks + block) * ROWS
        there = takes_part(key_mask, batch_head, start, rows, start + rows < tokens, heads, mask_b, mask_n, MASKED)
        k = head_place(slab, 1, batch_head, start, heads, WIDTH, slab_b, slab_n, slab_c) + rows[:, None] * slab_n
        phi_1 = mapped(k + one[None, :] * slab_c, there[:, None] & one_there[None, :], ACC)
        phi_2 = mapped(k + two[None, :] * slab_c, there[:, None] & two_there[None, :], ACC)
        place = head_place(slab, 2, batch_head, start, heads, WIDTH, slab_b, slab_n, slab_c) + rows[:, None] * slab_n
        read = there[:, None] & (columns < WIDTH)[None, :]
        v = tl.load(place + columns[None, :] * slab_c, mask=read, other=0.0).to(ACC)
        state_1 += tl.dot(tl.trans(phi_1), v, input_precision=PRECISION)
        state_2 += tl.dot(tl.trans(phi_2), v, input_precision=PRECISION)
        total_1 += tl.sum(phi_1, 0)
        total_2 += tl.sum(phi_2, 0)
    out = partial + (batch_head.to(tl.int64) * tl.num_programs(1) + split) * (2 * D * V + 2 * D)
    matrix = tl.arange(0, D)[:, None] * V + columns[None, :]
    tl.store(out + matrix, state_1)
    tl.store(out + D * V + matrix, state_2)
    tl.store(out + 2 * D * V + tl.arange(0, D), total_1)
    tl.store(out + 2 * D * V + D + tl.arange(0, D), total_2)


@triton.jit
@no_type_check
def output_kernel(
    slab,
    lam,
    weight,
    state,
    out,
    tokens,
    heads,
    slab_b,
    slab_n,
    slab_c,
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
    """Write RMSNorm(A1 - lambda A2) gate(g) of one block of tokens; out (batch, tokens, heads WIDTH) is contiguous."""
    batch_head, start = tl.program_id(0), tl.program_id(1).to(tl.int64) * ROWS
    rows, columns = tl.arange(0, ROWS), tl.arange(0, V)
    head, inside = batch_head % heads, start + rows < tokens
    one, one_there = channels_of(0, WIDTH, D)
    two, two_there = channels_of(1, WIDTH, D)
    state += batch_head.to(tl.int64) * (2 * D * V + 2 * D)
    total_1 = tl.load(state + 2 * D * V + tl.arange(0, D))
    total_2 = tl.load(state + 2 * D * V + D + tl.arange(0, D))
    q = head_place(slab, 0, batch_head, start, heads, WIDTH, slab_b, slab_n, slab_c) + rows[:, None] * slab_n
    phi_1 = mapped(q + one[None, :] * slab_c, inside[:, None] & one_there[None, :], ACC)
    phi_2 = mapped(q + two[None, :] * slab_c, inside[:, None] & two_there[None, :], ACC)
    norm_1, norm_2 = tl.sum(phi_1 * total_1[None, :], 1), tl.sum(phi_2 * total_2[None, :], 1)
    if not DIFFERENTIAL:
        norm_1 += norm_2
        norm_2 = norm_1
    # what lies beyond the last token is not written, but must not be 0 / 0 either
    norm_1, norm_2 = tl.where(inside, norm_1 + EPS, 1.0), tl.where(inside, norm_2 + EPS, 1.0)
    scaled_1, scaled_2 = phi_1 / norm_1[:, None], phi_2 / norm_2[:, None]

    y = tl.dot(scaled_1, signed_state(state, lam, 0, head, WIDTH, DIFFERENTIAL, D, V), input_precision=PRECISION)
    y += tl.dot(scaled_2, signed_state(state, lam, 1, head, WIDTH, DIFFERENTIAL, D, V), input_precision=PRECISION)
    y = y * (1.0 / tl.sqrt(tl.where(inside, tl.sum(y * y, 1) / WIDTH + NORM_EPS, 1.0)))[:, None]
    y = y * tl.load(weight + columns, mask=columns < WIDTH, other=0.0).to(ACC)[None, :]
    written = inside[:, None] & (columns < WIDTH)[None, :]
    if GATE != "none":
        place = head_place(slab, 3, batch_head, start, heads, WIDTH, slab_b, slab_n, slab_c)
        place += rows[:, None] * slab_n + columns[None, :] * slab_c
        g = tl.load(place, mask=written, other=0.0).to(ACC)
        y = y * sigmoid(g)
        if GATE == "silu":
            y = y * g
    place = ((batch_head // heads).to(tl.int64) * tokens + start) * heads * WIDTH + head * WIDTH
    place += rows[:, None] * (heads * WIDTH) + columns[None, :]
    tl.store(out + place, y.to(out.dtype.element_ty), mask=written)
