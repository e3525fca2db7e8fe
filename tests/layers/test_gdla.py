"""The GDLA mixer: equal to its naive twin with every switch, on every grid, and honest about what it cannot do."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from nnunet_gdla.layers import GatedDifferentialLinearAttention
from nnunet_gdla.layers.grid import to_grid, to_tokens
from tests.layers.naive_twins import assert_equals_twin, mixer_twin
from tests.unchecked import unchecked

SWITCHES: list[dict[str, Any]] = [
    {"gate": gate, "differential": differential, "local_mixing": local_mixing}
    for gate, differential, local_mixing in itertools.product(
        ("silu", "sigmoid", None), (True, False), ("joint", "separate", None)
    )
]
GRIDS = [(1, 1), (1, 7), (7, 1), (4, 9), (9, 4), (6, 6), (3, 5)]


def _name(switches: dict[str, Any]) -> str:
    return "-".join(f"{key}={value}" for key, value in switches.items())


def _mixer(dim: int = 12, num_heads: int = 3, **switches: Any) -> GatedDifferentialLinearAttention:  # noqa: ANN401
    mixer = GatedDifferentialLinearAttention(dim, num_heads, **switches).double()
    with torch.no_grad():
        for parameter in mixer.parameters():  # away from ones and near-zero lambdas, which would hide a mistake
            parameter.copy_(0.5 * torch.randn_like(parameter))
    return mixer


def _assert_equals_naive(mixer: GatedDifferentialLinearAttention, batch: int, dim: int, grid: tuple[int, int]) -> None:
    x = torch.randn(batch, grid[0] * grid[1], dim)
    assert_equals_twin(mixer, x, lambda x: mixer(x, grid), lambda x: mixer_twin(mixer, x, grid))


@pytest.mark.parametrize("switches", SWITCHES, ids=_name)
def test_every_switch_equals_the_naive_twin_and_gives_every_parameter_a_gradient(switches: dict[str, Any]) -> None:
    _assert_equals_naive(_mixer(**switches), 2, 12, (4, 9))


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("local_mixing", ["joint", "separate"])
@pytest.mark.parametrize("local_kernel", [3, 5])
def test_every_grid_and_kernel_equals_the_naive_twin(
    grid: tuple[int, int], local_mixing: str, local_kernel: int
) -> None:
    _assert_equals_naive(_mixer(local_mixing=local_mixing, local_kernel=local_kernel), 2, 12, grid)


@settings(max_examples=40)
@given(
    batch=st.integers(1, 3),
    num_heads=st.integers(1, 4),
    half=st.integers(1, 3),
    height=st.integers(1, 6),
    width=st.integers(1, 6),
    bias=st.booleans(),
)
def test_any_sizes_equal_the_naive_twin(
    batch: int, num_heads: int, half: int, height: int, width: int, bias: bool
) -> None:
    dim = 2 * half * num_heads
    _assert_equals_naive(_mixer(dim, num_heads, qkv_bias=bias), batch, dim, (height, width))


def test_a_grid_of_4_by_9_is_not_read_as_6_by_6() -> None:
    mixer = _mixer()
    x = torch.randn(1, 36, 12, dtype=torch.float64)
    readings = [mixer(x, grid) for grid in ((4, 9), (6, 6), (9, 4), (2, 18))]
    for one, other in itertools.combinations(readings, 2):
        assert (one - other).abs().max() > 1e-2


def test_transposing_the_image_and_the_kernels_transposes_the_result() -> None:
    mixer = _mixer()
    x = torch.randn(2, 4, 9, 12, dtype=torch.float64)
    expected = mixer(x.flatten(1, 2), (4, 9)).unflatten(1, (4, 9)).transpose(1, 2)
    assert mixer.local_depthwise is not None
    with torch.no_grad():
        mixer.local_depthwise.weight.copy_(mixer.local_depthwise.weight.transpose(-1, -2).clone())
    actual = mixer(x.transpose(1, 2).flatten(1, 2), (9, 4)).unflatten(1, (9, 4))
    torch.testing.assert_close(actual, expected)


def test_without_a_local_branch_the_order_of_the_tokens_does_not_matter() -> None:
    mixer = _mixer(local_mixing=None)
    x, order = torch.randn(2, 12, 12, dtype=torch.float64), torch.randperm(12)
    torch.testing.assert_close(mixer(x[:, order], (3, 4)), mixer(x, (3, 4))[:, order])


def test_batch_elements_are_independent() -> None:
    mixer = _mixer()
    a, b = torch.randn(2, 1, 20, 12, dtype=torch.float64)
    alone = mixer(a, (4, 5))
    torch.testing.assert_close(mixer(torch.cat([a, 100 * b]), (4, 5))[:1], alone)
    assert torch.isfinite(mixer(torch.cat([a, b * torch.nan]), (4, 5))[:1]).all()


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def test_state_dict_is_the_documented_one() -> None:
    assert _shapes(GatedDifferentialLinearAttention(12, 3)) == {
        "lambda_global": (3, 4),
        "lambda_local": (3, 4),
        "qkvg.weight": (48, 12),
        "qkvg.bias": (48,),
        "norm.weight": (4,),
        "out_proj.weight": (12, 24),
        "out_proj.bias": (12,),
        "local_depthwise.weight": (48, 1, 3, 3),
        "local_depthwise.bias": (48,),
        "local_pointwise.weight": (48, 48, 1, 1),
        "local_pointwise.bias": (48,),
    }


def test_what_is_switched_off_has_no_parameters() -> None:
    bare = GatedDifferentialLinearAttention(12, 3, gate=None, differential=False, local_mixing=None, qkv_bias=False)
    assert _shapes(bare) == {
        "qkvg.weight": (36, 12),
        "norm.weight": (4,),
        "out_proj.weight": (12, 12),
        "out_proj.bias": (12,),
    }
    no_gate = _shapes(GatedDifferentialLinearAttention(12, 3, gate=None))
    assert no_gate["local_pointwise.weight"] == (36, 36, 1, 1)
    separate = GatedDifferentialLinearAttention(12, 3, local_mixing="separate").local_pointwise
    assert separate is not None
    assert sum(p.numel() for p in separate.parameters()) == 4 * (12 * 12 + 12)


def test_initial_values_are_the_documented_ones() -> None:
    mixer = GatedDifferentialLinearAttention(512, 8)
    for lam in (mixer.lambda_global, mixer.lambda_local):
        assert lam is not None
        assert abs(lam.mean().item()) < 0.02
        assert abs(lam.std().item() - 0.1) < 0.02
    assert torch.equal(mixer.norm.weight, torch.ones(64))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_autocast_stays_close_to_float32(dtype: torch.dtype, scale: float) -> None:
    mixer = GatedDifferentialLinearAttention(32, 2)
    x = scale * torch.randn(1, 32 * 32, 32)
    expected = mixer(x, (32, 32))
    with torch.autocast("cpu", dtype=dtype):
        actual = mixer(x, (32, 32))
    assert torch.isfinite(actual).all()
    # eight bits of mantissa through three projections
    tolerance = {torch.float16: 1e-2, torch.bfloat16: 6e-2}[dtype]
    assert (actual.float() - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"gate": "relu"}, r"'relu'.*'silu'.*'sigmoid'.*None"),
        ({"local_mixing": "dense"}, r"'dense'.*'joint'.*'separate'.*None"),
        ({"local_kernel": 4}, "odd.*4"),
        ({"num_heads": 5}, "5.*12"),
        ({"num_heads": 4}, "even"),
        ({"num_heads": 0}, "0.*12"),
        ({"spatial_dims": 4}, "4"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_an_error_that_shows_it(wrong: dict[str, Any], message: str) -> None:
    arguments = {"dim": 12, "num_heads": 3, **wrong}
    with unchecked(), pytest.raises(ValueError, match=message):
        GatedDifferentialLinearAttention(**arguments)


def test_heads_of_odd_width_are_fine_without_the_difference() -> None:
    _assert_equals_naive(_mixer(12, 4, differential=False), 1, 12, (2, 3))


@pytest.mark.parametrize("grid", [(4, 8), (36,), (6, 6, 1), (0, 36)], ids=str)
def test_a_grid_that_does_not_hold_the_tokens_is_an_error_that_shows_both(grid: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="36") as error:
        _mixer()(torch.zeros(2, 36, 12, dtype=torch.float64), grid)
    assert str(grid) in str(error.value)


@pytest.mark.parametrize(("spatial_dims", "grid"), [(1, (24,)), (3, (2, 3, 4))])
def test_lines_and_volumes_run_and_a_plane_inside_a_volume_is_the_plane(
    spatial_dims: int, grid: tuple[int, ...]
) -> None:
    mixer = GatedDifferentialLinearAttention(12, 3, spatial_dims=spatial_dims)
    x = torch.randn(2, 24, 12)
    assert mixer(x, grid).shape == x.shape
    flat = GatedDifferentialLinearAttention(12, 3)
    state = mixer.state_dict()
    kernel = state["local_depthwise.weight"]
    # a 2D kernel is the middle slice of the 3D one, or the 1D one laid into the middle row
    middle = kernel[:, :, 1] if spatial_dims == 3 else nn.functional.pad(kernel[:, :, None], (0, 0, 1, 1))
    state["local_depthwise.weight"] = middle
    state["local_pointwise.weight"] = state["local_pointwise.weight"].reshape(48, 48, 1, 1)
    flat.load_state_dict(state)
    plane = (1, 4, 6) if spatial_dims == 3 else (24,)
    torch.testing.assert_close(mixer(x, plane), flat(x, (4, 6) if spatial_dims == 3 else (1, 24)))


def test_a_batch_of_one_stays_channels_last() -> None:
    image = to_grid(torch.zeros(1, 6, 4), (2, 3))
    assert image.is_contiguous(memory_format=torch.channels_last)
    # What a convolution makes of it shows whether it took it as it is: otherwise it copies to and fro.
    assert to_tokens(F.conv2d(image, torch.zeros(4, 1, 3, 3), padding=1, groups=4)).is_contiguous()


@pytest.mark.parametrize("where", ["qkvg", "local_depthwise", "all modules"])
def test_what_a_hook_has_seen_is_not_written_over(where: str) -> None:
    mixer, x = GatedDifferentialLinearAttention(8, 2), torch.randn(2, 12, 8)
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def hook(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        seen.extend((tensor, tensor.clone()) for tensor in (inputs[0], output) if module is not mixer)

    if where == "all modules":
        handle = torch.nn.modules.module.register_module_forward_hook(hook)
    else:
        handle = mixer.get_submodule(where).register_forward_hook(hook)
    with torch.no_grad():
        mixer(x, (3, 4))
    handle.remove()
    assert seen
    assert all(torch.equal(tensor, before) for tensor, before in seen)


def test_without_gradients_the_result_is_the_same() -> None:
    mixer, x = GatedDifferentialLinearAttention(8, 2), torch.randn(2, 12, 8)
    expected = mixer(x, (3, 4))
    with torch.no_grad():
        assert torch.equal(mixer(x, (3, 4)), expected)
    x.requires_grad_()
    mixer.requires_grad_(False)
    torch.testing.assert_close(mixer(x, (3, 4)), expected)
