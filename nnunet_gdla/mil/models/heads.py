"""What the attention layers of slide models share: heads, means of queries, exact attention rows.

Shape legend (this file): B batch, L tokens, C channels, H heads, D head width, R landmarks.
"""

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from nnunet_gdla.ops import elu_plus_one
from nnunet_gdla.ops._checks import without_autocast
from nnunet_gdla.ops.nystrom import segment_means

__all__ = ["linear_row", "merge_heads", "project_means", "softmax_row", "split_heads"]


def split_heads(x: Float[Tensor, "B L C"], num_heads: int) -> Float[Tensor, "B H L D"]:
    """Cut channels into heads, head-major."""
    return rearrange(x, "b l (h d) -> b h l d", h=num_heads)


def merge_heads(y: Float[Tensor, "B H L D"]) -> Float[Tensor, "B L C"]:
    """Undo `split_heads`."""
    return rearrange(y, "b h l d -> b l (h d)")


def project_means(
    x: Float[Tensor, "B L C"],
    weight: Float[Tensor, "E C"],
    bias: Float[Tensor, " E"] | None,
    num_landmarks: int,
    key_mask: Bool[Tensor, "B L"] | None,
) -> Float[Tensor, "B R E"]:
    """Return the segment means of a linear layer's output without computing that output.

    The mean of a linear map is the map of the mean; runs without rows are zero, not the bias.
    """
    means_BRC = segment_means(x, num_landmarks, mask=key_mask)
    rows = x.shape[1] if key_mask is None else key_mask.sum(-1, keepdim=True)
    filled = torch.arange(num_landmarks, device=x.device) * -(-rows // num_landmarks) < rows
    return F.linear(means_BRC.to(x.dtype), weight, bias) * filled.unsqueeze(-1)


def softmax_row(
    q: Float[Tensor, "B H 1 D"], k: Float[Tensor, "B H L D"], key_mask: Bool[Tensor, "B L"] | None
) -> Float[Tensor, "B H L"]:
    """Return the softmax weights of one query, in float32 or wider."""
    acc = torch.promote_types(q.dtype, torch.float32)
    with without_autocast(q):
        scores = (q.to(acc) * q.shape[-1] ** -0.5) @ k.to(acc).transpose(-1, -2)
        if key_mask is not None:
            scores = scores.masked_fill(~key_mask[:, None, None], -torch.inf)
        return scores.softmax(-1).squeeze(2)


def linear_row(
    q: Float[Tensor, "B H 1 D"], k: Float[Tensor, "B H L D"], key_mask: Bool[Tensor, "B L"] | None, eps: float = 1e-6
) -> Float[Tensor, "B H L"]:
    """Return the weights of one query in `linear_attention`, in float32 or wider."""
    acc = torch.promote_types(q.dtype, torch.float32)
    with without_autocast(q):
        weights = elu_plus_one(q.to(acc)) @ elu_plus_one(k.to(acc)).transpose(-1, -2)
        if key_mask is not None:
            weights = weights.masked_fill(~key_mask[:, None, None], 0)
        return (weights / (weights.sum(-1, keepdim=True) + eps)).squeeze(2)
