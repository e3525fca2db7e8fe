"""Two linear layers with GELU between them on every token, a cacheful of tokens at a time.

Shape legend (this file): L tokens, n tokens of a chunk, C channels, E hidden channels, O outputs.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from nnunet_gdla.ops._checks import without_autocast
from nnunet_gdla.ops._fusion import first_derivatives_only, gradients_follow

__all__ = ["MlpWeights", "NormWeights", "token_mlp"]

# Hidden numbers of one chunk.
NUMBERS_AT_ONCE = 3 << 18


class MlpWeights(NamedTuple):
    """Of both layers."""

    first: Float[Tensor, "E C"]
    first_bias: Float[Tensor, " E"] | None
    second: Float[Tensor, "O E"]
    second_bias: Float[Tensor, " O"] | None


class NormWeights(NamedTuple):
    """Of the layer norm in front."""

    weight: Float[Tensor, " C"]
    bias: Float[Tensor, " C"]
    eps: float


def token_mlp(
    x: Float[Tensor, "*batch C"], weights: MlpWeights, norm: NormWeights | None = None, *, keep_hidden: bool = True
) -> Float[Tensor, "*batch O"]:
    r"""Return $W_2\,\mathrm{GELU}(W_1\,\mathrm{norm}(x) + b_1) + b_2$, exact GELU.

    Args:
        x: Tokens, float32 or wider, in the dtype of all weights.
        weights: Of the layers; a bias may be None.
        norm: Layer norm in front, or None.
        keep_hidden: Keep the values before GELU for backward; else they too are computed again.

    Numerics: in the dtype of `x`. Cannot be differentiated twice.
    Cost: 1 or 2 tensors of width E for all tokens less than layer by layer: beside `x` only the values before GELU are
        kept, or nothing.
    """
    tensors = (x, *weights, *(norm or (None, None, 0.0))[:2])
    keep = keep_hidden and gradients_follow(*tensors)
    return _TokenMlp.apply(*tensors, 0.0 if norm is None else norm.eps, keep)


def _chunks(x_LC: Tensor, hidden: int) -> list[slice]:
    at_once = max(1, NUMBERS_AT_ONCE // hidden)
    return [slice(start, min(start + at_once, len(x_LC))) for start in range(0, len(x_LC), at_once)]


class _TokenMlp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        first: Tensor,
        first_bias: Tensor | None,
        second: Tensor,
        second_bias: Tensor | None,
        norm_weight: Tensor | None,
        norm_bias: Tensor | None,
        eps: float,
        keep: bool,
    ) -> Tensor:
        x_LC = x.flatten(0, -2)
        cuts = _chunks(x_LC, len(first))
        out = x.new_empty(len(x_LC), len(second))
        hidden = x.new_empty(len(x_LC) if keep else _most(cuts), len(first))
        for cut in cuts:
            h_nE = hidden[cut] if keep else hidden[: cut.stop - cut.start]
            normed = x_LC[cut]
            if norm_weight is not None:
                normed = F.layer_norm(normed, normed.shape[-1:], norm_weight, norm_bias, eps)
            _linear(normed, first, first_bias, h_nE)
            _linear(F.gelu(h_nE), second, second_bias, out[cut])
        ctx.eps = eps
        ctx.save_for_backward(
            x, first, first_bias, second, second_bias, norm_weight, norm_bias, hidden if keep else None
        )
        return out.unflatten(0, x.shape[:-1])

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        with without_autocast(grad):
            return _backward(ctx, grad)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
    """Gradients of all inputs, chunk by chunk."""
    x, first, first_bias, second, second_bias, norm_weight, norm_bias, hidden = ctx.saved_tensors
    of_first, of_second = torch.zeros_like(first), torch.zeros_like(second)
    of_first_bias, of_second_bias, of_weight, of_bias = (
        None if part is None else torch.zeros_like(part) for part in (first_bias, second_bias, norm_weight, norm_bias)
    )
    x_LC, grad_LO = x.flatten(0, -2), grad.flatten(0, -2)
    cuts = _chunks(x_LC, len(first))
    grad_x = torch.empty_like(x_LC)
    scratch = x.new_empty(2, _most(cuts), len(first))
    for cut in cuts:
        x_nC, g_nO, size = x_LC[cut], grad_LO[cut], cut.stop - cut.start
        normed, mean, rstd = x_nC, None, None
        if norm_weight is not None:
            normed, mean, rstd = torch.native_layer_norm(x_nC, x_nC.shape[-1:], norm_weight, norm_bias, ctx.eps)
        h_nE = _linear(normed, first, first_bias, scratch[0, :size]) if hidden is None else hidden[cut]
        of_second.addmm_(g_nO.T, F.gelu(h_nE))
        of_h = torch.mm(g_nO, second, out=scratch[1, :size])
        of_h = torch.ops.aten.gelu_backward(of_h, h_nE)
        of_first.addmm_(of_h.T, normed)
        _add_sum(of_first_bias, of_h)
        _add_sum(of_second_bias, g_nO)
        torch.mm(of_h, first, out=grad_x[cut])
        if of_weight is not None and of_bias is not None:
            part, weight_part, bias_part = torch.ops.aten.native_layer_norm_backward(
                grad_x[cut], x_nC, x_nC.shape[-1:], mean, rstd, norm_weight, norm_bias, [True, True, True]
            )
            grad_x[cut] = part
            of_weight.add_(weight_part)
            of_bias.add_(bias_part)
    grads = of_first, of_first_bias, of_second, of_second_bias, of_weight, of_bias
    return grad_x.unflatten(0, x.shape[:-1]), *grads, None, None


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    return torch.mm(x, weight.T, out=out) if bias is None else torch.addmm(bias, x, weight.T, out=out)


def _add_sum(total: Tensor | None, rows: Tensor) -> None:
    if total is not None:
        total.add_(rows.sum(0))


def _most(cuts: list[slice]) -> int:
    return cuts[0].stop - cuts[0].start if cuts else 0
