"""Neighbourhood mean, correction and gate straight from their formulas, on one slide: y, v (H, N, D), graph (N, K)."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = [
    "exclusive_projection_naive",
    "gate_naive",
    "gated_srp_naive",
    "head_features_naive",
    "neighbourhood_mean_naive",
    "redundancy_projection_naive",
    "token_features_naive",
    "unit_naive",
]


def neighbourhood_mean_naive(values: Tensor, index: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
    """(..., N, D): the formula patch by patch."""
    rows = []
    for i in range(values.shape[-2]):
        total, weights = 0 * values[..., i, :], 0.0
        for slot in range(index.shape[-1]):
            if mask[i, slot]:
                total = total + float(weight[i, slot]) * values[..., int(index[i, slot]), :]
                weights += float(weight[i, slot])
        rows.append(total / max(weights, 1.0))
    return torch.stack(rows, dim=-2)


def unit_naive(vectors: Tensor) -> Tensor:
    return vectors / vectors.norm(dim=-1, keepdim=True).clamp(min=1e-12)


def redundancy_projection_naive(y: Tensor, axis: Tensor, beta: Tensor) -> Tensor:
    dot = (y * axis).sum(-1)
    return y - (beta * dot).unsqueeze(-1) * axis


def exclusive_projection_naive(y: Tensor, v: Tensor) -> Tensor:
    return redundancy_projection_naive(y, unit_naive(v), torch.ones_like(y[..., 0]))


def head_features_naive(y: Tensor, r_hat: Tensor) -> Tensor:
    norm = y.norm(dim=-1)
    cosine = (y * r_hat).sum(-1) / (norm + 1e-12)
    return torch.stack([cosine, cosine.abs(), torch.log(1 + norm)], dim=-1)


def token_features_naive(homogeneity: Tensor, count: Tensor, slots: int, kind: str) -> Tensor:
    columns = {
        "legacy": [homogeneity, count / slots, torch.log(1 + count)],
        "rawlog": [homogeneity, torch.log(1 + count)],
        "normlog": [homogeneity, torch.log(1 + count) / math.log(1 + slots)],
        "none": [homogeneity],
    }
    return torch.stack(columns[kind], dim=-1)


def gate_naive(
    weights: Mapping[str, Tensor],
    tokens: Tensor,
    heads: Tensor,
    *,
    delta: float = 1.0,
    bound: str = "tanh",
    temperature: float = 1.0,
    direct: bool = False,
) -> Tensor:
    """Beta (H, N) from token features (N, T) and head features (H, N, 3); missing weights are left out of the sum."""
    raw = torch.zeros_like(heads[..., 0])
    if "token_in.weight" in weights:
        hidden = F.gelu(tokens @ weights["token_in.weight"].T + weights.get("token_in.bias", 0))
        raw = raw + (hidden @ weights["token_out.weight"].T + weights.get("token_out.bias", 0))[..., 0]
    for head in range(len(heads)):
        parts = [weights[name][head] for name in ("head_bias", "layer_bias") if name in weights]
        if "head_weight" in weights:
            parts.append(heads[head] @ weights["head_weight"][head])
        for part in parts:
            raw = torch.cat([raw[:head], (raw[head] + part)[None], raw[head + 1 :]])
    x = raw / (2 * temperature if direct else temperature)
    mapped = {
        "tanh": (x.exp() - (-x).exp()) / (x.exp() + (-x).exp()),
        "scaled_sigmoid": 2 / (1 + (-x).exp()) - 1,
        "sigmoid01": 1 / (1 + (-x).exp()),
        "softsign": x / (1 + x.abs()),
        "hardtanh": x.clamp(-1, 1),
        "atan": torch.atan(x) / (math.pi / 2),
    }[bound]
    return (2 if direct else delta) * mapped


def gated_srp_naive(
    weights: Mapping[str, Tensor],
    y: Tensor,
    v: Tensor,
    graph: tuple[Tensor, Tensor, Tensor],
    homogeneity: Tensor,
    *,
    detach: bool = True,
    delta: float = 1.0,
) -> Tensor:
    """The layer with its default gate."""
    r_hat = unit_naive(neighbourhood_mean_naive(v.detach(), *graph))
    count = graph[1].sum(-1).to(y.dtype)
    tokens = token_features_naive(homogeneity, count, graph[0].shape[-1], "legacy")
    heads = head_features_naive(y.detach() if detach else y, r_hat)
    return redundancy_projection_naive(y, r_hat, gate_naive(weights, tokens, heads, delta=delta))
