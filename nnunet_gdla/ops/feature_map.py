"""The positive feature map of linear attention."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["elu_plus_one"]


class _EluPlusOne(torch.autograd.Function):
    """Keeps only its own result for the backward pass: the derivative is min(phi, 1)."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.exp(x.clamp(max=0)).add_(x.clamp(min=0))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ANN401
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ANN401
        (phi,) = ctx.saved_tensors
        return grad * phi.clamp(max=1)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None], x: Tensor) -> tuple[Tensor, int | None]:  # noqa: ANN401
        return _EluPlusOne.apply(x), in_dims[0]


def elu_plus_one(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    r"""Map every entry to a positive number, $\varphi(x) = \mathrm{ELU}(x) + 1 = e^{\min(x,0)} + \max(x,0)$.

    Args:
        x: Any shape and floating dtype, dimensionless.

    Returns:
        A tensor of the same shape and dtype.

    Numerics: the exponential is never rounded against 1, so that the result keeps full relative accuracy for very
    negative entries, where ELU(x) + 1 computed in two steps cancels. The derivative is $\min(\varphi, 1)$, 1 at x = 0.
    Cost: one exponential an entry; saves one tensor for backward.
    Reference: Katharopoulos et al. 2020, eq. 7 (arXiv:2006.16236); `elu_plus_one_naive` in tests/reference.
    """
    return _EluPlusOne.apply(x)
