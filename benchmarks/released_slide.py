"""The slide model in the order of operations of the released code: what the slide benchmarks compare with.

Parameters have the names of `SlideAttention` and `SlideTransformer`, so that one state dict fits both.

Shape legend (this file): B batch, L tokens, N patches, C channels, H heads, d head width, K slots, R landmarks.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nnunet_gdla.layers.redundancy import RedundancyGate
from nnunet_gdla.ops.neighbours import NeighbourGraph

__all__ = ["ReleasedAttention", "ReleasedCorrection", "ReleasedModel", "released_homogeneity"]


class ReleasedAttention(nn.Module):
    """Nystrom attention layer: scaled copy of q, zero padding, three softmaxes kept, F (A+ (B v)), crop, merge."""

    def __init__(
        self, dim: int = 384, num_heads: int = 6, num_landmarks: int = 64, correction: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.num_heads, self.num_landmarks = num_heads, num_landmarks
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out_proj = nn.Linear(dim, dim)
        self.correction = correction

    def forward(
        self, x: Float[Tensor, "B L C"], graph: NeighbourGraph | None, homogeneity: Float[Tensor, "B N"] | None
    ) -> Float[Tensor, "B L C"]:
        """Attend; with a correction, edit the rows behind the class row."""
        batch, tokens, channels = x.shape
        heads = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, channels // self.num_heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        y = released_nystrom(q, k, v, self.num_landmarks)
        if self.correction is not None:
            y = self.correction(y, v, graph, homogeneity)
        return self.out_proj(y.transpose(1, 2).reshape(batch, tokens, channels))


def released_nystrom(
    q: Float[Tensor, "B H L d"], k: Float[Tensor, "B H L d"], v: Float[Tensor, "B H L d"], num_landmarks: int
) -> Float[Tensor, "B H L d"]:
    """Return F (A+ (B v)), every factor built whole and kept."""
    tokens, width = q.shape[-2:]
    q = q * width**-0.5
    run = -(-tokens // num_landmarks)
    padding = run * num_landmarks - tokens
    if padding:
        q, k, v = (F.pad(part, (0, 0, 0, padding)) for part in (q, k, v))
    real = q.new_ones(run * num_landmarks)
    real[tokens:] = 0
    counts = real.reshape(num_landmarks, run).sum(-1).clamp(min=1e-6)[:, None]
    q_marks = q.reshape(*q.shape[:2], num_landmarks, run, width).sum(3) / counts
    k_marks = k.reshape(*k.shape[:2], num_landmarks, run, width).sum(3) / counts
    outer = torch.softmax(q @ k_marks.transpose(-1, -2), dim=-1)
    middle = torch.softmax(q_marks @ k_marks.transpose(-1, -2), dim=-1)
    scores = (q_marks @ k.transpose(-1, -2)).masked_fill(real == 0, -torch.inf)
    inner = torch.softmax(scores, dim=-1)
    out = outer @ (_inverse(middle) @ (inner @ v))
    return out[:, :, :tokens]


def _inverse(kernel: Float[Tensor, "B H R R"]) -> Float[Tensor, "B H R R"]:
    eye = torch.eye(kernel.shape[-1], dtype=kernel.dtype)
    inverse = kernel.transpose(-1, -2) / (kernel.sum(-1).max() * kernel.sum(-2).max())
    for _ in range(6):
        product = kernel @ inverse
        inverse = 0.25 * inverse @ (13 * eye - product @ (15 * eye - product @ (7 * eye - product)))
    return inverse


class ReleasedCorrection(nn.Module):
    """The correction from a gathered (B, H, N, K, d) array; without a gate beta is zero and all the rest is done.

    Parameters: `gate`, as in `GatedSRP`.
    """

    def __init__(self, num_heads: int = 6, *, gated: bool = True, hidden: int = 64) -> None:
        super().__init__()
        self.gate = RedundancyGate(num_heads, hidden=hidden) if gated else None

    def forward(
        self,
        y: Float[Tensor, "B H L d"],
        v: Float[Tensor, "B H L d"],
        graph: NeighbourGraph,
        homogeneity: Float[Tensor, "B N"],
    ) -> Float[Tensor, "B H L d"]:
        """Return y with corrected rows 1 to N."""
        rows = slice(1, len(graph.index) + 1)
        weight = (graph.mask * graph.weight)[None, None, :, :, None]
        stacked = v[:, :, rows].detach()[:, :, graph.index.clamp(min=0)]
        mean = (stacked * weight).sum(3) / weight.sum(3).clamp(min=1)
        r_hat = mean / mean.norm(dim=-1, keepdim=True).clamp(min=1e-12)
        patches = y[:, :, rows]
        dot = (patches * r_hat).sum(-1, keepdim=True)
        beta = self._beta(patches.detach(), dot.detach(), graph, homogeneity)
        z = y.clone()
        z[:, :, rows] = patches - beta * dot * r_hat
        return z

    def _beta(self, y: Tensor, dot: Tensor, graph: NeighbourGraph, homogeneity: Tensor) -> Tensor:
        norm = y.norm(dim=-1, keepdim=True)
        cosine = dot / (norm + 1e-12)
        heads = torch.cat([cosine, cosine.abs(), torch.log1p(norm)], dim=-1)
        count = graph.mask.sum(-1).float()[None]
        tokens = torch.stack([homogeneity, count / graph.index.shape[1], torch.log1p(count)], dim=-1)
        gate = self.gate
        if gate is None:
            return torch.zeros_like(dot)
        assert gate.token_in is not None
        assert gate.token_out is not None
        assert gate.head_weight is not None
        assert gate.head_bias is not None
        assert gate.layer_bias is not None
        shared = gate.token_out(F.gelu(gate.token_in(tokens)))[:, None]
        own = (heads * gate.head_weight[None, :, None]).sum(-1, keepdim=True)
        raw = shared + own + gate.head_bias[None, :, None, None] + gate.layer_bias[None, :, None, None]
        return torch.tanh(raw)


def released_homogeneity(features: Float[Tensor, "N D"], graph: NeighbourGraph) -> Float[Tensor, " N"]:
    """Gather (N, K, D) unit features, multiply, and average over filled slots."""
    unit = features / features.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    cosine = (unit[:, None] * unit[graph.index.clamp(min=0)]).sum(-1) * graph.mask
    return cosine.sum(-1) / graph.mask.sum(-1).clamp(min=1)


class _Block(nn.Module):
    def __init__(self, dim: int, correction: nn.Module | None) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = ReleasedAttention(dim, correction=correction)
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(dim, 4 * dim), "fc2": nn.Linear(4 * dim, dim)})

    def forward(self, x: Tensor, graph: NeighbourGraph | None, homogeneity: Tensor | None) -> Tensor:
        x = x + self.attention(self.norm1(x), graph, homogeneity)
        return x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm2(x))))


class _Position(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.k7 = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.k5 = nn.Conv2d(dim, dim, 5, padding=2, groups=dim)
        self.k3 = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)

    def forward(self, x: Tensor) -> Tensor:
        side = round((x.shape[1] - 1) ** 0.5)
        image = x[:, 1:].transpose(1, 2).reshape(x.shape[0], x.shape[2], side, side)
        image = image + self.k7(image) + self.k5(image) + self.k3(image)
        return torch.cat([x[:, :1], image.flatten(2).transpose(1, 2)], dim=1)


class ReleasedModel(nn.Module):
    """The slide model without drop path: every block on every row, the last one included.

    Args:
        in_dim: Width of the features.
        num_outputs: Classes.
        correction: "srp", "zero" (everything that SRP does, with beta = 0) or "none".
    """

    def __init__(self, in_dim: int, num_outputs: int, correction: str = "srp", *, depth: int = 4) -> None:
        super().__init__()
        dim = 384
        self.correction = correction
        self.embed = nn.Linear(in_dim, dim)
        self.class_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.blocks = nn.ModuleList(_Block(dim, self._part(i < depth - 1)) for i in range(depth))
        self.position = _Position(dim)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_outputs)

    def _part(self, acts: bool) -> nn.Module | None:
        if self.correction == "none" or (self.correction == "srp" and not acts):
            return None
        return ReleasedCorrection(gated=self.correction == "srp")

    def forward(self, features: Float[Tensor, "B N D"], graph: NeighbourGraph) -> Float[Tensor, "B outputs"]:
        """Return logits; the graph is that of one slide, (N, K)."""
        homogeneity = None if self.correction == "none" else released_homogeneity(features[0], graph)[None]
        patches = self.embed(features)
        side = -int(-(patches.shape[1] ** 0.5) // 1)
        patches = torch.cat([patches, patches[:, : side**2 - patches.shape[1]]], dim=1)
        x = torch.cat([self.class_token.expand(len(patches), -1, -1), patches], dim=1)
        for number, block in enumerate(self.blocks):
            x = block(x, graph, homogeneity)
            if number == 0:
                x = self.position(x)
        return self.head(self.norm(x)[:, 0])
