"""The first row of a Nystrom attention layer alone: what the last block of a slide model needs.

Shape legend (this file): B batch, L tokens, C channels = H D, H heads, D head width, R landmarks, S = H R.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from nnunet_gdla.ops._checks import without_autocast
from nnunet_gdla.ops._fusion import first_derivatives_only, gradients_follow
from nnunet_gdla.ops._memory import steady_heap
from nnunet_gdla.ops._nystrom_backward import add_means
from nnunet_gdla.ops._nystrom_forward import LayerWeights, Maps, Sizes, landmark_maps, value_part
from nnunet_gdla.ops._nystrom_rows import Summary, grad_of_summary, summarise
from nnunet_gdla.ops.nystrom import PinvInit, check_nystrom_options, segment_means

__all__ = ["nystrom_class_row"]


def nystrom_class_row(
    x: Float[Tensor, "B L C"],
    weights: LayerWeights,
    *,
    num_heads: int,
    num_landmarks: int = 64,
    pinv_iterations: int = 6,
    pinv_init: PinvInit = "per_matrix",
) -> Float[Tensor, "B 1 C"]:
    r"""Return row 0 of `nystrom_layer` without a correction; where that fits, this does.

    Args:
        x: Tokens.
        weights: Rows q, k, v of the first layer, each head-major.
        num_heads: H.
        num_landmarks: As for `nystrom_attention`, like the next two.
        pinv_iterations: Steps of the pseudo-inverse.
        pinv_init: Its start.

    Raises:
        ValueError: If an option is unknown.

    Numerics: in the dtype of `x`, float32 or float64. Cannot be differentiated twice.
    Cost: 2 C S products a token, and twice as many in backward. Kept for that: (B, L, S) exponentials.
    Reference: row 0 of two linear layers around `nystrom_attention_naive` in tests/reference.
    """
    check_nystrom_options(num_landmarks, pinv_iterations, pinv_init)
    sizes = Sizes(num_heads, num_landmarks, pinv_iterations, pinv_init)
    return _ClassRow.apply(x, *weights, sizes, gradients_follow(x, *weights))


class _ClassRow(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        qkv: Tensor,
        qkv_bias: Tensor,
        out: Tensor,
        out_bias: Tensor,
        sizes: Sizes,
        keep: bool,
    ) -> Tensor:
        steady_heap()
        weights, both = LayerWeights(qkv, qkv_bias, out, out_bias), 2 * x.shape[-1]
        means = segment_means(x, sizes.landmarks)
        maps = landmark_maps(means, x.shape[1], qkv[:both], qkv_bias[:both], sizes)
        kept = x.new_empty(*x.shape[:2], maps.key.shape[1]) if keep else None
        summaries = [
            summarise(x[b], key, value_part(weights), sizes.heads, None if kept is None else kept[b])
            for b, key in enumerate(maps.key)
        ]
        summary = [torch.stack(parts) for parts in zip(*summaries, strict=True)]
        ctx.sizes = sizes
        ctx.save_for_backward(x, *weights, means, kept, *summary)
        return _row(x[:, :1], maps, summary[0], out, out_bias)

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        with without_autocast(grad):
            return _backward(ctx, grad)


def _row(first_B1C: Tensor, maps: Maps, values_BHRD: Tensor, out: Tensor, out_bias: Tensor) -> Tensor:
    scores_BHR = (first_B1C @ maps.query.mT + maps.bias.unsqueeze(1)).unflatten(-1, values_BHRD.shape[1:3]).squeeze(1)
    row_BH1D = scores_BHR.softmax(-1).unsqueeze(2) @ (maps.inverse @ values_BHRD)
    return F.linear(row_BH1D.transpose(1, 2).flatten(2), out, out_bias)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
    """All that is small goes through autograd once more; the pass over the rows does not."""
    x, qkv, qkv_bias, out, out_bias, means, kept, values, tokens, scale = ctx.saved_tensors
    both = 2 * x.shape[-1]
    with torch.enable_grad():
        parts = (means, qkv[:both], qkv_bias[:both], x[:, :1], values, out, out_bias)
        leaves = [part.detach().requires_grad_() for part in parts]
        maps = landmark_maps(leaves[0], x.shape[1], leaves[1], leaves[2], ctx.sizes)
        row = _row(leaves[3], maps, leaves[4], leaves[5], leaves[6])
    *of_maps, of_first, of_values, of_out, of_out_bias = torch.autograd.grad(row, leaves, grad, retain_graph=True)
    of_x, of_key = torch.empty_like(x), torch.empty_like(maps.key)
    of_qkv, of_bias = torch.zeros_like(qkv), torch.zeros_like(qkv_bias)
    value = value_part(LayerWeights(qkv, qkv_bias, out, out_bias))
    for b, summary in enumerate(map(Summary, values, tokens, scale)):
        given = (x[b], maps.key[b].detach(), value, summary, kept[b], of_values[b], of_x[b])
        of_key[b], of_value, of_value_bias = grad_of_summary(*given, fresh=True)
        of_qkv[both:] += of_value
        of_bias[both:] += of_value_bias
    through_key = torch.autograd.grad(maps.key, leaves[:3], of_key)
    of_means, of_both, of_both_bias = (one + two for one, two in zip(of_maps, through_key, strict=True))
    of_qkv[:both], of_bias[:both] = of_both, of_both_bias
    add_means(of_x, of_means)
    of_x[:, :1] += of_first
    return of_x, of_qkv, of_bias, of_out, of_out_bias, None, None
