"""The backward pass of a whole Nystrom layer.

Shape legend (this file): B batch, L tokens, N patches, n rows of a chunk, C channels = H D, H heads, D head width,
R landmarks, S = H R.
"""

from bisect import bisect_right
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from nnunet_gdla.ops._gather import Neighbourhood, neighbourhood
from nnunet_gdla.ops._graph import NeighbourGraph
from nnunet_gdla.ops._nystrom_corrected import shared_rows, steps
from nnunet_gdla.ops._nystrom_forward import LayerWeights, landmark_maps, value_part
from nnunet_gdla.ops._nystrom_rows import (
    Mixing,
    Summary,
    chunks,
    grad_of_mixing,
    grad_of_projected_mixing,
    grad_of_summary,
)
from nnunet_gdla.ops.redundancy import directions

__all__ = ["Backward", "add_means"]


class Backward:
    """One backward pass: projection and mixing chunk by chunk, then the landmarks, then the summary."""

    def __init__(self, ctx: Any) -> None:  # noqa: ANN401
        x, qkv, qkv_bias, out, out_bias, means, exponentials, softmax, *more = ctx.saved_tensors
        summaries, correction = more[:3], more[3:]
        self.x, self.weights = x, LayerWeights(qkv, qkv_bias, out, out_bias)
        self.sizes, self.first = ctx.sizes, ctx.first
        self.exponentials, self.softmax = exponentials, softmax
        self.graph: list[Tensor] = correction[:3]
        self.pieces = _Pieces(correction[3:], len(x)) if correction else None
        self.summaries = [Summary(*parts) for parts in zip(*summaries, strict=True)]
        both = 2 * x.shape[-1]
        with torch.enable_grad():
            self.leaves = [part.detach().requires_grad_() for part in (means, qkv[:both], qkv_bias[:both])]
            self.maps = landmark_maps(self.leaves[0], x.shape[1], self.leaves[1], self.leaves[2], self.sizes)
        self.grad_x = torch.empty_like(x)
        self.grads = LayerWeights(*(torch.zeros_like(part) for part in self.weights))
        self._around_of: dict[int, Neighbourhood] = {}

    def run(self, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the tokens, the four weights, nothing, and those of the coefficients."""
        of_maps = [torch.zeros_like(part) for part in self.maps]
        with torch.no_grad():
            for b, summary in enumerate(self.summaries):
                for whole, part in zip(of_maps, self._element(b, grad[b], summary), strict=True):
                    whole[b] = part
        of_means, of_weight, of_bias = torch.autograd.grad(self.maps, self.leaves, of_maps)
        self.grads.qkv[: len(of_weight)] = of_weight
        self.grads.qkv_bias[: len(of_bias)] = of_bias
        add_means(self.grad_x, of_means)
        return self.grad_x, *self.grads, None, *(self.pieces.grads if self.pieces is not None else ())

    def _element(self, b: int, grad: Tensor, summary: Summary) -> tuple[Tensor, ...]:
        inverse, value = self.maps.inverse[b].detach(), value_part(self.weights)
        mixing = Mixing(self.maps.query[b].detach(), self.maps.bias[b].detach(), inverse @ summary.values)
        grads = Mixing(*(torch.zeros_like(part) for part in mixing))
        values = None if self.pieces is None else torch.addmm(value[1], self.x[b], value[0].T)
        if values is None:
            self._mixing_plain(b, grad, mixing, grads)
        else:
            self._mixing_corrected(b, grad, mixing, grads, values)
        of_values = inverse.transpose(1, 2) @ grads.values
        key = self.maps.key[b].detach()
        of_key, of_weight, of_bias = grad_of_summary(
            self.x[b], key, value, summary, self.exponentials[b], of_values, self.grad_x[b], values
        )
        self.grads.qkv[-len(of_weight) :] += of_weight
        self.grads.qkv_bias[-len(of_bias) :] += of_bias
        return grads.query, grads.bias, of_key, grads.values @ summary.values.transpose(1, 2)

    def _mixing_plain(self, b: int, grad: Tensor, mixing: Mixing, grads: Mixing) -> None:
        weight = self.weights.out
        of_head = weight.unflatten(1, (self.sizes.heads, -1)).transpose(0, 1)
        said = mixing.values @ of_head.transpose(1, 2)
        of_said = torch.zeros_like(said)
        for cut in chunks(*self.x.shape[1:]):
            rows = (self.x[b, cut], mixing, said.flatten(0, 1), self.softmax[b, cut], grad[cut], self.grad_x[b, cut])
            grad_of_projected_mixing(*rows, grads, of_said.flatten(0, 1))
            self.grads.out_bias.add_(grad[cut].sum(0))
        grads.values.copy_(of_said @ of_head)
        self.grads.out.add_((of_said.transpose(1, 2) @ mixing.values).transpose(0, 1).flatten(1))

    def _mixing_corrected(self, b: int, grad: Tensor, mixing: Mixing, grads: Mixing, values: Tensor) -> None:
        z = values.new_empty(chunks(*self.x.shape[1:])[0].stop, values.shape[1])
        for cut in chunks(*self.x.shape[1:]):
            softmax, g_nC, z_nC = self.softmax[b, cut], grad[cut], z[: cut.stop - cut.start]
            y_HnD = torch.bmm(softmax.unflatten(-1, (self.sizes.heads, -1)).transpose(0, 1), mixing.values)
            z_nC.unflatten(-1, (self.sizes.heads, -1)).copy_(y_HnD.transpose(0, 1))
            of_z = g_nC @ self.weights.out
            self._correct(z_nC, of_z, cut, b, values)
            self.grads.out.addmm_(g_nC.T, z_nC)
            self.grads.out_bias.add_(g_nC.sum(0))
            grad_of_mixing(self.x[b, cut], mixing, softmax, of_z, self.grad_x[b, cut], grads)

    def _correct(self, z_nC: Tensor, grad_nC: Tensor, cut: slice, b: int, values: Tensor) -> None:
        """Correct the outputs of a chunk as in the forward pass, and take the gradient of that, both in place."""
        assert self.pieces is not None
        inner, outer = shared_rows(cut, self.first, self.pieces.count)
        if inner.start == inner.stop:
            return
        heads = self.sizes.heads
        axis = directions(self._around(b, values), heads, outer)[0].transpose(0, 1)
        z, g = (part[inner].unflatten(-1, (heads, -1)) for part in (z_nC, grad_nC))
        beta, dot, of_beta = self.pieces.find(b, outer)
        along_Hn = (g * axis).sum(-1).T
        z.addcmul_(steps(beta, dot), axis, value=-1)
        g.addcmul_((beta * along_Hn).T.unsqueeze(-1), axis, value=-1)
        torch.mul(along_Hn, dot, out=of_beta).neg_()

    def _around(self, b: int, values: Tensor) -> Neighbourhood:
        assert self.pieces is not None
        if b not in self._around_of:
            graph = NeighbourGraph(*self.graph).part(b, slice(None))
            rows = values.narrow(0, self.first, self.pieces.count).unflatten(-1, (self.sizes.heads, -1))
            self._around_of = {b: neighbourhood(rows.transpose(0, 1)[None], values.dtype, *graph)}
        return self._around_of[b]


def add_means(grad: Tensor, grad_BRC: Tensor) -> None:
    """Add to the gradient of tokens (B, L, C) what that of the means of their runs (B, R, C) sends back."""
    rows, run = grad.shape[1], -(-grad.shape[1] // grad_BRC.shape[1])
    full = rows // run
    grad[:, : full * run].unflatten(1, (full, run)).add_((grad_BRC[:, :full] / run).unsqueeze(2))
    if rows > full * run:
        grad[:, full * run :].add_((grad_BRC[:, full] / (rows - full * run)).unsqueeze(1))


class _Pieces:
    """Coefficients and products in the pieces of the forward pass, and memory for the gradients of the former."""

    def __init__(self, both: list[Tensor], batch: int) -> None:
        half = len(both) // 2
        self.betas, self.dots = both[:half], both[half:]
        self.grads = [torch.empty_like(beta) for beta in self.betas]
        self.of_element = half // batch
        self.starts = [0, *accumulate(beta.shape[-1] for beta in self.betas[: self.of_element])]
        self.count = self.starts.pop()

    def find(self, b: int, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        """Return coefficients, products and gradients (H, n) of some patches, which lie in one piece."""
        number = bisect_right(self.starts, rows.start) - 1
        piece, start = b * self.of_element + number, self.starts[number]
        here = slice(rows.start - start, rows.stop - start)
        return self.betas[piece][0, :, here], self.dots[piece][0, :, here], self.grads[piece][0, :, here]
