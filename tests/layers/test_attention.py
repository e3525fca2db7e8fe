"""The comparator attentions and rotary positions: equal to their naive twins."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nnunet_gdla.layers import DifferentialAttention, LinearAttention, SoftmaxAttention
from nnunet_gdla.layers.position import rotate_by_position
from tests.layers.naive_twins import assert_equals_twin, attention_twin
from tests.reference.attention import lambda_init_naive, rope_naive

KINDS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "diff": (DifferentialAttention, {"depth": 2}),
    "linear": (LinearAttention, {}),
    "self": (SoftmaxAttention, {}),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def _attention(kind: str, dim: int = 24, num_heads: int = 3, **options: Any) -> nn.Module:  # noqa: ANN401
    layer, extra = KINDS[kind]
    attention = layer(dim, num_heads, **{**extra, **options}).double()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.copy_(0.5 * torch.randn_like(parameter))
    return attention


def _assert_equals_naive(kind: str, batch: int, tokens: int, dim: int, num_heads: int, **options: Any) -> None:  # noqa: ANN401
    attention = _attention(kind, dim, num_heads, **options)
    rope, depth = options["rope"], options.get("depth", 2)
    assert_equals_twin(
        attention,
        torch.randn(batch, tokens, dim),
        attention,
        lambda x: attention_twin(attention, x, num_heads=num_heads, rope=rope, depth=depth),
    )


@kinds
@pytest.mark.parametrize("rope", [False, True])
@pytest.mark.parametrize("tokens", [1, 2, 17])
@pytest.mark.parametrize("qkv_bias", [False, True])
def test_equals_the_naive_twin(kind: str, rope: bool, tokens: int, qkv_bias: bool) -> None:
    _assert_equals_naive(kind, 2, tokens, 24, 3, rope=rope, qkv_bias=qkv_bias)


@kinds
@settings(max_examples=40)
@given(
    batch=st.integers(1, 2),
    tokens=st.integers(1, 9),
    heads=st.integers(1, 3),
    quarter=st.integers(1, 3),
    rope=st.booleans(),
)
def test_any_sizes_equal_the_naive_twin(
    kind: str, batch: int, tokens: int, heads: int, quarter: int, rope: bool
) -> None:
    _assert_equals_naive(kind, batch, tokens, 4 * quarter * heads, heads, rope=rope)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_depth_sets_the_constant_part_of_lambda(depth: int) -> None:
    expected = {1: 0.3555, 2: 0.4707, 3: 0.5561}[depth]
    assert DifferentialAttention(8, 2, depth=depth).lambda_init == pytest.approx(expected, abs=5e-5)
    assert DifferentialAttention(8, 2, depth=depth).lambda_init == pytest.approx(lambda_init_naive(depth), abs=1e-12)
    _assert_equals_naive("diff", 1, 5, 8, 2, rope=True, depth=depth)


def test_rotation_is_on_by_default_for_differential_attention_only() -> None:
    assert DifferentialAttention(8, 2, depth=1).rope
    assert not LinearAttention(8, 2).rope
    assert not SoftmaxAttention(8, 2).rope


@kinds
def test_without_rotation_the_order_of_the_tokens_does_not_matter_with_it_does(kind: str) -> None:
    x, order = torch.randn(1, 11, 24, dtype=torch.float64), torch.randperm(11)
    plain, rotated = _attention(kind, rope=False), _attention(kind, rope=True)
    torch.testing.assert_close(plain(x[:, order]), plain(x)[:, order])
    assert (rotated(x[:, order]) - rotated(x)[:, order]).abs().max() > 1e-3


@kinds
@pytest.mark.parametrize("rope", [False, True])
def test_no_size_is_kept(kind: str, rope: bool) -> None:
    # the same layer at three lengths, longest last and first again
    attention = _attention(kind, rope=rope)
    x = torch.randn(1, 40, 24, dtype=torch.float64)
    first = attention(x[:, :7])
    attention(x)
    assert torch.equal(attention(x[:, :7]), first)
    assert all("qkv" in name or "out" in name or "lambda" in name or "norm" in name for name in attention.state_dict())


def test_state_dicts_are_the_documented_ones() -> None:
    common = {"qkv.weight", "qkv.bias", "out_proj.weight"}
    lambdas = {"lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2", "norm.weight"}
    assert set(LinearAttention(8, 2).state_dict()) == common | {"out_proj.bias"}
    assert set(SoftmaxAttention(8, 2).state_dict()) == common | {"out_proj.bias"}
    assert set(DifferentialAttention(8, 2, depth=1).state_dict()) == common | lambdas
    assert DifferentialAttention(8, 2, depth=1).lambda_q1.shape == (4,)


def test_initial_values_are_the_documented_ones() -> None:
    attention = DifferentialAttention(1024, 2, depth=1)
    for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
        lam = attention.get_parameter(name)
        assert abs(lam.std().item() - 0.1) < 0.02, name
        assert abs(lam.mean().item()) < 0.02, name


@pytest.mark.parametrize("shape", [(1, 4), (9, 2), (2, 3, 17, 8)], ids=str)
def test_rotation_equals_the_naive_twin(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    as_heads = x.reshape(-1, 1, *shape[-2:])
    torch.testing.assert_close(rotate_by_position(x), rope_naive(as_heads).reshape(shape), rtol=1e-12, atol=1e-12)


def test_rotation_keeps_lengths_and_depends_on_distances_only() -> None:
    q, k = (torch.randn(1, 8, dtype=torch.float64).expand(30, 8) for _ in range(2))
    q, k = rotate_by_position(q), rotate_by_position(k)
    torch.testing.assert_close(q.norm(dim=-1), q[:1].norm(dim=-1).expand(30))
    scores = q @ k.T
    for distance in (0, 1, 5):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))


def test_rotation_in_half_precision_knows_far_positions() -> None:
    # angles kept in half precision would be wrong by whole turns at position 4000
    x = torch.randn(1, 1, 4096, 8)
    for dtype in (torch.float16, torch.bfloat16):
        expected = rope_naive(x.to(dtype).double())
        assert (rotate_by_position(x.to(dtype)).double() - expected).abs().max() < 4 * torch.finfo(dtype).eps * 4
    assert (rotate_by_position(x).double() - rope_naive(x.double())).abs().max() < 3e-3


@pytest.mark.parametrize(
    ("kind", "dim", "num_heads", "rope"),
    [
        ("self", 10, 3, False),
        ("self", 9, 3, True),
        ("linear", 10, 3, False),
        ("linear", 9, 3, True),
        ("diff", 9, 3, False),
        ("diff", 18, 3, True),
        ("self", 8, 0, False),
    ],
)
def test_heads_that_do_not_fit_are_an_error_that_shows_them(kind: str, dim: int, num_heads: int, rope: bool) -> None:
    with pytest.raises(ValueError, match=f"{dim}.*{num_heads}"):
        _attention(kind, dim, num_heads, rope=rope)


def test_rotating_an_odd_width_is_an_error_that_shows_it() -> None:
    with pytest.raises(ValueError, match=r"\(2, 3\)"):
        rotate_by_position(torch.zeros(2, 3))
