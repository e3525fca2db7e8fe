"""The two sums inside the gate of Gated SRP, which keep their inputs for backward and nothing else.

Shape legend (this file): B batch, H heads, N patches, T token features.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nnunet_gdla.layers.untouched import is_untouched
from nnunet_gdla.ops._dispatch import are_exact
from nnunet_gdla.ops._fusion import fused_enabled, transforms_active
from nnunet_gdla.ops.token_mlp import MlpWeights, token_mlp

__all__ = ["SMALLEST_NORM", "head_part", "token_part"]

SMALLEST_NORM = 1e-12


def _head_features(dot: Tensor, norm: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    cosine = dot / (norm + SMALLEST_NORM)
    return cosine, cosine.abs(), torch.log1p(norm)


def head_part(weight_H3: Tensor, dot_BHN: Tensor, norm_BHN: Tensor) -> Tensor:
    """Return the weighted sum (B, H, N) of c, |c| and log(1 + |y|), given the products and the lengths."""
    if _is_plain(dot_BHN) or not are_exact(weight_H3, dot_BHN, norm_BHN):
        weighted = [w * f for w, f in zip(_columns(weight_H3), _head_features(dot_BHN, norm_BHN), strict=True)]
        return weighted[0] + weighted[1] + weighted[2]
    return _HeadPart.apply(weight_H3, dot_BHN, norm_BHN)


def _is_plain(x: Tensor) -> bool:
    traced = torch.compiler.is_compiling() or torch.compiler.is_exporting()
    traced = traced or transforms_active()
    return traced or x.requires_grad or not fused_enabled()


def _columns(weight_H3: Tensor) -> tuple[Tensor, ...]:
    return weight_H3[..., None].unbind(1)


class _HeadPart(torch.autograd.Function):
    """The weighted sum of the head features, which are computed anew in backward and get no gradient."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, dot: Tensor, norm: Tensor) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(dot, norm)
        weights, features = _columns(weight), _head_features(dot, norm)
        return (weights[0] * features[0]).addcmul_(weights[1], features[1]).addcmul_(weights[2], features[2])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        features = _head_features(*ctx.saved_tensors)
        return torch.stack([(grads[0] * feature).sum((0, 2)) for feature in features], dim=-1), None, None


def token_part(first: nn.Module, second: nn.Module, token_BNT: Tensor) -> Tensor:
    """Return the two layers' output (B, N, 1) of the token features; layers that somebody changed are called."""
    if not is_untouched(first, second):
        return cast(Tensor, second(F.gelu(first(token_BNT))))
    first, second = cast(nn.Linear, first), cast(nn.Linear, second)
    if _is_plain(token_BNT):
        return linear(second, F.gelu(linear(first, token_BNT)))
    weights = (
        None if w is None else w.to(token_BNT.dtype) for part in (first, second) for w in (part.weight, part.bias)
    )
    return token_mlp(token_BNT, MlpWeights(*weights), keep_hidden=False)


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    return F.linear(x, layer.weight.to(x.dtype), None if layer.bias is None else layer.bias.to(x.dtype))
