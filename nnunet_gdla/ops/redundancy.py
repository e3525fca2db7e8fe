"""Spatial redundancy: the mean of a patch's neighbours, and the correction along its direction.

Shape legend (this file): B batch, H heads, N patches, L rows of which N are patches, D head width, K neighbour slots.
"""

from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from nnunet_gdla.ops._checks import without_autocast
from nnunet_gdla.ops._dispatch import Form, Operator, choose
from nnunet_gdla.ops._fusion import first_derivatives_only, transforms_active
from nnunet_gdla.ops._gather import Neighbourhood, neighbourhood, neighbourhood_rows, row_chunks
from nnunet_gdla.ops._graph import NeighbourGraph, graph_for
from nnunet_gdla.ops._redundancy_calls import (
    Alignment,
    AlignmentCall,
    CorrectionCall,
    alignment_example,
    correction_example,
    redundancy_key,
)
from nnunet_gdla.ops._triton_redundancy import alignment_triton, correction_triton, why_not_triton

__all__ = [
    "Alignment",
    "alignment",
    "correction",
    "directions",
    "neighbourhood_mean",
    "redundancy_projection",
]

SMALLEST_NORM = 1e-12


def neighbourhood_mean(values: Float[Tensor, "*B N D"], graph: NeighbourGraph) -> Float[Tensor, "*B N D"]:
    r"""Average the values of each patch's neighbours, $r_i = \sum_k w_{ik} v_{j(i,k)} / \max(\sum_k w_{ik}, 1)$.

    Args:
        values: (N, D), (B, N, D) or (B, H, N, D), any unit.
        graph: (N, K), then shared by the batch, or (B, N, K).

    Returns:
        float32 (float64 for float64 values), zeros without neighbours; gradients reach `values`.

    Raises:
        ValueError: If the sizes of values and graph do not fit.

    Numerics: sums run in the result's dtype, also under autocast. Values that nobody sees, NaN included, reach nobody.
    Cost: one fused gather-and-sum over rows of all heads, O(B N K H D) time and no (N, K, D) array.
    Reference: `neighbourhood_mean_naive` in tests/reference.
    """
    if values.ndim not in (2, 3, 4):
        raise ValueError(f"values {tuple(values.shape)} must be (N, D), (B, N, D) or (B, H, N, D)")
    graph = graph_for(graph, (*values.shape[: values.ndim > 2], values.shape[-2]))
    v_BHND = values[(None,) * (values.ndim == 2)]
    v_BHND = v_BHND if v_BHND.ndim == 4 else v_BHND.unsqueeze(1)
    with without_autocast(values):
        acc = torch.promote_types(values.dtype, torch.float32)
        mean_BNC = neighbourhood_rows(neighbourhood(v_BHND, acc, *graph), slice(None))
        return mean_BNC.unflatten(-1, (v_BHND.shape[1], -1)).transpose(1, 2).reshape(values.shape)


def redundancy_projection(
    y: Float[Tensor, "*B N D"], axis: Float[Tensor, "*B N D"], beta: Float[Tensor, "*B N"]
) -> Float[Tensor, "*B N D"]:
    r"""Scale the part of `y` along an axis, $z = y - \beta\,(y^\top a)\,a$: 0 keeps it, 1 removes it, 2 reflects it.

    Args:
        y: Attention outputs per head.
        axis: Unit vectors a, or zero vectors where nothing is to change.
        beta: Signed coefficients.

    Returns:
        (..., N, D) in the dtype of `y`; `y` bit for bit where beta or $y^\top a$ is zero.

    Raises:
        ValueError: If the sizes do not fit.

    Numerics: runs in float32 (float64 for float64 `y`), also under autocast; no row touches another.
    Cost: O(N D) time. Saved for backward: axis, beta, one number a row, and `y` only if `axis` needs gradients.
    Reference: `redundancy_projection_naive` in tests/reference.
    """
    if y.shape != axis.shape or beta.shape != y.shape[:-1]:
        raise ValueError(
            f"y {tuple(y.shape)} and axis {tuple(axis.shape)} must have the same sizes, beta {tuple(beta.shape)} those "
            "without the last"
        )
    with without_autocast(y):
        acc = torch.promote_types(y.dtype, torch.float32)
        if transforms_active():
            return _corrected(y, axis.to(acc), beta.to(acc), 0)
        return _Correction.apply(y, axis.to(acc), beta.to(acc), None, 0, None)


