"""The boundary difference-over-union loss straight from its formula: one class and one neighbour after the other."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["blobs", "boundary_dou_naive", "boundary_pixels_naive", "value_and_grad"]

_UP_DOWN_LEFT_RIGHT = ((0, 1), (2, 1), (1, 0), (1, 2))


def boundary_pixels_naive(mask: Tensor, valid: Tensor) -> Tensor:
    """Find the pixels of a (B, H, W) mask with a 4-neighbour outside the image, or valid and outside the mask."""
    height, width = mask.shape[1:]
    foreign = functional.pad(~mask & valid, (1, 1, 1, 1), value=True)
    touches = torch.zeros_like(mask)
    for row, column in _UP_DOWN_LEFT_RIGHT:
        touches = touches | foreign[:, row : row + height, column : column + width]
    return mask & valid & touches


def boundary_dou_naive(
    net_output: Tensor,
    target: Tensor,
    *,
    activation: str = "softmax",
    ignore_label: int | None = None,
    regions: bool = False,
    alpha_cap: float = 0.8,
    eps: float = 1e-5,
) -> Tensor:
    """Compute the loss class by class, with autograd's own gradient."""
    num_classes = net_output.shape[1]
    valid = torch.ones_like(target[:, 0], dtype=torch.bool)
    if ignore_label is not None:
        valid = target[:, -1] == 0 if regions else target[:, 0] != ignore_label
    losses = []
    for k in range(num_classes):
        mask = target[:, k] == 1 if regions else target[:, 0] == k
        output = net_output.movedim(1, -1)[valid]  # (pixels, classes): the others are not even looked at
        p = {"softmax": output.softmax(-1), "sigmoid": output.sigmoid(), "none": output}[activation][:, k]
        truth = mask[valid].to(p.dtype)
        size, boundary = truth.sum(), boundary_pixels_naive(mask, valid).sum()
        alpha = min(2 * (1 - (float(boundary) + eps) / (float(size) + eps)) - 1, alpha_cap)
        overlap, union = (p * truth).sum(), (p * p).sum() + size
        losses.append((union - 2 * overlap + eps) / (union - (1 + alpha) * overlap + eps))
    return torch.stack(losses).mean()


def value_and_grad(loss: Callable[[Tensor, Tensor], Tensor], net_output: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Evaluate a loss and its gradient with respect to the network's output."""
    leaf = net_output.detach().clone().requires_grad_()
    value = loss(leaf, target)
    (grad,) = torch.autograd.grad(value, leaf)
    return {"loss": value.detach(), "grad": grad}


def blobs(batch: int, channels: int, height: int, width: int, num_values: int) -> Tensor:
    """Labels in patches of about three pixels, as segmentations have them, so that there is an inside too."""
    coarse = torch.randint(0, num_values, (batch, channels, -(-height // 3), -(-width // 3)))
    return coarse.repeat_interleave(3, 2).repeat_interleave(3, 3)[:, :, :height, :width].contiguous()
