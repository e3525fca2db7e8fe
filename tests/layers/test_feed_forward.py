"""The feed-forward layers: equal to their naive twins, initialised as stated."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nnunet_gdla.layers import MixFFN, Mlp, SwiGLU
from tests.layers.naive_twins import assert_equals_twin, feed_forward_twin

layers = pytest.mark.parametrize("layer", [Mlp, SwiGLU, MixFFN], ids=lambda layer: layer.__name__)


@layers
@settings(max_examples=40)
@given(
    batch=st.integers(1, 2),
    dim=st.integers(1, 6),
    hidden=st.integers(1, 7),
    height=st.integers(1, 5),
    width=st.integers(1, 5),
)
def test_equals_the_naive_twin(
    layer: type[nn.Module], batch: int, dim: int, hidden: int, height: int, width: int
) -> None:
    module, grid = layer(dim, hidden).double(), (height, width)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter))
    x = torch.randn(batch, height * width, dim)
    assert_equals_twin(module, x, lambda x: module(x, grid), lambda x: feed_forward_twin(module, x, grid))


def test_a_grid_of_4_by_9_is_not_read_as_6_by_6() -> None:
    module, x = MixFFN(5, 8), torch.randn(1, 36, 5)
    readings = [module(x, grid) for grid in ((4, 9), (9, 4), (6, 6))]
    assert min((readings[i] - readings[j]).abs().max() for i, j in ((0, 1), (0, 2), (1, 2))) > 1e-3


@pytest.mark.parametrize("layer", [Mlp, SwiGLU], ids=lambda layer: layer.__name__)
def test_token_wise_layers_need_no_grid(layer: type[nn.Module]) -> None:
    module, x = layer(5, 8), torch.randn(2, 6, 5)
    assert torch.equal(module(x), module(x, (2, 3)))
    torch.testing.assert_close(module(x)[:, 3:4], module(x[:, 3:4]))


def test_state_dicts_are_the_documented_ones() -> None:
    def shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}

    assert shapes(Mlp(5, 20)) == {
        "fc1.weight": (20, 5),
        "fc1.bias": (20,),
        "fc2.weight": (5, 20),
        "fc2.bias": (5,),
    }
    assert shapes(SwiGLU(5, 20)) == {
        "fc1.weight": (40, 5),
        "fc1.bias": (40,),
        "fc2.weight": (5, 20),
        "fc2.bias": (5,),
    }
    assert shapes(MixFFN(5, 20)) == {
        "expand.weight": (40, 5),
        "expand.bias": (40,),
        "depthwise.weight": (40, 1, 3, 3),
        "depthwise.bias": (40,),
        "project.weight": (5, 20),
    }


@pytest.mark.parametrize("layer", [Mlp, SwiGLU], ids=lambda layer: layer.__name__)
def test_mlp_and_swiglu_start_from_xavier_weights_and_zero_biases(layer: type[nn.Module]) -> None:
    module = layer(64, 256)
    for name in ("fc1", "fc2"):
        linear = module.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        bound = math.sqrt(6 / sum(linear.weight.shape))
        assert not linear.bias.any()
        assert 0.98 * bound < linear.weight.abs().max() <= bound


@pytest.mark.parametrize("grid", [(5, 7), (36,), (1, 6, 6)], ids=str)
def test_a_grid_that_does_not_hold_the_tokens_is_an_error_that_shows_both(grid: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="36") as error:
        MixFFN(5, 8)(torch.zeros(1, 36, 5), grid)
    assert str(grid) in str(error.value)