@torch.no_grad()
def alignment(y: Float[Tensor, "B H N D"], v: Float[Tensor, "B H N D"], graph: NeighbourGraph) -> Alignment:
    r"""Return $\hat r = r / \max(|r|, 10^{-12})$ of the neighbours' mean value r, $y^\top \hat r$ and $|y|$.

    Args:
        y: Outputs of the patches.
        v: Their values.
        graph: (N, K) or (B, N, K).

    Returns:
        float32 (float64 for float64 `y`) without gradients.

    Raises:
        ValueError: If the sizes do not fit.
    """
    if y.shape != v.shape or y.ndim != 4:
        raise ValueError(f"y {tuple(y.shape)} and v {tuple(v.shape)} must have the same four sizes")
    graph_for(graph, (y.shape[0], y.shape[2]))
    return cast(Alignment, choose(_ALIGNMENT, AlignmentCall(y, v, graph)))


def _alignment_triton(call: AlignmentCall) -> Alignment:
    axis, dot, norm = alignment_triton(*call)
    return Alignment(cast("Tensor", axis), dot, norm)


@torch.no_grad()
def _alignment_plain(call: AlignmentCall) -> Alignment:
    y, v, graph = call.y, call.v, graph_for(call.graph, (call.y.shape[0], call.y.shape[2]))
    with without_autocast(y):
        acc = torch.promote_types(y.dtype, torch.float32)
        around = neighbourhood(v.detach(), acc, *graph)
        # the heads of a patch lie side by side, as they do in what the projections give out
        axis = y.new_empty((y.shape[0], y.shape[2], y.shape[1], y.shape[3]), dtype=acc).transpose(1, 2)
        dots, norms = [], []
        for rows in row_chunks(y.shape[2], y.shape[0] * y.shape[1] * y.shape[3], y.device):
            y_part, axis_part = y[:, :, rows].to(acc), directions(around, v.shape[1], rows)
            axis[:, :, rows] = axis_part
            dots.append((y_part * axis_part).sum(-1))
            norms.append(torch.linalg.vector_norm(y_part, dim=-1))
        return Alignment(axis, torch.cat(dots, dim=2), torch.cat(norms, dim=2))


def correction(
    y: Float[Tensor, "B H L D"],
    found: Alignment,
    beta: Float[Tensor, "B H N"],
    v: Float[Tensor, "B H L D"],
    graph: NeighbourGraph,
    *,
    first: int = 0,
) -> Float[Tensor, "B H L D"]:
    """`redundancy_projection` of the rows from `first` on along their neighbours' direction, in little memory.

    Args:
        y: Outputs; rows before and behind the patches are returned as they are.
        found: Of the patches.
        beta: Of the patches; patches without neighbours are returned as they are.
        v: Values, of which the backward pass builds the directions again; no gradient reaches them.
        graph: Of the patches, (N, K) or (B, N, K).
        first: Row of the first patch.

    Returns:
        (B, H, L, D) in the dtype of `y`.

    Raises:
        ValueError: If the sizes do not fit.

    Cost: what redundancy_projection costs, plus one neighbourhood mean in backward. Saved beside `v`, the graph and
        beta: one number a row and head.
    """
    graph_for(graph, (y.shape[0], beta.shape[2]))
    return cast(Tensor, choose(_CORRECTION, CorrectionCall(y, found, beta, v, graph, first)))


def _correction_triton(call: CorrectionCall) -> Tensor:
    return correction_triton(call.y, call.found.dot, call.beta, call.v, call.graph, first=call.first)


def _correction_plain(call: CorrectionCall) -> Tensor:
    y, found, beta, v, graph, first = call
    graph = graph_for(graph, (y.shape[0], beta.shape[2]))
    with without_autocast(y):
        beta = beta.to(found.dot.dtype).masked_fill(~graph.mask.any(-1).unsqueeze(1), 0)
        if transforms_active():
            return _corrected(y, found.axis, beta, first)
        return _Correction.apply(y, found.axis, beta, found.dot, first, v.detach(), *graph)


def _corrected(y: Tensor, axis: Tensor, beta: Tensor, first: int) -> Tensor:
    """The same in torch's operators, for function transforms, which take no autograd function of ours."""
    last = first + axis.shape[-2]
    rows = y[..., first:last, :].to(axis.dtype)
    rows = rows - (beta * (rows * axis).sum(-1)).unsqueeze(-1) * axis
    return torch.cat([y[..., :first, :], rows.to(y.dtype), y[..., last:, :]], dim=-2)


