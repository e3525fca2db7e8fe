"""A depthwise 3x3 convolution on patches that lie on a lattice with holes.

Shape legend (this file): B batch, N patches, W channels, K = 8 neighbour slots.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nnunet_gdla.ops._fusion import transforms_active
from nnunet_gdla.ops.neighbours import NeighbourGraph

__all__ = ["lattice_convolution"]

# Slots are the offsets (dx, dy), dx outer; a convolution's kernel is [dy, dx].
TAPS = tuple((dy + 1, dx + 1) for dx in (-1, 0, 1) for dy in (-1, 0, 1) if (dx, dy) != (0, 0))


def lattice_convolution(
    x: Float[Tensor, "B N W"], graph: NeighbourGraph, weight: Float[Tensor, "W 1 3 3"], bias: Float[Tensor, " W"]
) -> Float[Tensor, "B N W"]:
    """Weigh each patch and its eight neighbours per channel; an empty slot counts as zero.

    On a full rectangle this is the convolution of the image whose column is x and whose row is y.

    Args:
        x: Patch rows.
        graph: 3x3 slots (N, 8), shared by the batch, or (B, N, 8); their weights are not used.
        weight: Kernel as a depthwise `nn.Conv2d` holds it.
        bias: Per channel.

    Raises:
        ValueError: If the graph does not have eight slots for every patch.

    Cost: O(B N W K) time; keeps only `x` for backward, neighbours are gathered once more there.
    """
    if graph.index.shape[-1] != len(TAPS) or graph.index.shape[-2] != x.shape[1]:
        raise ValueError(
            f"graph {tuple(graph.index.shape)} must be (..., {x.shape[1]}, 8): a 3x3 window for {x.shape[1]} patches"
        )
    slots = graph.mask.expand(x.shape[0], -1, -1), graph.index.expand(x.shape[0], -1, -1)
    dtype = torch.promote_types(x.dtype, weight.dtype)
    if x.is_meta or transforms_active():
        return _plain(x.to(dtype), weight.to(dtype), bias.to(dtype), *slots)
    return _Lattice.apply(x.to(dtype), weight.to(dtype), bias.to(dtype), *slots)


def _plain(x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, index: Tensor) -> Tensor:
    """The same in torch's operators, for function transforms and the meta device: all neighbours side by side."""
    out = torch.addcmul(bias, x, weight[:, 0, 1, 1])
    for slot, tap in enumerate(TAPS):
        rows = index[..., slot].clamp(min=0).unsqueeze(-1).expand_as(x)
        out = out + (x.gather(1, rows) * weight[:, 0, *tap]).masked_fill(~mask[..., slot].unsqueeze(-1), 0)
    return out


class _Lattice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, index: Tensor) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(x, weight, mask, index)
        out = torch.addcmul(bias, x, weight[:, 0, 1, 1])
        for element, slot, rows, neighbours in _filled(mask, index):
            taps = weight[:, 0, *TAPS[slot]]
            out[element].index_add_(0, rows, x[element].index_select(0, neighbours) * taps)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:  # noqa: ANN401
        x, weight, mask, index = ctx.saved_tensors
        grad_x = grad * weight[:, 0, 1, 1]
        grad_weight = torch.zeros_like(weight)
        grad_weight[:, 0, 1, 1] = (grad * x).sum((0, 1))
        for element, slot, rows, neighbours in _filled(mask, index):
            taps = (slice(None), 0, *TAPS[slot])
            part = grad[element].index_select(0, rows)
            grad_weight[taps] += (part * x[element].index_select(0, neighbours)).sum(0)
            grad_x[element].index_add_(0, neighbours, part * weight[taps])
        return grad_x, grad_weight, grad.sum((0, 1)), None, None


def _filled(mask: Tensor, index: Tensor) -> Any:  # noqa: ANN401
    """Yield batch element, slot, the rows in which it is filled, and with whom."""
    for element in range(mask.shape[0]):
        for slot in range(mask.shape[-1]):
            rows = mask[element, :, slot].nonzero().squeeze(-1)
            yield element, slot, rows, index[element, rows, slot]
