"""One pass of a network compares the kernels that are named and changes nothing."""

import pytest
import torch

from nnunet_gdla.layers import GatedDifferentialLinearAttention
from nnunet_gdla.layers.kernel_check import compare_kernels
from nnunet_gdla.networks import PVTGDLA
from nnunet_gdla.ops import _self_check, use_forms
from tests.fake_kernels import right_kernels


def test_the_pass_compares_what_a_network_uses_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = right_kernels(monkeypatch)
    network = PVTGDLA(1, 2, encoder="pvt_v2_b0")
    network.stem.eval()
    modes = [module.training for module in network.modules()]
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    random = torch.get_rng_state()
    compare_kernels(network, torch.zeros(1, 1, 64, 64))
    assert not launched, "no kernel is named"
    with use_forms("triton,cpu"):
        compare_kernels(network, torch.zeros(1, 1, 64, 64))
    assert set(_self_check._verdicts.values()) == {_self_check.PASSED}
    assert launched.count("gated_differential_attention") > len(_self_check._verdicts)
    assert [module.training for module in network.modules()] == modes
    assert all(torch.equal(tensor, state[name]) for name, tensor in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(parameter.grad is None for parameter in network.parameters())


@pytest.mark.compile
def test_a_graph_that_is_compiled_afterwards_holds_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = right_kernels(monkeypatch)
    layer, tokens = GatedDifferentialLinearAttention(16, 2), torch.randn(1, 35, 16)
    with use_forms("triton,cpu"):
        compare_kernels(layer, tokens, (5, 7))
        launched.clear()
        torch.compile(layer, fullgraph=True, backend="eager")(tokens, (5, 7))
    assert set(launched) == {"gated_differential_attention"}
