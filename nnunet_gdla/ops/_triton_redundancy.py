"""The correction along the neighbours' mean value as Triton kernels; loads Triton at the first launch.

Shape legend (this file): B batch, H heads, N patches, L rows of which N are patches, D head width, K neighbour slots.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nnunet_gdla.ops._graph import NeighbourGraph, graph_for
from nnunet_gdla.ops._triton_switch import why_no_kernel

__all__ = ["alignment_triton", "correction_triton", "why_not_triton"]

# Numbers of one tile (rows, heads, width), and the most that all heads of one row may have.
TILE, WIDEST_ROW = 2048, 8192
# Triton's interpreter takes as long for a small tile as for a larger one.
ROWS_CPU = 32


def why_not_triton(y: Tensor, v: Tensor, graph: NeighbourGraph, *others: Tensor) -> str | None:
    """Return why the kernels cannot compute this, None where they can."""
    reason = why_no_kernel(y, v, *graph, *others)
    if reason is not None:
        return reason
    if y.dtype != v.dtype or y.numel() == 0:
        return "outputs and values differ in dtype, or there are none"
    if _padded(y.shape[1]) * _padded(y.shape[3]) > WIDEST_ROW:
        return "all heads of a row are wider than 8192 channels"
    return None


def alignment_triton(
    y: Float[Tensor, "B H N D"], v: Float[Tensor, "B H N D"], graph: NeighbourGraph, *, with_axis: bool = True
) -> tuple[Float[Tensor, "B H N D"] | None, Float[Tensor, "B H N"], Float[Tensor, "B H N"]]:
    r"""Return $\hat r = r / \max(|r|, 10^{-12})$ of the neighbours' mean value r, $y^\top \hat r$ and $|y|$.

    Args:
        y: Outputs of the patches, any strides.
        v: Their values, any strides.
        graph: (N, K) or (B, N, K).
        with_axis: False: do not write $\hat r$, give None; `correction_triton` does not need it.

    Returns:
        float32 (float64 for float64 `y`) without gradients.

    Raises:
        ValueError: If the sizes do not fit.
    """
    if y.shape != v.shape or y.ndim != 4:
        raise ValueError(f"y {tuple(y.shape)} and v {tuple(v.shape)} must have the same four sizes")
    index, mask, weight = graph_for(graph, (y.shape[0], y.shape[2]))
    axis, dot, norm = _alignment(y.detach(), v.detach(), index, mask, weight, with_axis)
    return axis.transpose(1, 2) if with_axis else None, dot, norm


def correction_triton(
    y: Float[Tensor, "B H L D"],
    dot: Float[Tensor, "B H N"],
    beta: Float[Tensor, "B H N"],
    v: Float[Tensor, "B H L D"],
    graph: NeighbourGraph,
    *,
    first: int = 0,
) -> Float[Tensor, "B H L D"]:
    r"""Return $z = y - \beta\,(y^\top \hat r)\,\hat r$ for the patches and the other rows as they are.

    Args:
        y: Outputs, any strides.
        dot: $y^\top \hat r$ of the patches, from `alignment_triton`.
        beta: Of the patches; patches without neighbours are returned as they are.
        v: Values, any strides; no gradient reaches them.
        graph: Of the patches, (N, K) or (B, N, K).
        first: Row of the first patch.

    Returns:
        (B, H, L, D) in the dtype of `y`.

    Raises:
        ValueError: If the sizes do not fit.

    Numerics: float32 inside (float64 for float64 `y`), whatever autocast says; no atomic sums.
    Cost: one pass over y and v in each direction; saved: `v`, the graph, `beta` and `dot`.
    """
    if y.shape != v.shape or y.ndim != 4 or dot.shape != beta.shape or first < 0:
        raise ValueError(
            f"y {tuple(y.shape)} and v {tuple(v.shape)} must have the same four sizes, dot {tuple(dot.shape)} and beta "
            f"{tuple(beta.shape)} the same three, and first {first} must not be negative"
        )
    if beta.shape[:2] != y.shape[:2] or first + beta.shape[2] > y.shape[2]:
        raise ValueError(f"beta {tuple(beta.shape)} from row {first} on does not fit y {tuple(y.shape)}")
    index, mask, weight = graph_for(graph, (y.shape[0], beta.shape[2]))
    return _correction(y, v.detach(), index, mask, weight, beta, dot.detach(), first)


@torch.library.custom_op(
    "nnunet_gdla::alignment_triton",
    mutates_args=(),
    schema="(Tensor y, Tensor v, Tensor index, Tensor mask, Tensor weight, bool with_axis) -> (Tensor, Tensor, Tensor)",
)
def _alignment(
    y: Tensor, v: Tensor, index: Tensor, mask: Tensor, weight: Tensor, with_axis: bool
) -> tuple[Tensor, Tensor, Tensor]:
    from nnunet_gdla.ops._triton_redundancy_kernels import alignment_kernel

    (batch, heads, count, _), tiles = y.shape, _tiles(y)
    axis, dot, norm = _alignment_results(y, with_axis)
    with torch.cuda.device_of(y):
        alignment_kernel[(-(-count // tiles["ROWS"]), batch)](
            y, v, *_graph(index, mask, weight), axis, dot, norm, count, heads, *_strides(y), *_strides(v),
            *_graph_strides(index), SLOTS=index.shape[2], WITH_AXIS=with_axis, **tiles,
        )  # fmt: skip
    return axis, dot, norm


@_alignment.register_fake
def _(
    y: Tensor, v: Tensor, index: Tensor, mask: Tensor, weight: Tensor, with_axis: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return _alignment_results(y, with_axis)


def _alignment_results(y: Tensor, with_axis: bool) -> tuple[Tensor, Tensor, Tensor]:
    (batch, heads, count, width), acc = y.shape, torch.promote_types(y.dtype, torch.float32)
    axis = y.new_empty((batch, count, heads, width) if with_axis else (0,), dtype=acc)
    return axis, y.new_empty((batch, heads, count), dtype=acc), y.new_empty((batch, heads, count), dtype=acc)


@torch.library.custom_op(
    "nnunet_gdla::correction_triton",
    mutates_args=(),
    schema="(Tensor y, Tensor v, Tensor index, Tensor mask, Tensor weight, Tensor beta, Tensor dot, int first) "
    "-> Tensor",
)
def _correction(
    y: Tensor, v: Tensor, index: Tensor, mask: Tensor, weight: Tensor, beta: Tensor, dot: Tensor, first: int
) -> Tensor:
    from nnunet_gdla.ops._triton_redundancy_kernels import correction_kernel

    (batch, heads, length, _), tiles, z = y.shape, _tiles(y), torch.empty_like(y)
    with torch.cuda.device_of(y):
        correction_kernel[(-(-length // tiles["ROWS"]), batch)](
            y, v, *_graph(index, mask, weight), beta, dot.contiguous(), z, length, beta.shape[2], first, heads,
            *_strides(y), *_strides(v), *_graph_strides(index), *beta.stride(), *_strides(z), SLOTS=index.shape[2],
            **tiles,
        )  # fmt: skip
    return z


@_correction.register_fake
def _(
    y: Tensor, v: Tensor, index: Tensor, mask: Tensor, weight: Tensor, beta: Tensor, dot: Tensor, first: int
) -> Tensor:
    return torch.empty_like(y)


@torch.library.custom_op(
    "nnunet_gdla::correction_triton_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor v, Tensor index, Tensor mask, Tensor weight, Tensor beta, Tensor dot, int first) "
    "-> (Tensor, Tensor)",
)
def _correction_backward(
    grad: Tensor, v: Tensor, index: Tensor, mask: Tensor, weight: Tensor, beta: Tensor, dot: Tensor, first: int
) -> tuple[Tensor, Tensor]:
    from nnunet_gdla.ops._triton_redundancy_kernels import correction_gradient_kernel

    (batch, heads, length, _), tiles = grad.shape, _tiles(grad)
    of_y, of_beta = torch.empty_like(grad), beta.new_empty(beta.shape)
    with torch.cuda.device_of(grad):
        correction_gradient_kernel[(-(-length // tiles["ROWS"]), batch)](
            grad, v, *_graph(index, mask, weight), beta, dot.contiguous(), of_y, of_beta, length, beta.shape[2], first,
            heads, *_strides(grad), *_strides(v), *_graph_strides(index), *beta.stride(), *_strides(of_y),
            SLOTS=index.shape[2], **tiles,
        )  # fmt: skip
    return of_y, of_beta


@_correction_backward.register_fake
def _(
    grad: Tensor, v: Tensor, index: Tensor, mask: Tensor, weight: Tensor, beta: Tensor, dot: Tensor, first: int
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(grad), beta.new_empty(beta.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ANN401
    _, v, index, mask, weight, beta, dot, ctx.first = inputs
    ctx.save_for_backward(v, index, mask, weight, beta, dot)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
    of_y, of_beta = _correction_backward(grad, *ctx.saved_tensors, ctx.first)
    return of_y, None, None, None, None, of_beta, None, None


_correction.register_autograd(_gradients, setup_context=_setup)


def _padded(size: int) -> int:
    return 1 << (int(size) - 1).bit_length()


def _tiles(y: Tensor) -> dict[str, Any]:
    """Return the sizes that the kernels are compiled for."""
    from triton import language as tl

    heads, width = _padded(y.shape[1]), _padded(y.shape[3])
    rows = max(1, TILE // (heads * width)) if y.is_cuda else ROWS_CPU
    acc = tl.float64 if y.dtype == torch.float64 else tl.float32
    return {"WIDTH": y.shape[3], "ROWS": rows, "H": heads, "D": width, "ACC": acc, "num_warps": 4}


def _strides(x: Tensor) -> tuple[int, int, int, int]:
    """Return the strides of (B, H, N, D) in the kernels' order: batch, row, head, channel."""
    return x.stride(0), x.stride(2), x.stride(1), x.stride(3)


def _graph(index: Tensor, mask: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the graph with one layout for its three parts."""
    return index.contiguous(), mask.contiguous(), weight.contiguous()


def _graph_strides(index: Tensor) -> tuple[int, int, int]:
    batch, rows, slots = index.shape
    return (rows * slots if batch > 1 else 0), slots, 1
