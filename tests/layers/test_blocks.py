"""The decoder blocks on images: equal to their naive twins with every switch, any size."""

from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from nnunet_gdla.layers import (
    AttentionBlock,
    DifferentialAttention,
    GatedDifferentialLinearAttention,
    GDLABlock,
    LinearAttention,
    SoftmaxAttention,
)
from tests.layers.naive_twins import assert_equals_twin, attention_twin, block_twin, mixer_twin
from tests.unchecked import unchecked

SIZES = [(1, 1), (4, 9), (3, 5)]


def _randomised(module: nn.Module) -> nn.Module:
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.5 * torch.randn_like(parameter))
    return module


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("pre_conv", [True, False])
@pytest.mark.parametrize("ffn", ["mix", "swiglu", "mlp"])
@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"gate": "sigmoid", "local_mixing": "separate", "local_kernel": 5},
        {"gate": None, "differential": False, "local_mixing": None, "qkv_bias": False},
    ],
    ids=["default", "other", "bare"],
)
def test_gdla_block_equals_the_naive_twin(
    size: tuple[int, int],
    pre_conv: bool,
    ffn: Literal["mix", "swiglu", "mlp"],
    switches: dict[str, Any],
) -> None:
    block = _randomised(GDLABlock(8, 2, pre_conv=pre_conv, ffn=ffn, mlp_ratio=1.5, **switches))
    mixer = next(m for m in block.modules() if isinstance(m, GatedDifferentialLinearAttention))

    def twin(x: Tensor) -> Tensor:
        return block_twin(block, x, lambda tokens, grid: mixer_twin(mixer, tokens, grid))

    assert_equals_twin(block, torch.randn(2, 8, *size), block, twin)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("ffn", ["mix", "swiglu", "mlp"])
@pytest.mark.parametrize("kind", ["diff", "linear", "self"])
def test_attention_block_equals_the_naive_twin(
    size: tuple[int, int], ffn: Literal["mix", "swiglu", "mlp"], kind: str
) -> None:
    attentions: dict[str, nn.Module] = {
        "diff": DifferentialAttention(8, 2, depth=3),
        "linear": LinearAttention(8, 2),
        "self": SoftmaxAttention(8, 2, rope=True),
    }
    attention = attentions[kind]
    block = _randomised(AttentionBlock(8, attention, ffn=ffn))

    def twin(x: Tensor) -> Tensor:
        return block_twin(
            block, x, lambda tokens, _: attention_twin(attention, tokens, num_heads=2, rope=kind != "linear", depth=3)
        )

    assert_equals_twin(block, torch.randn(2, 8, *size), block, twin)


def test_channels_last_images_give_the_same() -> None:
    block, x = GDLABlock(8, 2), torch.randn(2, 8, 5, 7)
    torch.testing.assert_close(block(x.to(memory_format=torch.channels_last)), block(x))


def test_state_dict_is_the_documented_one() -> None:
    names = {
        "norm1.weight",
        "norm1.bias",
        "pre_conv.weight",
        "pre_conv.bias",
        "attention.lambda_global",
        "attention.lambda_local",
        "attention.qkvg.weight",
        "attention.qkvg.bias",
        "attention.norm.weight",
        "attention.out_proj.weight",
        "attention.out_proj.bias",
        "attention.local_depthwise.weight",
        "attention.local_depthwise.bias",
        "attention.local_pointwise.weight",
        "attention.local_pointwise.bias",
        "norm2.weight",
        "norm2.bias",
        "ffn.expand.weight",
        "ffn.expand.bias",
        "ffn.depthwise.weight",
        "ffn.depthwise.bias",
        "ffn.project.weight",
    }
    assert set(GDLABlock(8, 2).state_dict()) == names
    assert set(GDLABlock(8, 2, pre_conv=False).state_dict()) == names - {"pre_conv.weight", "pre_conv.bias"}
    block = GDLABlock(8, 2)
    assert block.state_dict()["pre_conv.weight"].shape == (8, 8, 3, 3)  # full, not depthwise


def test_an_unknown_feed_forward_layer_is_an_error_that_lists_the_known_ones() -> None:
    with unchecked(), pytest.raises(ValueError, match=r"'conv'.*mix.*swiglu.*mlp"):
        AttentionBlock(8, nn.Identity(), ffn="conv")  # type: ignore[arg-type]
