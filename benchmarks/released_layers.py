"""The layers of PVT-GDLA in the order of operations of the released code: the rival of the segmentation benchmarks.

Written from the specification: plain eager PyTorch, one operation after the other, nothing slowed down on purpose. The
parameters have the names of ours, so that a state dict of ours fills them (the 1x1 convolutions of the feed-forward
layer are Linear layers in ours and have to be reshaped).

Shape legend (this file): B batch, N tokens, C channels, H and W the token grid.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["ReleasedBlock", "ReleasedFeedForward", "ReleasedMixer", "ReleasedStem", "attention_core", "boundary_dou"]

Gate = Literal["silu", "sigmoid"]
_CROSS = ((0.0, 1.0, 0.0), (1.0, 1.0, 1.0), (0.0, 1.0, 0.0))


class _RMSNorm(nn.Module):
    """One weight for all heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Root mean square normalisation of the last axis, in float32."""
    wide = x if x.dtype == torch.float64 else x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * weight


def phi(x: Tensor) -> Tensor:
    """ELU(x) + 1 in two steps."""
    return F.elu(x) + 1


def one_linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """One branch; a row of ones beside the values gives the normaliser."""
    q, k = phi(q), phi(k)
    values = F.pad(v, (0, 1), value=1.0)
    sums = q @ (k.transpose(-2, -1) @ values)
    return sums[..., :-1] / (sums[..., -1:] + 1e-6)


def attention_core(projected: Tensor, lam: Tensor, weight: Tensor, num_heads: int, gate: Gate) -> Tensor:
    """(B, N, 4C) -> (B, N, C): both branches, their difference, norm and gate.

    Args:
        projected: q, k, v and g side by side.
        lam: (heads, C / heads).
        weight: The norm's, (C / heads,).
        num_heads: Number of heads.
        gate: "silu" or "sigmoid".
    """
    batch, tokens, width = projected.shape
    q, k, v, g = (
        part.reshape(batch, tokens, num_heads, width // (4 * num_heads)).transpose(1, 2)
        for part in projected.chunk(4, dim=-1)
    )
    q1, q2 = q.chunk(2, dim=-1)
    k1, k2 = k.chunk(2, dim=-1)
    y = one_linear_attention(q1, k1, v) - lam[None, :, None, :] * one_linear_attention(q2, k2, v)
    y = rms_norm(y, weight)
    y = y * (torch.sigmoid(g) if gate == "sigmoid" else F.silu(g))
    return y.transpose(1, 2).reshape(batch, tokens, width // 4)


class ReleasedMixer(nn.Module):
    """Global and local branch of the GDLA mixer on tokens (B, N, C)."""

    def __init__(self, dim: int, num_heads: int, gate: Gate) -> None:
        super().__init__()
        self.num_heads, self.gate = num_heads, gate
        self.qkvg = nn.Linear(dim, 4 * dim)
        self.local_depthwise = nn.Conv2d(4 * dim, 4 * dim, 3, padding=1, groups=4 * dim)
        self.local_pointwise = nn.Conv2d(4 * dim, 4 * dim, 1)
        self.lambda_global = nn.Parameter(torch.empty(num_heads, dim // num_heads))
        self.lambda_local = nn.Parameter(torch.empty(num_heads, dim // num_heads))
        self.norm = _RMSNorm(dim // num_heads)
        self.out_proj = nn.Linear(2 * dim, dim)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """(B, N, C) -> (B, N, C)."""
        projected = self.qkvg(x)
        local = _tokens(self.local_pointwise(self.local_depthwise(_image(projected, grid))))
        branches = ((projected, self.lambda_global), (local, self.lambda_local))
        mixed = [attention_core(part, lam, self.norm.weight, self.num_heads, self.gate) for part, lam in branches]
        return self.out_proj(torch.cat(mixed, dim=-1))


class ReleasedFeedForward(nn.Module):
    """Mix-FFN on images (B, C, H, W), every step an operation of its own."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.expand = nn.Conv2d(dim, 2 * hidden, 1)
        self.depthwise = nn.Conv2d(2 * hidden, 2 * hidden, 3, padding=1, groups=2 * hidden)
        self.project = nn.Conv2d(hidden, dim, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        value, gate = self.depthwise(F.silu(self.expand(x))).chunk(2, dim=1)
        return self.project(value * F.silu(gate))


class ReleasedBlock(nn.Module):
    """Normalise, 3x3 convolution, mixer; normalise, feed-forward; tokens and images in turn."""

    def __init__(self, dim: int, num_heads: int, gate: Gate) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.pre_conv = nn.Conv2d(dim, dim, 3, padding=1)
        self.attention = ReleasedMixer(dim, num_heads, gate)
        self.norm2 = nn.LayerNorm(dim)
        self.ffn = ReleasedFeedForward(dim, 4 * dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        grid = (x.shape[2], x.shape[3])
        tokens = _tokens(x)
        mixed = _tokens(F.silu(self.pre_conv(_image(self.norm1(tokens), grid))))
        tokens = tokens + self.attention(mixed, grid)
        tokens = tokens + _tokens(self.ffn(_image(self.norm2(tokens), grid)))
        return _image(tokens, grid)


def _tokens(x: Tensor) -> Tensor:
    return x.flatten(2).transpose(1, 2)


def _image(tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    return tokens.transpose(1, 2).reshape(len(tokens), -1, *grid)


class ReleasedStem(nn.Module):
    """The residual block at full resolution."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, in_channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(in_channels)
        self.conv2 = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.conv3 = nn.Conv2d(in_channels, out_channels, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) -> (B, out, H, W)."""
        hidden = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(hidden)) + self.norm3(self.conv3(x)))


def boundary_dou(logits: Tensor, labels: Tensor) -> Tensor:
    """Boundary difference-over-union of (B, K, H, W) logits and (B, H, W) labels, by autograd, one class at a time.

    A pixel is of the boundary unless all five pixels of its cross are of its class.
    """
    probabilities, num_classes = logits.softmax(1), logits.shape[1]
    truth = torch.stack([labels == number for number in range(num_classes)], dim=1).to(logits.dtype)
    cross = logits.new_tensor(_CROSS).expand(num_classes, 1, 3, 3)
    alike = F.conv2d(truth, cross, padding=1, groups=num_classes) * truth
    losses = []
    for number in range(num_classes):
        score, mask, inside = probabilities[:, number], truth[:, number], alike[:, number] == 5
        size = mask.sum()
        boundary = (torch.count_nonzero(alike[:, number]) - torch.count_nonzero(inside)).to(logits.dtype)
        alpha = (1 - 2 * (boundary + 1e-5) / (size + 1e-5)).clamp(max=0.8)
        overlap, union = (score * mask).sum(), (score * score).sum() + (mask * mask).sum()
        losses.append((union - 2 * overlap + 1e-5) / (union - (1 + alpha) * overlap + 1e-5))
    return torch.stack(losses).mean()
