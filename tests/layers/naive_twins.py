"""The naive twin of a layer with the layer's own parameters, so that outputs and gradients can be compared."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nnunet_gdla.layers import (
    DifferentialAttention,
    GatedDifferentialLinearAttention,
    GDLABlock,
    LinearAttention,
    MixFFN,
    SoftmaxAttention,
    SwiGLU,
)
from tests.reference.attention import AttentionWeights, DifferentialWeights, mhda_naive, mhla_naive, mhsa_naive
from tests.reference.compare import assert_all_close
from tests.reference.feed_forward import mix_ffn_naive, mlp_naive, silu_naive, swiglu_naive
from tests.reference.gdla import LocalWeights, MixerWeights, gdla_mixer_naive

__all__ = ["assert_equals_twin", "attention_twin", "block_twin", "feed_forward_twin", "mixer_twin"]

Grid = tuple[int, int]


def _own(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_parameters())


def _pointwise(weight: Tensor, parts: int) -> tuple[Tensor, ...]:
    """Cut a 1x1 convolution, dense or in one group a projection, into its matrices."""
    matrix = weight[:, :, 0, 0]
    return (matrix,) if matrix.shape[0] == matrix.shape[1] else matrix.chunk(parts)


def mixer_twin(mixer: GatedDifferentialLinearAttention, x: Tensor, grid: Grid) -> Tensor:
    """Return what the mixer must return."""
    own = _own(mixer)
    parts = own["qkvg.weight"].shape[0] // own["qkvg.weight"].shape[1]
    local = None
    if "local_depthwise.weight" in own:
        local = LocalWeights(
            own["local_depthwise.weight"],
            own["local_depthwise.bias"],
            _pointwise(own["local_pointwise.weight"], parts),
            own["local_pointwise.bias"],
            own.get("lambda_local"),
        )
    weights = MixerWeights(
        own["qkvg.weight"],
        own.get("qkvg.bias"),
        own.get("lambda_global"),
        own["norm.weight"],
        own["out_proj.weight"],
        own["out_proj.bias"],
        local,
    )
    return gdla_mixer_naive(x, grid, weights, num_heads=mixer.num_heads, gate=mixer.gate)


def attention_twin(attention: nn.Module, x: Tensor, *, num_heads: int, rope: bool, depth: int = 1) -> Tensor:
    """Return what one of the three comparator attentions must return."""
    own = _own(attention)
    weights = AttentionWeights(own["qkv.weight"], own.get("qkv.bias"), own["out_proj.weight"], own.get("out_proj.bias"))
    if isinstance(attention, DifferentialAttention):
        lambdas = DifferentialWeights(
            own["lambda_q1"], own["lambda_k1"], own["lambda_q2"], own["lambda_k2"], own["norm.weight"]
        )
        return mhda_naive(x, weights, lambdas, num_heads=num_heads, depth=depth, rope=rope)
    twins = {LinearAttention: mhla_naive, SoftmaxAttention: mhsa_naive}
    return twins[type(attention)](x, weights, num_heads=num_heads, rope=rope)


def feed_forward_twin(layer: nn.Module, x: Tensor, grid: Grid) -> Tensor:
    """Return what a feed-forward layer must return."""
    own = _own(layer)
    if isinstance(layer, MixFFN):
        return mix_ffn_naive(
            x,
            grid,
            (own["expand.weight"], own["expand.bias"]),
            (own["depthwise.weight"], own["depthwise.bias"]),
            own["project.weight"],
        )
    naive = swiglu_naive if isinstance(layer, SwiGLU) else mlp_naive
    return naive(x, (own["fc1.weight"], own["fc1.bias"]), (own["fc2.weight"], own["fc2.bias"]))


def _layer_norm(x: Tensor, own: Mapping[str, Tensor], name: str) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    spread = torch.sqrt((centred * centred).mean(-1, keepdim=True) + 1e-5)
    return centred / spread * own[f"{name}.weight"] + own[f"{name}.bias"]


def block_twin(block: nn.Module, x: Tensor, attend: Callable[[Tensor, Grid], Tensor]) -> Tensor:
    """Return what a block must return: both residuals from before their norm, a full 3x3 before a GDLA mixer."""
    own, grid = _own(block), (x.shape[2], x.shape[3])
    tokens = x.flatten(2).transpose(1, 2)
    mixed = _layer_norm(tokens, own, "norm1")
    if isinstance(block, GDLABlock) and "pre_conv.weight" in own:
        image = mixed.transpose(1, 2).reshape(x.shape)
        image = silu_naive(F.conv2d(image, own["pre_conv.weight"], own["pre_conv.bias"], padding=1))
        mixed = image.flatten(2).transpose(1, 2)
    tokens = tokens + attend(mixed, grid)
    feed_forward = block.get_submodule("ffn")
    tokens = tokens + feed_forward_twin(feed_forward, _layer_norm(tokens, own, "norm2"), grid)
    return tokens.transpose(1, 2).reshape(x.shape)


def assert_equals_twin(
    module: nn.Module, x: Tensor, call: Callable[[Tensor], Tensor], twin: Callable[[Tensor], Tensor]
) -> None:
    """Compare output and gradients of input and all parameters in float64; a parameter without gradient is an error."""
    names, parameters = zip(*module.named_parameters(), strict=True)
    x = x.double().requires_grad_()
    cotangent = torch.randn(call(x).shape, dtype=torch.float64)

    def results(function: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        y = function(x)
        grads = torch.autograd.grad(y, [x, *parameters], cotangent)
        return {"output": y, **{f"grad.{name}": g for name, g in zip(("x", *names), grads, strict=True)}}

    actual, expected = results(call), results(twin)
    # q and k of softmax attention: a bias common to all keys has no effect, its gradient is rounding only
    largest = max(value.abs().max().item() for value in expected.values())
    assert_all_close(actual, expected, 1e-9, floor=1e-4 * largest)
