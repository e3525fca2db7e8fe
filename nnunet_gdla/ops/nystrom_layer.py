r"""A whole Nystrom attention layer, projections included, that never builds queries or keys.

Landmarks are few: the scores of all tokens to them are $x (W_q^\top \tilde k)$ and $x (W_k^\top \tilde q)$, products
with small matrices that are as cheap as the projections they replace.

Shape legend (this file): B batch, L tokens, N patches, C channels = H D, H heads, D head width, R landmarks, S = H R,
K neighbour slots.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from nnunet_gdla.ops._checks import without_autocast
from nnunet_gdla.ops._fusion import first_derivatives_only, gradients_follow, may_fuse
from nnunet_gdla.ops._graph import graph_for
from nnunet_gdla.ops._nystrom_backward import Backward
from nnunet_gdla.ops._nystrom_corrected import Correction, Patches, attend_and_correct
from nnunet_gdla.ops._nystrom_forward import Kept, LayerWeights, Sizes, attend
from nnunet_gdla.ops.nystrom import PinvInit, check_nystrom_options

__all__ = ["Correction", "LayerWeights", "Patches", "nystrom_layer", "nystrom_layer_fits"]

# Below, the products with the weights that make the small matrices cost more than they save.
FEWEST_ROWS = 2048


def nystrom_layer_fits(x: Tensor, weights: LayerWeights, *, num_heads: int, num_landmarks: int) -> bool:
    """Whether `nystrom_layer` takes these tensors and is the faster way.

    On a CPU, in float32 or float64 without autocast, for long sequences and landmarks that are not too many. Not while
    a program is traced: what it does chunk by chunk would be unrolled.
    """
    if torch.compiler.is_exporting() or not may_fuse(x, *weights):
        return False
    return num_heads * num_landmarks <= x.shape[-1] + num_landmarks and x.shape[1] >= FEWEST_ROWS


def nystrom_layer(
    x: Float[Tensor, "B L C"],
    weights: LayerWeights,
    *,
    num_heads: int,
    num_landmarks: int = 64,
    pinv_iterations: int = 6,
    pinv_init: PinvInit = "per_matrix",
    correction: Correction | None = None,
) -> Float[Tensor, "B L C"]:
    r"""Project to q, k and v, attend through landmarks, correct patch rows, project: `nystrom_attention` as a layer.

    $$s\,q \tilde k^\top = x\,(s\,W_q^\top \tilde k^\top) + s\,b_q^\top \tilde k^\top,\qquad
      \mathrm{softmax}_n(s\,\tilde q k_n^\top) = \mathrm{softmax}_n(s\,\tilde q W_k\,x_n),$$

    with the landmarks taken from the means of the tokens. The bias of the keys adds the same to all scores of a
    landmark, which the softmax does not see.

    Args:
        x: Tokens.
        weights: Rows q, k, v of the first layer, each head-major.
        num_heads: H.
        num_landmarks: As for `nystrom_attention`, like the next two.
        pinv_iterations: Steps of the pseudo-inverse.
        pinv_init: Its start.
        correction: What to do with the patch rows of each head's output.

    Returns:
        (B, L, C).

    Raises:
        ValueError: If an option is unknown or sizes do not fit.

    Numerics: in the dtype of `x`, float32 or float64. Where gradients follow, coefficients that are all zero give the
        bits of the same layer without correction.
    Cost: 4 C S products a token forward (S = C with 64 landmarks for heads of 64 channels), 8 C S backward, a few rows
        at a time; a correction adds C C and some C D in each. Kept for backward beside the input: the two softmaxes,
        and with a correction two numbers a patch and head; values are projected anew for it.
    Reference: two linear layers around `nystrom_attention_naive` in tests/reference.
    """
    check_nystrom_options(num_landmarks, pinv_iterations, pinv_init)
    channels = x.shape[-1]
    if weights.qkv.shape != (3 * channels, channels) or channels % num_heads:
        raise ValueError(f"weights {tuple(weights.qkv.shape)} do not project {tuple(x.shape)} for {num_heads} heads")
    sizes = Sizes(num_heads, num_landmarks, pinv_iterations, pinv_init)
    keep = gradients_follow(x, *weights) or (correction is not None and torch.is_grad_enabled())
    if correction is None:
        with torch.no_grad():
            out, kept = attend(x, weights, sizes, keep=keep)
        return out if kept is None else _Layer.apply(x, *weights, _Result(out, kept, sizes))
    found = attend_and_correct(x, weights, sizes, correction, keep=keep)
    if found.kept is None:
        return found.out
    graph = graph_for(correction.graph, (x.shape[0], correction.graph.index.shape[-2]))
    result = _Result(found.out, found.kept, sizes, correction.first, found.dots, graph)
    return _Layer.apply(x, *weights, result, *found.betas)


class _Result(NamedTuple):
    out: Tensor
    kept: Kept
    sizes: Sizes
    first: int = 0
    dots: Sequence[Tensor] = ()
    graph: Sequence[Tensor] = ()


class _Layer(torch.autograd.Function):
    """Hangs what has been computed into the graph."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        qkv: Tensor,
        qkv_bias: Tensor,
        out: Tensor,
        out_bias: Tensor,
        result: _Result,
        *betas: Tensor,
    ) -> Tensor:
        ctx.sizes, ctx.first = result.sizes, result.first
        means, exponentials, softmax, summaries = result.kept
        summary = [torch.stack(parts) for parts in zip(*summaries, strict=True)]
        tensors = (x, qkv, qkv_bias, out, out_bias, means, exponentials, softmax, *summary)
        ctx.save_for_backward(*tensors, *result.graph, *betas, *result.dots)
        return result.out

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        with without_autocast(grad):
            return Backward(ctx).run(grad)
