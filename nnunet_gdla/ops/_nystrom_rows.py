"""The passes over all rows of a Nystrom layer: rows in, landmarks out, and back, a cacheful of rows at a time.

No autograd in here: `nystrom_layer` keeps what backward needs. One batch element at a time.

Shape legend (this file): L tokens, n rows of a chunk, C channels = H D, H heads, D head width, R landmarks, S = H R.
"""

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "Mixing",
    "Summary",
    "chunks",
    "grad_of_mixing",
    "grad_of_projected_mixing",
    "grad_of_summary",
    "longest",
    "mix_rows",
    "soften_rows",
    "summarise",
]

# Numbers of one chunk of rows: a handful of such chunks fit a core's cache.
NUMBERS_AT_ONCE = 3 << 17


def chunks(rows: int, width: int) -> list[slice]:
    """Cut rows into chunks. All passes cut in the same places, so that a row has the same bits in all of them."""
    at_once = max(1, NUMBERS_AT_ONCE // width)
    return [slice(start, min(start + at_once, rows)) for start in range(0, rows, at_once)]


class Summary(NamedTuple):
    """What the landmarks' softmax over all rows gives, and what is kept of it."""

    values: Tensor
    """(H, R, D), the mean values that the landmarks see."""
    tokens: Tensor
    """(H, R, C), the mean tokens, of which the mean values are a projection; without elements if values were summed."""
    scale: Tensor
    """(chunks, S), times which the kept exponentials of a chunk are the softmax."""


def _heads(rows: Tensor, heads: int) -> Tensor:
    """(n, H D) as (H, n, D)."""
    return rows.unflatten(-1, (heads, -1)).transpose(0, 1)


def summarise(
    x: Tensor,
    key: Tensor,
    value: tuple[Tensor, Tensor],
    heads: int,
    kept: Tensor | None = None,
    values: Tensor | None = None,
) -> Summary:
    """Return softmax over rows of `x key^T`, transposed, times the values of the rows.

    The softmax runs once over the rows: what was summed is scaled whenever a larger score comes along. Tokens are
    summed and their means projected, which backward needs; only where values are at hand and nothing is kept, values.

    Args:
        x: (L, C).
        key: (S, C), from tokens to the scores of each landmark.
        value: Weight (C, C) and bias (C) from tokens to values.
        heads: H.
        kept: (L, S), for the exponentials, or None.
        values: (L, C), for the values, or None.
    """
    (weight, bias), by_tokens = value, values is None or kept is not None
    cuts, landmarks = chunks(*x.shape), len(key) // heads
    scores = x.new_empty(longest(cuts), len(key))
    top, total = x.new_full((len(key),), -torch.inf), x.new_zeros(len(key))
    tops, out = [], x.new_zeros(heads, landmarks, x.shape[1] if by_tokens else len(weight) // heads)
    for cut in cuts:
        size, x_nC = cut.stop - cut.start, x[cut]
        e_nS = torch.mm(x_nC, key.T, out=scores[:size] if kept is None else kept[cut])
        new_top = torch.maximum(top, e_nS.amax(0))
        e_nS.sub_(new_top).exp_()
        shrink = (top - new_top).exp_()
        total = total.mul_(shrink).add_(e_nS.sum(0))
        out.mul_(shrink.view(heads, -1, 1))
        if values is not None:
            torch.addmm(bias, x_nC, weight.T, out=values[cut])
        if by_tokens:
            out.flatten(0, 1).addmm_(e_nS.T, x_nC)
        elif values is not None:
            out.baddbmm_(_heads(e_nS, heads).transpose(1, 2), _heads(values[cut], heads))
        top = new_top
        tops.append(new_top)
    out.div_(total.view(heads, -1, 1))
    scale = (torch.stack(tops) - top).exp_().div_(total)
    if not by_tokens:
        return Summary(out, x.new_empty(0), scale)
    projected = torch.baddbmm(bias.view(heads, 1, -1), out, weight.unflatten(0, (heads, -1)).transpose(1, 2))
    return Summary(projected, out, scale)


def grad_of_summary(
    x: Tensor,
    key: Tensor,
    value: tuple[Tensor, Tensor],
    summary: Summary,
    kept: Tensor,
    grad: Tensor,
    grad_x: Tensor,
    values: Tensor | None = None,
    *,
    fresh: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Add to `grad_x` (L, C) what `summarise` sends back, and return the gradients of key, value weight and bias.

    With the softmax p over rows, and $g$ the gradient of what landmark r of head h sees, tokens get
    $\sum_r p_{nr} (g_r W_h)$, the scores $p_{nr} (x_n - \bar x_r) \cdot (g_r W_h)$ and the weight
    $\sum_r g_r^\top \bar x_r$ of the kept mean tokens: values and their gradients have no rows here.

    Args:
        x: (L, C).
        key: As for `summarise`, like the next.
        value: Weight and bias.
        summary: What it returned.
        kept: (L, S), the exponentials.
        grad: (H, R, D), of the landmarks' values.
        grad_x: Is added to.
        values: (L, C), where they are at hand.
        fresh: Write over `grad_x` instead of adding.
    """
    weight, bias = value
    heads, cuts, keys = len(grad), chunks(*x.shape), len(key)
    back = (grad @ weight.unflatten(0, (heads, -1))).flatten(0, 1)
    both, of_key = torch.cat([key, back]), torch.zeros_like(key)
    # what the softmax takes off: the mean of its gradient, which without values lacks their bias
    seen = summary.values if values is not None else summary.values - bias.view(heads, 1, -1)
    level, grad_T = (grad * seen).sum(-1).flatten(), grad.transpose(1, 2)
    of_softmax, of_rows = x.new_empty(longest(cuts), keys), x.new_empty(longest(cuts), len(both))
    for cut, scale in zip(cuts, summary.scale, strict=True):
        size, x_nC = cut.stop - cut.start, x[cut]
        of_nS, of_n2 = of_softmax[:size], of_rows[:size]
        of_scores, soft_nS = of_n2.split(keys, dim=1)
        if values is None:
            torch.mm(x_nC, back.T, out=of_nS)
        else:
            _joined(torch.bmm(_heads(values[cut], heads), grad_T), out=of_nS)
        torch.mul(kept[cut], scale, out=soft_nS)
        torch.mul(of_nS.sub_(level), soft_nS, out=of_scores)
        grad_x[cut].addmm_(of_n2, both, beta=0 if fresh else 1)
        of_key.addmm_(of_scores.T, x_nC)
    of_weight = (grad_T @ summary.tokens).flatten(0, 1)
    return of_key, of_weight, grad.sum(1).flatten()


class Mixing(NamedTuple):
    """From tokens to their softmax over landmarks, and from that to outputs."""

    query: Tensor
    """(S, C)."""
    bias: Tensor
    """(S)."""
    values: Tensor
    """(H, R, D), what the landmarks say."""


def mix_rows(x_nC: Tensor, mixing: Mixing, scores: Tensor, softmax: Tensor, out: Tensor) -> None:
    """Write softmax over landmarks of `x query^T + bias`, and it times the landmarks' values, for a chunk of tokens.

    Args:
        x_nC: Tokens.
        mixing: The maps.
        scores: (at least n, S), is written over.
        softmax: (n, S), is written.
        out: (n, C), is written.
    """
    heads = len(mixing.values)
    soft_nS = soften_rows(x_nC, mixing, scores, softmax)
    _joined(torch.bmm(_heads(soft_nS, heads), mixing.values), out=out)


def soften_rows(x_nC: Tensor, mixing: Mixing, scores: Tensor, softmax: Tensor) -> Tensor:
    """The first half of `mix_rows`."""
    heads, here = len(mixing.values), scores[: len(x_nC)]
    torch.addmm(mixing.bias, x_nC, mixing.query.T, out=here)
    torch.softmax(here.unflatten(-1, (heads, -1)), -1, out=softmax.unflatten(-1, (heads, -1)))
    return softmax


def grad_of_mixing(
    x_nC: Tensor, mixing: Mixing, softmax_nS: Tensor, grad_nC: Tensor, grad_x: Tensor, grads: Mixing
) -> None:
    """Write the gradient of a chunk's tokens into `grad_x` (n, C) and add those of the maps to `grads`."""
    heads = len(mixing.values)
    of_softmax = torch.empty_like(softmax_nS)
    _joined(torch.bmm(_heads(grad_nC, heads), mixing.values.transpose(1, 2)), out=of_softmax)
    _through_softmax(x_nC, mixing, softmax_nS, of_softmax, grad_x, grads)
    grads.values.baddbmm_(_heads(softmax_nS, heads).transpose(1, 2), _heads(grad_nC, heads))


def grad_of_projected_mixing(
    x_nC: Tensor,
    mixing: Mixing,
    said_SC: Tensor,
    softmax_nS: Tensor,
    grad_nC: Tensor,
    grad_x: Tensor,
    grads: Mixing,
    of_said: Tensor,
) -> None:
    """As `grad_of_mixing` behind a linear layer, of which only what it makes of the landmarks' values is needed.

    Args:
        x_nC: Tokens.
        mixing: The maps.
        said_SC: (S, C), the landmarks' values behind the layer.
        softmax_nS: Of the tokens over landmarks.
        grad_nC: Gradient of the layer's output.
        grad_x: (n, C), is written.
        grads: Of the maps, but for the values.
        of_said: Is added to.
    """
    _through_softmax(x_nC, mixing, softmax_nS, grad_nC @ said_SC.T, grad_x, grads)
    of_said.addmm_(softmax_nS.T, grad_nC)


def _through_softmax(
    x_nC: Tensor, mixing: Mixing, softmax_nS: Tensor, of_softmax: Tensor, grad_x: Tensor, grads: Mixing
) -> None:
    soft, grad = (part.unflatten(-1, (len(mixing.values), -1)) for part in (softmax_nS, of_softmax))
    of_scores = torch._softmax_backward_data(grad, soft, -1, soft.dtype).flatten(1)
    torch.mm(of_scores, mixing.query, out=grad_x)
    grads.query.addmm_(of_scores.T, x_nC)
    grads.bias.add_(of_scores.sum(0))


def _joined(rows: Tensor, out: Tensor) -> Tensor:
    """Write (H, n, D) as (n, H D)."""
    out.unflatten(-1, (len(rows), -1)).copy_(rows.transpose(0, 1))
    return out


def longest(cuts: list[slice]) -> int:
    """Rows of the longest chunk."""
    return cuts[0].stop - cuts[0].start
