"""The compiled network, without a single graph break, equals the eager one in training, evaluation and inference."""

import copy

import pytest
import torch
from torch import Tensor

from nnunet_gdla.networks import PVTGDLA
from tests.networks.builders import DECODERS, small_network
from tests.reference.compare import assert_all_close, relative_error

pytestmark = [pytest.mark.compile, pytest.mark.slow]


def _compiled(network: PVTGDLA) -> torch.nn.Module:
    module: torch.nn.Module = torch.compile(network, fullgraph=True, backend="aot_eager")  # type: ignore[assignment]
    return module


def _step(model: torch.nn.Module, network: PVTGDLA, x: Tensor) -> dict[str, Tensor]:
    network.zero_grad()
    outputs = model(x)
    outputs = outputs if isinstance(outputs, list) else [outputs]
    torch.stack([y.square().mean() for y in outputs]).sum().backward()
    results = {f"output {i}": y.detach() for i, y in enumerate(outputs)}
    grads = {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}
    return {**results, **grads, **{name: buffer.clone() for name, buffer in network.named_buffers()}}


@pytest.mark.parametrize(
    ("decoder", "deep_supervision"),
    [("gdla", True), ("gdla", False), ("linear", True), ("self", False), ("diff", True)],
)
def test_training(decoder: str, deep_supervision: bool) -> None:
    eager = small_network(decoder=decoder, deep_supervision=deep_supervision).train()
    network = copy.deepcopy(eager)
    x = torch.randn(2, 2, 40, 56)
    expected = _step(eager, eager, x)
    largest = max(value.abs().max().item() for value in expected.values())
    assert_all_close(_step(_compiled(network), network, x), expected, 1e-4, floor=1e-4 * largest)


@pytest.mark.parametrize("decoder", DECODERS)
def test_evaluation_and_inference(decoder: str) -> None:
    network = small_network(decoder=decoder).eval()
    compiled, x = _compiled(network), torch.randn(1, 2, 40, 56)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert_all_close({"y": compiled(x)}, {"y": network(x)}, 1e-5)


def test_switching_deep_supervision_and_size_after_compilation() -> None:
    # nnU-Net's trainer switches at every validation; at the second size the compiler makes sizes symbolic
    network = small_network(deep_supervision=True).eval()
    compiled = _compiled(network)
    for deep_supervision, size in ((True, (32, 64)), (False, (32, 64)), (False, (40, 56)), (False, (33, 97))):
        network.decoder.deep_supervision = deep_supervision
        x = torch.randn(1, 2, *size)
        with torch.no_grad():
            actual, expected = compiled(x), network(x)
        assert isinstance(actual, list) == deep_supervision
        pairs = zip(actual, expected, strict=True) if deep_supervision else [(actual, expected)]
        assert all(relative_error(one, other) <= 1e-5 for one, other in pairs)
