"""Exclusive self-attention (XSA): what a token's output says beyond its own value.

Shape legend (this file): B batch and heads, N tokens, D head width.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nnunet_gdla.ops._checks import without_autocast
from nnunet_gdla.ops._fusion import first_derivatives_only, transforms_active
from nnunet_gdla.ops._gather import row_chunks

__all__ = ["exclusive_projection"]

SMALLEST_NORM = 1e-12


def exclusive_projection(y: Float[Tensor, "*B N D"], v: Float[Tensor, "*B N D"]) -> Float[Tensor, "*B N D"]:
    r"""Remove from each output its part along the token's own value, $z = y - (y^\top \hat v)\,\hat v$.

    Args:
        y: Attention outputs per head.
        v: Values of the same tokens; they receive gradients.

    Returns:
        (..., N, D) in the dtype of `y`; $\hat v = v / \max(|v|, 10^{-12})$, so that a zero value changes nothing.

    Raises:
        ValueError: If the sizes of `y` and `v` differ.

    Numerics: runs in float32 (float64 if one of them is), also under autocast; no row touches another.
    Cost: O(N D) time in row chunks; saves `y` and `v` for backward and nothing else.
    Reference: the comparator of Gated SRP; `exclusive_projection_naive` in tests/reference.
    """
    if y.shape != v.shape:
        raise ValueError(f"y {tuple(y.shape)} and v {tuple(v.shape)} must have the same sizes")
    with without_autocast(y):
        if transforms_active():
            y_part, axis, _ = _widened(y, v, slice(None))
            return (y_part - (y_part * axis).sum(-1, keepdim=True) * axis).to(y.dtype)
        return _Exclusive.apply(y, v)


class _Exclusive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, v: Tensor) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(y, v)
        parts = []
        for rows in row_chunks(y.shape[-2], y[..., :1, :].numel(), y.device):
            y_part, axis, _ = _widened(y, v, rows)
            dot = (y_part * axis).sum(-1, keepdim=True)
            parts.append(torch.addcmul(y_part, dot, axis, value=-1).to(y.dtype))
        return torch.cat(parts, dim=-2) if parts else y.clone()

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        y, v = ctx.saved_tensors
        of_y, of_v = [grad[..., :0, :]], [v[..., :0, :]]
        for rows in row_chunks(y.shape[-2], y[..., :1, :].numel(), y.device):
            y_part, axis, length = _widened(y, v, rows)
            g_part = grad[..., rows, :].to(axis.dtype)
            dot, along = (y_part * axis).sum(-1, keepdim=True), (g_part * axis).sum(-1, keepdim=True)
            of_y.append(torch.addcmul(g_part, along, axis, value=-1).to(y.dtype))
            # of the axis first; then what turns the value, as what lengthens it changes nothing
            turned = -(along * y_part + dot * g_part)
            lengthened = (turned * axis).sum(-1, keepdim=True).masked_fill_(length < SMALLEST_NORM, 0)
            of_v.append(
                (torch.addcmul(turned, lengthened, axis, value=-1) / length.clamp(min=SMALLEST_NORM)).to(v.dtype)
            )
        return torch.cat(of_y, dim=-2), torch.cat(of_v, dim=-2)


def _widened(y: Tensor, v: Tensor, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
    """Return these rows of y, the unit vectors of v and their lengths in full precision."""
    acc = torch.promote_types(torch.promote_types(y.dtype, v.dtype), torch.float32)
    v_part = v[..., rows, :].to(acc)
    length = torch.linalg.vector_norm(v_part, dim=-1, keepdim=True)
    return y[..., rows, :].to(acc), v_part / length.clamp(min=SMALLEST_NORM), length
