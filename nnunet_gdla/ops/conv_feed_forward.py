"""Feed-forward layers with a depthwise convolution in the middle, on tokens of an image; they keep one hidden tensor.

Shape legend (this file): B batch, N = H W tokens in raster order, C channels, F hidden channels (those of the
convolution), E channels that the last projection takes: F with GELU, F / 2 with a gate.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from nnunet_gdla.ops._checks import without_autocast
from nnunet_gdla.ops._fusion import gradients_follow, gradients_with_graph, may_fuse
from nnunet_gdla.ops._products import linear, product
from nnunet_gdla.ops._strips import strips, wants_strips

__all__ = ["FeedForwardWeights", "Middle", "conv_feed_forward"]

Middle = Literal["gelu", "gated_silu"]
MIDDLES = ("gelu", "gated_silu")
# Hidden channels are handled in groups of about this size, which stay in the cache from one step to the next.
GROUP_BYTES = 3 * 2**20
LEAST_CHANNELS = 64


class FeedForwardWeights(NamedTuple):
    """The tensors of one layer; those that may be None are left out of the computation then."""

    expand: Float[Tensor, "F C"]
    expand_bias: Float[Tensor, " F"] | None
    depthwise: Float[Tensor, "F 1 k k"]
    depthwise_bias: Float[Tensor, " F"] | None
    project: Float[Tensor, "C E"]
    project_bias: Float[Tensor, " C"] | None


def conv_feed_forward(
    x: Float[Tensor, "B N C"],
    grid: tuple[int, int],
    weights: FeedForwardWeights,
    *,
    middle: Middle,
) -> Float[Tensor, "B N C"]:
    r"""Expand, mix neighbours by a depthwise convolution, project.

    $$\mathrm{gelu}: W_2\,\mathrm{GELU}(\mathrm{DWC}(W_1 x)),\qquad
      \mathrm{gated\_silu}: W_2 (a \odot \mathrm{SiLU}(g)),\; [a; g] = \mathrm{DWC}(\mathrm{SiLU}(W_1 x)).$$

    Args:
        x: Tokens in raster order.
        grid: Height and width of the image.
        weights: Projections and convolution (odd square kernel, zero padding).
        middle: What lies between the projections.

    Returns:
        (B, N, C) in the dtype of `x`.

    Raises:
        ValueError: If `middle` is unknown.

    Cost: on a CPU in full precision only `x` and $W_1 x$ are kept for backward; convolution and activation, which are
    cheap beside the products, are computed again.
    Reference: PVTv2 (arXiv:2106.13797), GDLA paper, Eq. 28 (arXiv:2603.02727); `mix_ffn_naive` in tests/reference.
    """
    if middle not in MIDDLES:
        raise ValueError(f"unknown middle {middle!r}; choose one of {', '.join(MIDDLES)}")
    options = _Options(grid, middle, gradients_follow(x, *weights))
    if may_fuse(x, *weights) and x.numel():
        if not options.keep and wants_strips(x.shape[0] * x.shape[1], _narrowest(weights), x.element_size()):
            return _in_strips(x, weights, options)
        return _ConvFeedForward.apply(options, x, *weights)
    return _plain(options, x, *weights)


class _Options(NamedTuple):
    grid: tuple[int, int]
    middle: Middle
    keep: bool
    """Whether backward may follow."""


def _plain(options: _Options, x: Tensor, *tensors: Tensor | None) -> Tensor:
    weights = _weights(tensors)
    hidden = F.linear(x, weights.expand, weights.expand_bias)
    if options.middle == "gelu":
        return F.linear(F.gelu(_convolve(hidden, weights, options)), weights.project, weights.project_bias)
    value, gate = _convolve(F.silu(hidden), weights, options).chunk(2, dim=-1)
    return F.linear(value * F.silu(gate), weights.project, weights.project_bias)


def _weights(tensors: Sequence[Tensor | None]) -> FeedForwardWeights:
    return FeedForwardWeights(*cast("Sequence[Tensor]", tensors))


def _convolve(hidden_BNF: Tensor, weights: FeedForwardWeights, options: _Options) -> Tensor:
    kernel = weights.depthwise
    image = F.conv2d(
        _image(hidden_BNF, options), kernel, weights.depthwise_bias, padding=kernel.shape[-1] // 2, groups=len(kernel)
    )
    return _tokens(image)


def _image(x_BNF: Tensor, options: _Options) -> Tensor:
    # Not transposed first: a batch of one would get a stride that convolutions take for no channels-last, and copy.
    return x_BNF.unflatten(1, options.grid).permute(0, 3, 1, 2)


def _tokens(x_BFHW: Tensor) -> Tensor:
    return x_BFHW.flatten(2).transpose(1, 2)


def _narrowest(weights: FeedForwardWeights) -> int:
    """Channels of the convolution in the smallest group."""
    channels = weights.project.shape[1]
    return len(weights.expand) // channels * min(LEAST_CHANNELS, channels)


def _in_strips(x: Tensor, weights: FeedForwardWeights, options: _Options) -> Tensor:
    """The layer where nothing is kept, an image and some rows of it at a time, of these some channels."""
    out = x.new_empty(*x.shape[:2], len(weights.project))
    kernel, row_bytes = weights.depthwise.shape[-1], options.grid[1] * _narrowest(weights) * x.element_size()
    for b in range(len(x)):
        for strip in strips(options.grid, kernel, row_bytes):
            part, here = x[b : b + 1, strip.around], options._replace(grid=strip.grid)
            target = out[b, strip.tokens]
            for number, group in enumerate(_groups(part, weights)):
                chosen = _take(weights, group)
                hidden = linear(part, chosen.expand, chosen.expand_bias)
                last_nE = _middle(hidden, chosen, here)[0][0, strip.within]
                if number:
                    target.addmm_(last_nE, chosen.project.mT)
                else:
                    target.copy_(linear(last_nE, chosen.project, weights.project_bias))
    return out


class _ConvFeedForward(torch.autograd.Function):
    """The whole layer, a group of hidden channels at a time: up to the last projection they do not meet."""

    @staticmethod
    def forward(ctx: Any, options: _Options, x: Tensor, *tensors: Tensor | None) -> Tensor:  # noqa: ANN401
        weights = _weights(tensors)
        out, kept = None, []
        for group in _groups(x, weights):
            part = _take(weights, group)
            hidden = linear(x, part.expand, part.expand_bias)
            kept += [hidden] * options.keep
            last = _middle(hidden, part, options)[0]
            if out is None:
                out = linear(last, part.project, weights.project_bias)
            else:
                out.flatten(0, 1).addmm_(last.flatten(0, 1), part.project.mT)
        if options.keep:
            ctx.save_for_backward(x, *tensors, *kept)
        ctx.options = options
        return cast("Tensor", out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        x, *rest = ctx.saved_tensors
        tensors, kept = rest[: len(FeedForwardWeights._fields)], rest[len(FeedForwardWeights._fields) :]
        options: _Options = ctx.options
        if torch.is_grad_enabled():
            inputs = (x, *tensors)
            return None, *gradients_with_graph(lambda *leaves: _plain(options, *leaves), inputs, grad)
        with without_autocast(grad):
            grads = _backward(options, kept, x, _weights(tensors), grad.contiguous())
        wanted = zip(grads, ctx.needs_input_grad[1:], strict=True)
        return None, *(found if needed else None for found, needed in wanted)


def _groups(x: Tensor, weights: FeedForwardWeights) -> list[list[slice]]:
    """Hidden channels to handle together: of the expansion, which are those of the convolution.

    With a gate the channels of a value and of its gate go together: two slices.
    """
    channels = weights.project.shape[1]
    copies = len(weights.expand) // channels
    size = x.shape[0] * x.shape[1] * channels * copies * x.element_size()
    width = -(-channels // max(1, min(size // GROUP_BYTES, channels // LEAST_CHANNELS)))
    width = -(-width // LEAST_CHANNELS) * LEAST_CHANNELS
    starts = range(0, channels, width)
    return [
        [slice(copy * channels + start, copy * channels + min(start + width, channels)) for copy in range(copies)]
        for start in starts
    ]


def _take(weights: FeedForwardWeights, group: list[slice]) -> FeedForwardWeights:
    """The weights of some hidden channels."""
    if group[0] == slice(0, weights.project.shape[1]):
        return weights

    def rows(tensor: Tensor) -> Tensor:
        return torch.cat([tensor[part] for part in group])

    return weights._replace(
        expand=rows(weights.expand),
        expand_bias=None if weights.expand_bias is None else rows(weights.expand_bias),
        depthwise=rows(weights.depthwise),
        depthwise_bias=None if weights.depthwise_bias is None else rows(weights.depthwise_bias),
        project=weights.project[:, group[0]],
    )


def _middle(hidden: Tensor, weights: FeedForwardWeights, options: _Options) -> tuple[Tensor, Tensor, Tensor]:
    """What the last projection takes, what the convolution gave, and what it took."""
    if options.middle == "gelu":
        mixed = _convolve(hidden, weights, options)
        return F.gelu(mixed), mixed, hidden
    taken = F.silu(hidden)
    mixed = _convolve(taken, weights, options)
    value, gate = mixed.chunk(2, dim=-1)
    return F.silu(gate).mul_(value), mixed, taken


def _backward(
    options: _Options, kept: Sequence[Tensor], x: Tensor, weights: FeedForwardWeights, grad: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients of `x` and of all weights, in their order."""
    groups = _groups(x, weights)
    grad_x, parts = None, []
    for group, hidden in zip(groups, kept, strict=True):
        part = _take(weights, group)
        grads, grad_hidden = _backward_group(options, hidden, x, part, grad)
        parts.append(grads)
        if grad_x is None:
            grad_x = product(grad_hidden, part.expand)
        else:
            grad_x.flatten(0, 1).addmm_(grad_hidden.flatten(0, 1), part.expand)
    hidden_grads = [_join(column, len(groups[0])) for column in list(zip(*parts, strict=True))[:4]]
    project = torch.cat([part.project for part in parts], dim=1)
    return grad_x, *hidden_grads, project, grad.sum((0, 1))


