"""The gated differential linear attention as Triton kernels, forward and backward; loads Triton at the first launch.

Shape legend (this file): B batch, N tokens, C channels, H heads, V width of a head, D that of a branch, P projections.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from nnunet_gdla.ops._triton_switch import why_no_kernel

__all__ = ["gated_differential_triton", "why_not_triton"]

WIDEST_HEAD = 128
# A grid's second axis counts to 65535, and the smallest tile has 16 rows.
LONGEST = 16 * 65535


class Tile(NamedTuple):
    """How a kernel cuts its work."""

    rows: int
    warps: int
    stages: int = 1


# By padded head width. Chosen by what the assembler says of sm80 and sm90, not by measurement: up to width 32 registers
# are spilled by no kernel (24 bytes by one), from 64 on by the query gradient (156 bytes, 1.4 kB at 128) and at 128 by
# the key gradient (0.5 kB).
STATE_TILES = {16: Tile(64, 4, 2), 32: Tile(64, 4, 2), 64: Tile(32, 4, 2), 128: Tile(32, 8, 2)}
OUTPUT_TILES = {16: Tile(128, 4), 32: Tile(64, 4), 64: Tile(64, 4), 128: Tile(64, 8)}
QUERY_TILES = {16: Tile(32, 4), 32: Tile(32, 4), 64: Tile(16, 4), 128: Tile(16, 8)}
KEY_TILES = {16: Tile(64, 4), 32: Tile(64, 4), 64: Tile(16, 4), 128: Tile(16, 8)}

# Float32 on tensor cores as three products of tf32: exact to about 2^-21, where one product would be to 2^-11.
PRECISION = "tf32x3"


def why_not_triton(
    projected: Tensor, lam: Tensor | None, norm_weight: Tensor, num_heads: int, gate: str | None
) -> str | None:
    """Return why `gated_differential_triton` cannot compute this, None where it can."""
    reason = why_no_kernel(projected, lam, norm_weight)
    if reason is not None:
        return reason
    if projected.numel() == 0 or projected.shape[1] > LONGEST:
        return "there are no tokens, or too many"
    if projected.shape[-1] // (3 if gate is None else 4) > num_heads * WIDEST_HEAD:
        return "heads are wider than 128 channels"
    return None


def gated_differential_triton(
    projected: Float[Tensor, "B N PC"],
    lam: Float[Tensor, "H V"] | None,
    norm_weight: Float[Tensor, " V"],
    *,
    num_heads: int,
    gate: str | None,
    norm_eps: float,
    eps: float = 1e-6,
    key_mask: Bool[Tensor, "B N"] | None = None,
) -> Float[Tensor, "B N C"]:
    r"""Return $\mathrm{RMSNorm}(A_1 - \lambda \odot A_2) \odot \mathrm{gate}(G)$ in two passes over the projections.

    Args:
        projected: Queries, keys, values and, with a gate, gates: each (heads, V) side by side, of a head's queries and
            keys the first half is branch 1. Any strides.
        lam: Weight of branch 2; None: one linear attention of full width.
        norm_weight: Of the RMS norm over a head, shared by all heads.
        num_heads: Heads H, of at most 128 channels.
        gate: "silu", "sigmoid" or None.
        norm_eps: Added to the mean square.
        eps: Added to the normalisers.
        key_mask: True for keys that take part.

    Returns:
        (B, N, C) in the dtype of `projected`, contiguous.

    Raises:
        ValueError: If the sizes do not fit.

    Numerics: float32 inside, whatever autocast says; sums run in one fixed order, so that equal inputs give equal
        results and gradients. A row whose output gets no gradient hands none on, whatever it holds.
    Cost: reads k and v, then q and g; kept for backward: the inputs and V (V + 1) numbers a head. Backward reads q, g
        and the gradient, then k and v.
    """
    parts = 3 if gate is None else 4
    channels, width = projected.shape[-1] // parts, norm_weight.shape[-1]
    if channels * parts != projected.shape[-1] or channels != num_heads * width or not 1 <= width <= WIDEST_HEAD:
        raise ValueError(
            f"projected {tuple(projected.shape)} must hold {parts} projections of {num_heads} heads as wide as "
            f"norm_weight {tuple(norm_weight.shape)}, at most {WIDEST_HEAD}"
        )
    if lam is not None and (tuple(lam.shape) != (num_heads, width) or width % 2):
        raise ValueError(f"lam {tuple(lam.shape)} must be {(num_heads, width)}, with an even width")
    if key_mask is not None and (key_mask.shape != projected.shape[:2] or key_mask.dtype != torch.bool):
        raise ValueError(f"key_mask {tuple(key_mask.shape)} must be bool {tuple(projected.shape[:2])}")
    out, _ = _forward(projected, lam, norm_weight, key_mask, num_heads, gate or "none", norm_eps, eps)
    return out


def padded_widths(width: int) -> tuple[int, int]:
    """Return D and V: tensor cores multiply at least 16 channels."""
    padded = max(16, 1 << (int(width) - 1).bit_length())
    return max(16, padded // 2), padded


@torch.library.custom_op(
    "nnunet_gdla::gated_differential_triton",
    mutates_args=(),
    schema="(Tensor projected, Tensor? lam, Tensor weight, Tensor? key_mask, int num_heads, str gate, float norm_eps, "
    "float eps) -> (Tensor, Tensor)",
)
def _forward(
    projected: Tensor,
    lam: Tensor | None,
    weight: Tensor,
    key_mask: Tensor | None,
    num_heads: int,
    gate: str,
    norm_eps: float,
    eps: float,
) -> tuple[Tensor, Tensor]:
    from nnunet_gdla.ops._triton_differential_forward import output_kernel, state_kernel

    batch, tokens, width, padded, acc = _sizes(projected, weight)
    grid_heads, shared = batch * num_heads, {"WIDTH": width, "D": padded[0], "V": padded[1], **_arithmetic(acc)}
    with torch.cuda.device_of(projected):
        tile = STATE_TILES[padded[1]]
        splits, blocks = _splits(projected, tokens, tile.rows, grid_heads)
        partial = torch.empty((grid_heads, splits, _state_size(*padded)), dtype=acc, device=projected.device)
        state_kernel[(grid_heads, splits)](
            projected, key_mask, partial, tokens, blocks, num_heads, *projected.stride(), *_strides(key_mask),
            MASKED=key_mask is not None, ROWS=tile.rows, num_warps=tile.warps, num_stages=tile.stages, **shared,
        )  # fmt: skip
        state = partial.sum(1)
        out = torch.empty((batch, tokens, num_heads * width), dtype=projected.dtype, device=projected.device)
        tile = OUTPUT_TILES[padded[1]]
        output_kernel[(grid_heads, -(-tokens // tile.rows))](
            projected, None if lam is None else lam.contiguous(), weight.contiguous(), state, out, tokens, num_heads,
            *projected.stride(), NORM_EPS=norm_eps, EPS=eps, DIFFERENTIAL=lam is not None, GATE=gate,
            ROWS=tile.rows, num_warps=tile.warps, num_stages=tile.stages, **shared,
        )  # fmt: skip
    return out, state


@_forward.register_fake
def _(
    projected: Tensor,
    lam: Tensor | None,
    weight: Tensor,
    key_mask: Tensor | None,
    num_heads: int,
    gate: str,
    norm_eps: float,
    eps: float,
) -> tuple[Tensor, Tensor]:
    batch, tokens, width, padded, acc = _sizes(projected, weight)
    out = projected.new_empty((batch, tokens, num_heads * width))
    return out, projected.new_empty((batch * num_heads, _state_size(*padded)), dtype=acc)


@torch.library.custom_op(
    "nnunet_gdla::gated_differential_triton_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor projected, Tensor? lam, Tensor weight, Tensor? key_mask, Tensor state, int num_heads, "
    "str gate, float norm_eps, float eps) -> (Tensor, Tensor, Tensor)",
)
def _backward(
    grad: Tensor,
    projected: Tensor,
    lam: Tensor | None,
    weight: Tensor,
    key_mask: Tensor | None,
    state: Tensor,
    num_heads: int,
    gate: str,
    norm_eps: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    from nnunet_gdla.ops._triton_differential_backward import key_gradient_kernel, query_gradient_kernel

    batch, tokens, width, padded, acc = _sizes(projected, weight)
    grid_heads = batch * num_heads
    shared = {"DIFFERENTIAL": lam is not None, "WIDTH": width, "D": padded[0], "V": padded[1], **_arithmetic(acc)}
    flat_lam, of_projected = None if lam is None else lam.contiguous(), torch.empty_like(projected)
    with torch.cuda.device_of(projected):
        tile = QUERY_TILES[padded[1]]
        splits, blocks = _splits(projected, tokens, tile.rows, grid_heads)
        partial = torch.empty(
            (grid_heads, splits, _state_size(*padded) + padded[1]), dtype=acc, device=projected.device
        )
        query_gradient_kernel[(grid_heads, splits)](
            grad, projected, flat_lam, weight.contiguous(), state, of_projected, partial, tokens, blocks, num_heads,
            *grad.stride(), *projected.stride(), *of_projected.stride(), NORM_EPS=norm_eps, EPS=eps, GATE=gate,
            ROWS=tile.rows, num_warps=tile.warps, num_stages=tile.stages, **shared,
        )  # fmt: skip
        sums = partial.sum(1)
        tile = KEY_TILES[padded[1]]
        key_gradient_kernel[(grid_heads, -(-tokens // tile.rows))](
            projected, key_mask, flat_lam, sums, of_projected, tokens, num_heads, *projected.stride(),
            *_strides(key_mask), *of_projected.stride(), MASKED=key_mask is not None, ROWS=tile.rows,
            num_warps=tile.warps, num_stages=tile.stages, **shared,
        )  # fmt: skip
    size, (half, full) = _state_size(*padded), padded
    of_weight = sums[:, size : size + width].sum(0).to(weight.dtype)
    if lam is None:
        return of_projected, weight.new_empty(0), of_weight
    second = slice(half * full, 2 * half * full)
    products = (state[:, second] * sums[:, second]).view(batch, num_heads, half, full)
    return of_projected, -products[..., :width].sum((0, 2)).to(lam.dtype), of_weight


@_backward.register_fake
def _(
    grad: Tensor,
    projected: Tensor,
    lam: Tensor | None,
    weight: Tensor,
    key_mask: Tensor | None,
    state: Tensor,
    num_heads: int,
    gate: str,
    norm_eps: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    of_lam = weight.new_empty(0) if lam is None else lam.new_empty(lam.shape)
    return torch.empty_like(projected), of_lam, weight.new_empty(weight.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:  # noqa: ANN401
    projected, lam, weight, key_mask, *ctx.options = inputs
    ctx.save_for_backward(projected, lam, weight, key_mask, output[1])
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
    projected, lam, weight, key_mask, state = ctx.saved_tensors
    of_projected, of_lam, of_weight = _backward(grad, projected, lam, weight, key_mask, state, *ctx.options)
    return of_projected, None if lam is None else of_lam, of_weight, None, None, None, None, None


_forward.register_autograd(_gradients, setup_context=_setup)


def _sizes(projected: Tensor, weight: Tensor) -> tuple[int, int, int, tuple[int, int], torch.dtype]:
    """Return batch, tokens, width of a head, D and V, and the dtype of the sums."""
    batch, tokens, _ = projected.shape
    return (
        batch,
        tokens,
        weight.shape[0],
        padded_widths(weight.shape[0]),
        torch.promote_types(projected.dtype, torch.float32),
    )


def _state_size(half: int, full: int) -> int:
    """Return how many numbers the state of a head is, see `_triton_differential_forward`."""
    return 2 * half * full + 2 * half


def _arithmetic(acc: torch.dtype) -> dict[str, Any]:
    """Return what the kernels call PRECISION and ACC."""
    from triton import language as tl

    return {"PRECISION": PRECISION, "ACC": tl.float64 if acc == torch.float64 else tl.float32}


def _strides(key_mask: Tensor | None) -> tuple[int, ...]:
    return (0, 0) if key_mask is None else key_mask.stride()


def _splits(x: Tensor, tokens: int, rows: int, grid_heads: int) -> tuple[int, int]:
    """Return into how many sums the tokens are cut, a few for every multiprocessor, and the blocks of each."""
    wanted = 4 * torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 8
    blocks = -(-tokens // rows)
    each = -(-blocks // max(1, min(blocks, wanted // grid_heads)))
    return -(-blocks // each), each
