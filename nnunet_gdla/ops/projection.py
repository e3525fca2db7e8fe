"""A linear map of tokens through one of PyTorch's two matrix libraries."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from nnunet_gdla.ops._checks import without_autocast
from nnunet_gdla.ops._fusion import gradients_follow, gradients_with_graph, may_fuse
from nnunet_gdla.ops._products import linear, product

__all__ = ["projection"]


def projection(
    x: Float[Tensor, "*batch I"],
    weight: Float[Tensor, "O I"],
    bias: Float[Tensor, " O"] | None,
    *,
    unused: Float[Tensor, "*batch O"] | None = None,
) -> Float[Tensor, "*batch O"]:
    """`torch.nn.functional.linear`, on a CPU by the library that is named, see `_products`.

    Args:
        x: Tokens.
        weight: Matrix.
        bias: Added to every token; None: nothing.
        unused: Contiguous memory that nobody reads any more; where no gradients follow, the result may lie there.

    Returns:
        The mapped tokens.
    """
    if x.numel() and x.ndim > 1 and may_fuse(x, weight, bias):
        if not gradients_follow(x, weight, bias):
            return linear(x, weight, bias, unused)
        return _Projection.apply(x, weight, bias)
    return F.linear(x, weight, bias)


class _Projection(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(x, weight, bias)
        return linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        x, weight, bias = ctx.saved_tensors
        if torch.is_grad_enabled():
            return tuple(gradients_with_graph(F.linear, (x, weight, bias), grad))
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        rows = grad.reshape(-1, grad.shape[-1])
        with without_autocast(grad):
            return (
                product(grad, weight) if wants_x else None,
                rows.mT @ x.reshape(-1, x.shape[-1]) if wants_weight else None,
                rows.sum(0) if wants_bias else None,
            )