class _Correction(torch.autograd.Function):
    """z = y - beta (y.a) a, with a saved, or rebuilt in backward from the values of the neighbours."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        y: Tensor,
        axis: Tensor,
        beta: Tensor,
        dot: Tensor | None,
        first: int,
        v: Tensor | None,
        *graph: Tensor,
    ) -> Tensor:
        y_patches = y.narrow(-2, first, axis.shape[-2])
        dots, z = [], _copy_around(y, first, axis.shape[-2])
        for rows in row_chunks(axis.shape[-2], y[..., :1, :].numel(), y.device):
            y_part, a_part, b_part = y_patches[..., rows, :].to(axis.dtype), axis[..., rows, :], beta[..., rows]
            dots.append((y_part * a_part).sum(-1) if dot is None else dot[..., rows])
            z = _put(z, _corrected_rows(y_part, a_part, b_part, dots[-1]), rows, y, first)
        ctx.first, ctx.rebuild = first, v is not None
        y_if_needed = y if ctx.needs_input_grad[1] and v is None else None
        rest = (axis,) if v is None else (v, *graph)
        ctx.save_for_backward(beta, torch.cat(dots, dim=-1), y_if_needed, *rest)
        assert z is not None
        return z

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        beta, dot, y, *rest = ctx.saved_tensors
        first, count = ctx.first, dot.shape[-1]
        grad_patches = grad.narrow(-2, first, count)
        around = neighbourhood(rest[0].narrow(-2, first, count), dot.dtype, *rest[1:]) if ctx.rebuild else None
        of_y, of_beta, of_axis = _copy_around(grad, first, count), [], []
        for rows in row_chunks(count, grad[..., :1, :].numel(), grad.device):
            g_part, dot_part = grad_patches[..., rows, :].to(dot.dtype), dot[..., rows]
            a_part = rest[0][..., rows, :] if around is None else directions(around, grad.shape[1], rows)
            along = (g_part * a_part).sum(-1)
            y_part = torch.addcmul(g_part, (beta[..., rows] * along).unsqueeze(-1), a_part, value=-1)
            of_y = _put(of_y, y_part, rows, grad, first)
            of_beta.append(-along * dot_part)
            if y is not None:
                turned = along.unsqueeze(-1) * y[..., rows, :] + dot_part.unsqueeze(-1) * g_part
                of_axis.append(-beta[..., rows].unsqueeze(-1) * turned)
        grad_axis = torch.cat(of_axis, dim=-2) if of_axis else None
        return of_y, grad_axis, torch.cat(of_beta, dim=-1), *[None] * (6 if ctx.rebuild else 3)


def _corrected_rows(y: Tensor, axis: Tensor, beta: Tensor, dot: Tensor) -> Tensor:
    """Return y - beta (y.a) a for y and axis (..., n, D), beta and dot (..., n)."""
    # where beta is zero, an infinite output must not become NaN, nor -0 become 0
    step = torch.where(beta == 0, 0, beta * dot).unsqueeze(-1)
    return torch.where(step == 0, y, torch.addcmul(y, step, axis, value=-1))


def directions(around: Neighbourhood, heads: int, rows: slice) -> Tensor:
    """Return the unit vectors (B, H, n, D) of the neighbours' mean values."""
    mean = neighbourhood_rows(around, rows).unflatten(-1, (heads, -1))
    return mean.div_(torch.linalg.vector_norm(mean, dim=-1, keepdim=True).clamp_(min=SMALLEST_NORM)).transpose(1, 2)


def _copy_around(like: Tensor, first: int, count: int) -> Tensor | None:
    """Return a tensor like the given one with only the rows around `count` rows filled; None while traced."""
    if torch.compiler.is_compiling():
        return None
    out = torch.empty_like(like)
    out[..., :first, :] = like[..., :first, :]
    out[..., first + count :, :] = like[..., first + count :, :]
    return out


def _put(out: Tensor | None, part: Tensor, rows: slice, like: Tensor, first: int) -> Tensor:
    """Write a chunk of rows counted from `first`; with nothing to write into, put the only chunk between the others."""
    if out is None:
        end = first + part.shape[-2]
        return torch.cat([like[..., :first, :], part.to(like.dtype), like[..., end:, :]], dim=-2)
    out[..., first + rows.start : first + rows.stop, :] = part
    return out


_ALIGNMENT = Operator(
    "alignment",
    AlignmentCall,
    {
        "triton": Form(_alignment_triton, lambda call: why_not_triton(call.y, call.v, call.graph)),
        "plain": Form(_alignment_plain, lambda _: None),
    },
    key=redundancy_key,
    example=alignment_example,
    differentiable=(),
)
_CORRECTION = Operator(
    "correction",
    CorrectionCall,
    {
        "triton": Form(_correction_triton, lambda call: why_not_triton(call.y, call.v, call.graph, call.beta)),
        "plain": Form(_correction_plain, lambda _: None),
    },
    key=redundancy_key,
    example=correction_example,
    differentiable=("y", "beta"),
)