def _join(column: Sequence[Tensor | None], copies: int) -> Tensor | None:
    """Bring the gradients of groups into the order of the channels: all values, then all gates."""
    tensors = [tensor for tensor in column if tensor is not None]
    split = [tensor.chunk(copies) for tensor in tensors]
    return torch.cat([pieces[copy] for copy in range(copies) for pieces in split]) if split else None


class _GroupGrads(NamedTuple):
    expand: Tensor
    expand_bias: Tensor
    depthwise: Tensor
    depthwise_bias: Tensor | None
    project: Tensor


def _backward_group(
    options: _Options, hidden: Tensor, x: Tensor, weights: FeedForwardWeights, grad: Tensor
) -> tuple[_GroupGrads, Tensor]:
    """Gradients of the weights of one group and of its hidden tensor."""
    last, mixed, taken = _middle(hidden, weights, options)
    grad_project = grad.flatten(0, 1).mT @ last.flatten(0, 1)
    del last
    grad_mixed = _grad_of_middle(product(grad, weights.project), mixed, options)
    del mixed
    kernel = weights.depthwise
    grad_taken, grad_depthwise, grad_depthwise_bias = torch.ops.aten.convolution_backward(
        _image(grad_mixed, options),
        _image(taken, options),
        kernel,
        [len(kernel)],
        [1, 1],
        [kernel.shape[-1] // 2] * 2,
        [1, 1],
        False,
        [0, 0],
        len(kernel),
        [True, True, weights.depthwise_bias is not None],
    )
    del taken, grad_mixed
    grad_hidden = _tokens(grad_taken)
    if options.middle == "gated_silu":
        grad_hidden = torch.ops.aten.silu_backward(grad_hidden, hidden)
    rows = grad_hidden.flatten(0, 1)
    grad_expand = rows.mT @ x.flatten(0, 1)
    grads = _GroupGrads(grad_expand, rows.sum(0), grad_depthwise, grad_depthwise_bias, grad_project)
    return grads, grad_hidden


def _grad_of_middle(grad_last: Tensor, mixed: Tensor, options: _Options) -> Tensor:
    if options.middle == "gelu":
        return torch.ops.aten.gelu_backward(grad_last, mixed)
    value, gate = mixed.chunk(2, dim=-1)
    grad_mixed = torch.empty_like(mixed)
    grad_value, grad_gate = grad_mixed.chunk(2, dim=-1)
    torch.mul(grad_last, F.silu(gate), out=grad_value)
    torch.ops.aten.silu_backward(grad_last.mul_(value), gate, grad_input=grad_gate)
    return grad_mixed
