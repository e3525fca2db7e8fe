"""Wrong arguments are errors that list what is known; sizes are the published ones."""

from typing import Any

import pytest
import torch
from torch import nn

from nnunet_gdla.networks import PVTGDLA
from nnunet_gdla.networks.pvt_gdla import PLAN_STRIDES
from tests.networks.builders import small_network
from tests.unchecked import unchecked

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"encoder": "pvt_v2_b9"}, r"'pvt_v2_b9'.*pvt_v2_b0.*pvt_v2_b1.*pvt_v2_b2.*pvt_v2_b3.*pvt_v2_b4.*pvt_v2_b5"),
        ({"decoder": "softmax"}, r"'softmax'.*gdla.*linear.*self.*diff"),
        ({"gate": "relu"}, r"'relu'.*silu.*sigmoid.*None"),
        ({"ffn": "conv"}, r"'conv'.*mix.*swiglu.*mlp"),
        ({"local_mixing": "dense"}, r"'dense'.*joint.*separate.*None"),
        ({"local_kernel": 2}, "odd.*2"),
        ({"upsample_kernel": 4}, "odd.*4"),
        ({"upsample_kernel": 1}, "1"),
        ({"num_heads": [1, 2]}, r"\[1, 2\].*4, 8 and 16"),
        ({"num_heads": [1, 2, 3]}, "3.*160"),
        ({"decoder": "self", "num_heads": [3, 2, 5]}, "32.*3"),
        ({"rope": True}, "rope.*self.*diff.*linear"),
        (
            {"strides": [[1, 1], [2, 2], [2, 2], [2, 2], [2, 2]]},
            r"\[\[1, 1\], \[8, 8\], \[2, 2\], \[2, 2\], \[2, 2\]\]",
        ),
        ({"strides": [[1, 1, 1], [8, 8, 8]]}, r"\[1, 1, 1\]"),
        *(({"mlp_ratio": wrong}, "mlp_ratio must be a finite number") for wrong in (0, -1.0, NAN, INF, "4", True)),
        *(({"drop_path_rate": wrong}, "drop_path_rate must be at least 0") for wrong in (-0.1, 1, NAN, None)),
        *(({"upsample_kernel": wrong}, "upsample_kernel must be odd and at least 3") for wrong in (-3, 0, 3.0, NAN)),
        *(({"local_kernel": wrong}, "local_kernel must be odd and at least 1") for wrong in (-3, 0, 3.5, None)),
        *(({"num_heads": wrong}, "num_heads") for wrong in (4, "abc", [0, 1, 1], [1.0, 1, 1], [1, 1, None], [1] * 4)),
        *(({name: 1.5}, f"{name} must be at least 1") for name in ("input_channels", "num_classes")),
        *(({name: "no"}, f"{name} must be True or False, got 'no'") for name in ("pre_conv", "qkv_bias", "rope")),
        *(({"strides": wrong}, "strides .* do not fit") for wrong in (3, [1, 2], [[1, 1]])),
        ({"input_channels": 0}, "input_channels.*0"),
        ({"num_classes": 0}, "num_classes.*0"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_an_error_that_shows_it_and_what_is_known(wrong: dict[str, Any], message: str) -> None:
    arguments = {"input_channels": 2, "num_classes": 3, **wrong}
    with unchecked(), pytest.raises(ValueError, match=message):
        small_network(**arguments)


@pytest.mark.parametrize("name", ["drop_path", "strids", "deepsupervision"])
def test_a_misspelt_argument_is_an_error(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        small_network(**{name: 1})


@pytest.mark.parametrize(
    "strides", [PLAN_STRIDES, tuple(map(tuple, PLAN_STRIDES)), None], ids=["lists", "tuples", "none"]
)
def test_our_strides_are_accepted(strides: Any) -> None:  # noqa: ANN401
    assert PLAN_STRIDES == [[1, 1], [8, 8], [2, 2], [2, 2], [2, 2]]
    with torch.device("meta"):
        small_network(strides=strides)


@pytest.mark.parametrize("shape", [(1, 3, 32, 32), (2, 32, 32), (1, 2, 4, 32, 32), (1, 1, 32, 32)], ids=str)
def test_an_image_of_other_channels_or_axes_is_an_error_that_shows_both(shape: tuple[int, ...]) -> None:
    with unchecked(), pytest.raises(ValueError, match="2 channels") as error:
        small_network(2)(torch.zeros(shape))
    assert str(shape) in str(error.value)


@pytest.mark.parametrize(
    "x",
    [torch.zeros(0, 2, 32, 32), torch.zeros(1, 2, 0, 5), torch.zeros(1, 2, 32, 32, dtype=torch.int16)],
    ids=["no image", "no rows", "integers"],
)
def test_nothing_to_look_at_and_integers_are_errors(x: torch.Tensor) -> None:
    with unchecked(), pytest.raises(ValueError, match="floating point") as error:
        small_network(2)(x)
    assert str(tuple(x.shape)) in str(error.value)


ENCODER_CHANNELS = {"pvt_v2_b0": [32, 64, 160, 256], **{f"pvt_v2_b{i}": [64, 128, 320, 512] for i in range(1, 6)}}


@pytest.mark.parametrize("encoder", ENCODER_CHANNELS)
def test_every_encoder_builds_with_heads_of_width_32(encoder: str) -> None:
    with torch.device("meta"):
        network = PVTGDLA(3, 2, encoder=encoder)
    channels = ENCODER_CHANNELS[encoder]
    assert [head.weight.shape[1] for head in network.decoder.seg_layers if isinstance(head, nn.Conv2d)] == channels
    heads = [block.get_submodule("attention").num_heads for block in network.decoder.blocks]
    assert heads == [dim // 32 for dim in reversed(channels[:3])]


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ENCODER_CHANNELS)
def test_every_encoder_runs(encoder: str) -> None:
    network = PVTGDLA(3, 2, encoder=encoder).eval()
    with torch.no_grad():
        assert network(torch.randn(1, 3, 50, 70)).shape == (1, 2, 50, 70)


def _parameters(**options: Any) -> int:  # noqa: ANN401
    with torch.device("meta"):
        return sum(p.numel() for p in PVTGDLA(1, 9, **options).parameters())


def test_the_default_network_has_the_published_size() -> None:
    assert _parameters() == 32_128_335
    assert _parameters(gate="sigmoid", deep_supervision=True) == 32_128_335


@pytest.mark.parametrize(("decoder", "millions"), [("diff", 28.75), ("self", 28.26), ("linear", 28.26)])
def test_the_comparators_have_the_published_sizes(decoder: str, millions: float) -> None:
    # published with a three-channel stem
    assert (_parameters(decoder=decoder) + 2 * 64 * 49) / 1e6 == pytest.approx(millions, abs=0.005)


def test_defaults_of_the_decoders_are_the_released_ones() -> None:
    with torch.device("meta"):
        networks = {decoder: small_network(decoder=decoder) for decoder in ("gdla", "linear", "self", "diff")}
    blocks = {decoder: network.decoder.blocks[0] for decoder, network in networks.items()}
    ffn = {decoder: type(block.get_submodule("ffn")).__name__ for decoder, block in blocks.items()}
    assert ffn == {"gdla": "MixFFN", "linear": "Mlp", "self": "Mlp", "diff": "SwiGLU"}
    rope = {d: getattr(block.get_submodule("attention"), "rope", None) for d, block in blocks.items()}
    assert rope == {"gdla": None, "linear": False, "self": True, "diff": True}
    inits = [block.get_submodule("attention").lambda_init for block in networks["diff"].decoder.blocks]
    assert inits == pytest.approx([0.556, 0.471, 0.356], abs=5e-4)
    rates = [getattr(module, "drop_prob", 0.0) for module in PVTGDLA(1, 2, encoder="pvt_v2_b0").modules()]
    assert max(rates) == pytest.approx(0.1)


def test_heads_that_rest_are_trained_once_deep_supervision_is_switched_on() -> None:
    network = small_network(deep_supervision=False).train()
    assert not any(parameter.requires_grad for parameter in network.decoder.seg_layers[1:].parameters())
    network.decoder.deep_supervision = True
    torch.stack([output.sum() for output in network(torch.randn(2, 2, 64, 64))]).sum().backward()
    assert all(parameter.grad is not None for parameter in network.decoder.seg_layers.parameters())
    network.decoder.seg_layers[2].requires_grad_(False)
    network.decoder.deep_supervision = False
    network.decoder.deep_supervision = True
    assert not network.decoder.seg_layers[2].weight.requires_grad, "what the user froze stays frozen"
