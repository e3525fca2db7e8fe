"""What nnU-Net and users may rely on: output sizes, one state dict, nothing remembered, nothing fetched."""

import builtins
import copy
import json
import pydoc
import socket
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nnunet_gdla.networks import PVTGDLA
from nnunet_gdla.networks.pvt_gdla import PLAN_STRIDES
from tests.networks.builders import DECODERS, VARIANTS, as_list, expected_sizes, small_network

decoders = pytest.mark.parametrize("decoder", DECODERS)


@decoders
@settings(max_examples=6)
@given(data=st.data())
def test_output_is_exactly_the_inputs_size_for_any_size(decoder: str, data: st.DataObject) -> None:
    edge = st.integers(1, 70)
    height, width, batch = data.draw(edge), data.draw(edge), data.draw(st.integers(1, 2))
    channels, classes = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 6))
    network = small_network(channels, classes, decoder=decoder, deep_supervision=True).eval()
    x = torch.randn(batch, channels, height, width)
    with torch.no_grad():
        outputs = as_list(network(x))
        network.decoder.deep_supervision = False
        single = network(x)
    assert [tuple(y.shape) for y in outputs] == [(batch, classes, *size) for size in expected_sizes(height, width)]
    assert all(torch.isfinite(y).all() for y in outputs)
    assert torch.equal(single, outputs[0])


@pytest.mark.parametrize("size", [(20, 30), (12, 28), (56, 40), (97, 131), (1, 1), (300, 8), (4, 20)], ids=str)
def test_auxiliary_sizes_are_those_of_nnunets_targets(size: tuple[int, int]) -> None:
    # nnU-Net: scales from the cumulated strides without the last, target edge = round(edge * scale)
    scales = (1 / np.cumprod(np.vstack(PLAN_STRIDES), axis=0))[:-1]
    targets = [tuple(max(1, round(edge * scale)) for edge, scale in zip(size, row, strict=True)) for row in scales]
    network = small_network(deep_supervision=True).eval()
    with torch.no_grad():
        outputs = as_list(network(torch.zeros(1, 2, *size)))
    assert [tuple(y.shape[2:]) for y in outputs] == targets == network.output_sizes(size)


@pytest.mark.parametrize(("channels", "classes"), [(1, 2), (2, 1), (13, 2), (3, 130)])
def test_any_number_of_channels_and_classes(channels: int, classes: int) -> None:
    network = small_network(channels, classes).eval()
    with torch.no_grad():
        assert network(torch.randn(1, channels, 33, 47)).shape == (1, classes, 33, 47)


@pytest.mark.parametrize(
    "options",
    [{}, {"decoder": "linear"}, {"decoder": "self", "rope": False}, {"decoder": "diff", "rope": False}],
    ids=str,
)
def test_transposing_image_and_kernels_transposes_the_outputs(options: dict[str, Any]) -> None:
    # no axis is taken for the other anywhere, in sizes that are no square and no multiple of 32
    network = small_network(deep_supervision=True, **options).eval()
    turned = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in turned.parameters():
            if parameter.ndim == 4:
                parameter.copy_(parameter.transpose(-1, -2).clone())
        x = torch.randn(1, 2, 40, 101)
        for straight, transposed in zip(as_list(network(x)), as_list(turned(x.transpose(-1, -2))), strict=True):
            torch.testing.assert_close(transposed.transpose(-1, -2), straight, rtol=1e-4, atol=1e-5)


@decoders
def test_batch_elements_are_independent_and_eval_is_repeatable(decoder: str) -> None:
    network = small_network(decoder=decoder, drop_path_rate=0.3).eval()
    a, b = torch.randn(1, 2, 40, 56), 50 * torch.randn(1, 2, 40, 56)
    with torch.no_grad():
        alone = network(a)
        assert torch.equal(network(a), alone)
        torch.testing.assert_close(network(torch.cat([a, b]))[:1], alone, rtol=1e-4, atol=1e-5)


