"""Whole networks reproduce the reference run: features, outputs, losses, gradients, buffers."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from nnunet_gdla.losses import BoundaryDoULoss
from nnunet_gdla.networks import PVTGDLA
from nnunet_gdla.networks.weights import convert_released_state_dict
from tests.golden_files import GoldenFile, golden_params
from tests.networks.released_networks import (
    COMPARATORS,
    STEM,
    build_network,
    encoder_source,
    full_size,
    gradients_in_our_names,
)
from tests.reference.compare import assert_all_close, relative_error

gates = pytest.mark.parametrize("gate", ["sigmoid", "silu"])
whole = pytest.mark.parametrize("golden", golden_params("PVTGDLA"))
comparators = pytest.mark.parametrize("golden", golden_params(*COMPARATORS))


def _list(outputs: Any) -> list[Tensor]:  # noqa: ANN401
    assert isinstance(outputs, list)
    return outputs


def _assert_heads(network: PVTGDLA, golden: GoldenFile, expected: Mapping[str, Tensor]) -> None:
    assert expected
    with torch.no_grad():
        outputs = full_size(_list(network.eval()(encoder_source(golden).tensors["input.x"])))
    assert_all_close({name: outputs[name] for name in expected}, expected, 1e-5)


@whole
def test_encoder_features(golden: GoldenFile) -> None:
    network = build_network(golden).eval()
    with torch.no_grad():
        features = network.encoder(golden.tensors["input.x"])
    expected = golden.group("output.encoder.")
    assert_all_close({f"f{i + 1}": feature for i, feature in enumerate(features)}, expected, 1e-5)


@whole
@gates
def test_outputs_of_the_gdla_network(golden: GoldenFile, gate: str) -> None:
    _assert_heads(build_network(golden, gate=gate), golden, golden.group(f"output.{gate}.eval."))


@comparators
def test_outputs_of_the_comparators(golden: GoldenFile) -> None:
    _assert_heads(build_network(golden), golden, golden.group("output.eval."))


@whole
def test_output_without_deep_supervision_is_the_first_one(golden: GoldenFile) -> None:
    network = build_network(golden, deep_supervision=False).eval()
    with torch.no_grad():
        y = network(golden.tensors["input.x"])
    assert relative_error(y, golden.tensors["output.silu.eval.head1"]) <= 1e-5


@whole
@gates
def test_losses_gradients_and_buffers_of_one_training_step(golden: GoldenFile, gate: str) -> None:
    network = build_network(golden, gate=gate).train()
    outputs = full_size(_list(network(golden.tensors["input.x"])))
    labels = golden.tensors["input.labels"][:, None]
    loss = BoundaryDoULoss()
    losses = torch.stack([loss(outputs[f"head{i}"], labels) for i in (4, 3, 2, 1)])
    losses.sum().backward()

    assert_all_close({"losses": losses}, {"losses": golden.tensors[f"output.{gate}.train.losses"]}, 1e-5)
    assert losses.sum().item() == pytest.approx(golden.meta[f"loss_{gate}"], rel=1e-5)
    if f"output.{gate}.train.head1" in golden.tensors:
        assert relative_error(outputs["head1"].detach(), golden.tensors[f"output.{gate}.train.head1"]) <= 1e-5

    parameters = dict(network.named_parameters())
    assert all(parameter.grad is not None for parameter in parameters.values())
    expected = gradients_in_our_names(golden.group(f"grad.{gate}."), golden.meta["in_chs"])
    actual = {name: parameters[name].grad for name in expected}
    assert_all_close({name: grad for name, grad in actual.items() if grad is not None}, expected, 1e-4)
    assert _released_grad_norm(network) == pytest.approx(golden.meta[f"grad_norm_{gate}"], rel=1e-4)

    if gate == "sigmoid":
        after = convert_released_state_dict(golden.group("after."))
        assert after
        assert_all_close({name: network.state_dict()[name] for name in after}, after, 1e-5)


def _released_grad_norm(network: PVTGDLA) -> float:
    """Norm of all gradients; the reference has three copies of a one-channel stem's."""
    total = 0.0
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None
        copies = 3 if name == "encoder.patch_embed.proj.weight" and network.input_channels == 1 else 1
        total += copies * parameter.grad.double().square().sum().item()
    return math.sqrt(total)


@whole
def test_a_released_checkpoint_may_be_wrapped_and_prefixed(golden: GoldenFile) -> None:
    released = golden.group("param.")
    plain = convert_released_state_dict(released)
    for wrapped in (
        {"model_state_dict": released},
        {f"module.{name}": tensor for name, tensor in released.items()},
        {"model_state_dict": {f"_orig_mod.{name}": tensor for name, tensor in released.items()}, "epoch": 3},
    ):
        converted = convert_released_state_dict(wrapped)
        assert converted.keys() == plain.keys()
        assert all(torch.equal(converted[name], tensor) for name, tensor in plain.items())
    assert STEM in released