@decoders
def test_no_size_is_kept(decoder: str) -> None:
    network = small_network(decoder=decoder).eval()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    small, large = torch.randn(1, 2, 24, 40), torch.randn(1, 2, 96, 64)
    with torch.no_grad():
        first = network(small)
        network(large)
        assert torch.equal(network(small), first)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_state_dict_with_and_without_deep_supervision(variant: str) -> None:
    options = VARIANTS[variant]
    on, off = (small_network(deep_supervision=flag, **options) for flag in (True, False))
    assert on.state_dict().keys() == off.state_dict().keys()
    off.load_state_dict(on.state_dict(), strict=True)
    x = torch.randn(1, 2, 33, 47)
    with torch.no_grad():
        assert torch.equal(off.eval()(x), as_list(on.eval()(x))[0])


@decoders
def test_only_the_heads_depend_on_the_number_of_classes_and_their_names_say_so(decoder: str) -> None:
    # nnU-Net's `-pretrained_weights` leaves out keys with `.seg_layers.` and wants every other key to fit
    two, nine = (small_network(2, classes, decoder=decoder).state_dict() for classes in (2, 9))
    assert two.keys() == nine.keys()
    different = {name for name in two if two[name].shape != nine[name].shape}
    assert different == {name for name in two if ".seg_layers." in name}
    assert len(different) == 8


@pytest.mark.parametrize("variant", VARIANTS)
def test_arguments_survive_json_and_rebuild_the_network(variant: str) -> None:
    arguments = {
        "encoder": "pvt_v2_b0",
        "drop_path_rate": 0.0,
        "deep_supervision": True,
        "strides": PLAN_STRIDES,
        **VARIANTS[variant],
    }
    build = pydoc.locate("nnunet_gdla.networks.pvt_gdla.PVTGDLA")  # as nnU-Net finds a class by its path
    assert build is PVTGDLA
    original, rebuilt = PVTGDLA(2, 3, **arguments), build(2, 3, **json.loads(json.dumps(arguments)))
    rebuilt.load_state_dict(original.state_dict(), strict=True)
    x = torch.randn(1, 2, 32, 32)
    with torch.no_grad():
        pairs = zip(as_list(original.eval()(x)), as_list(rebuilt.eval()(x)), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)


def test_building_reads_nothing_and_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        raise AssertionError(f"the constructor asked for {args} {kwargs}")

    monkeypatch.setattr(builtins, "open", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for decoder in DECODERS:
        small_network(decoder=decoder)


def test_a_copy_is_independent_and_equal() -> None:
    network = small_network().eval()
    twin, x = copy.deepcopy(network), torch.randn(1, 2, 32, 32)
    with torch.no_grad():
        expected = network(x)
        network.decoder.seg_layers[0].bias.add_(1)  # type: ignore[operator]
        assert torch.equal(twin(x), expected)


@decoders
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_output_is_finite_and_close(decoder: str, dtype: torch.dtype) -> None:
    network = small_network(decoder=decoder).eval()
    x = torch.randn(1, 2, 64, 96)
    with torch.no_grad():
        expected = network(x)
        with torch.autocast("cpu", dtype=dtype):
            actual = network(x)
    assert torch.isfinite(actual).all()
    assert (actual.float() - expected).abs().max() < 0.1 * expected.abs().max()


def test_channels_last_images_give_the_same() -> None:
    network, x = small_network().eval(), torch.randn(2, 2, 40, 56)
    with torch.no_grad():
        expected = network(x)
        torch.testing.assert_close(network(x.to(memory_format=torch.channels_last)), expected, rtol=1e-4, atol=1e-5)


def test_the_planners_figure_grows_with_patch_channels_and_width() -> None:
    network = small_network()
    base = network.compute_conv_feature_map_size((64, 64))
    assert isinstance(base, int)
    assert network.compute_conv_feature_map_size((128, 128)) == 4 * base
    assert (
        network.compute_conv_feature_map_size([64, 128]) == network.compute_conv_feature_map_size([128, 64]) == 2 * base
    )
    # padded inside to multiples of 32
    assert network.compute_conv_feature_map_size((33, 64)) == base
    assert small_network(5).compute_conv_feature_map_size((64, 64)) > base
    with torch.device("meta"):
        wide = PVTGDLA(2, 3, encoder="pvt_v2_b2")
    assert wide.compute_conv_feature_map_size((64, 64)) > 2 * base
