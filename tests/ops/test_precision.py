"""Half precision: no worse than twice the naive error, right for 200,000 tokens, the same under autocast."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nnunet_gdla.ops import differential_attention, differential_linear_attention, linear_attention
from tests.ops.operators import OPERATORS, Operator, Sizes, key_mask
from tests.reference.compare import assert_all_close, gradients, relative_error
from tests.reference.differential import differential_attention_naive
from tests.reference.linear import linear_attention_by_chunks

operators = pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
halves = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
SIZES = Sizes(2, 2, 65, 129, 8, 16)
LONG = 200_000


@operators
@halves
@pytest.mark.parametrize("masked", [False, True])
def test_error_is_at_most_twice_the_naive_error(operator: Operator, dtype: torch.dtype, masked: bool) -> None:
    fast, naive = operator.arguments(key_mask=key_mask("random" if masked else "none", SIZES))
    inputs = operator.inputs(SIZES, dtype=dtype)
    exact = gradients(naive, [tensor.double() for tensor in inputs])
    fast_results, naive_results = gradients(fast, inputs), gradients(naive, inputs)
    errors = {
        name: (relative_error(fast_results[name], value), relative_error(naive_results[name], value))
        for name, value in exact.items()
    }
    assert all(ours <= 2 * theirs for ours, theirs in errors.values()), errors
    assert all(value.dtype == dtype for value in fast_results.values())


@operators
def test_float32_is_as_exact_as_float32_can_be(operator: Operator) -> None:
    inputs = operator.inputs(SIZES, dtype=torch.float32)
    exact = gradients(operator.naive, [tensor.double() for tensor in inputs])
    assert_all_close(gradients(operator.fast, inputs), exact, 2e-6)


@operators
@pytest.mark.parametrize("autocast", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_changes_nothing(operator: Operator, autocast: torch.dtype) -> None:
    inputs = operator.inputs(SIZES, dtype=torch.float32)
    expected = gradients(operator.fast, inputs)
    with torch.autocast("cpu", dtype=autocast):
        actual = gradients(operator.fast, inputs)
    for name, value in expected.items():
        assert torch.equal(actual[name], value), name


@operators
def test_the_output_has_the_dtype_of_the_values(operator: Operator) -> None:
    # under autocast a layer norm hands out float32 where a projection hands out half precision
    q, k, v, *lam = operator.inputs(SIZES, dtype=torch.float32)
    expected = operator.fast(q, k, v.half(), *lam)
    assert expected.dtype == torch.float16
    assert relative_error(expected, operator.fast(q, k, v.half().float(), *lam)) < 1e-3


def _random(dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape).to(dtype) for shape in shapes]


def _assert_right(fast: Callable[..., Tensor], exact: Callable[..., Tensor], inputs: list[Tensor]) -> None:
    """The half-precision result is the exact one, rounded, within what float32 sums over 200,000 tokens can know.

    The gradients of q and k are differences of such sums, so that less of them is known.
    """
    expected = gradients(exact, [tensor.double() for tensor in inputs])
    for name, actual in gradients(fast, inputs).items():
        rounding = relative_error(expected[name].to(actual.dtype), expected[name])
        allowed = rounding + (2e-4 if name == "output" else 1e-2)
        assert relative_error(actual, expected[name]) <= allowed, name


def _inputs(dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Random q, k, v and more; the values have a mean per channel, else the output would be nearly zero."""
    tensors = [torch.randn(shape) for shape in shapes]
    tensors[2] += torch.linspace(-1, 1, shapes[2][-1])
    return [tensor.to(dtype) for tensor in tensors]


@halves
@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_linear_attention_is_right_for_200000_tokens(dtype: torch.dtype, scale: float) -> None:
    inputs = [scale * tensor for tensor in _inputs(dtype, *[(1, 1, LONG, 8)] * 3)]
    _assert_right(linear_attention, linear_attention_by_chunks, inputs)


@halves
def test_tiny_values_of_200000_tokens_do_not_vanish(dtype: torch.dtype) -> None:
    q, k, v = (1e-3 * tensor for tensor in _inputs(dtype, *[(1, 1, LONG, 8)] * 3))
    expected = linear_attention_by_chunks(q.double(), k.double(), v.double())
    rounding = relative_error(expected.to(dtype), expected)
    assert relative_error(linear_attention(q, k, v), expected) <= rounding + 2e-4


@halves
def test_differential_linear_attention_is_right_for_200000_tokens(dtype: torch.dtype) -> None:
    def exact(q: Tensor, k: Tensor, v: Tensor, lam: Tensor) -> Tensor:
        first = linear_attention_by_chunks(q[..., :4], k[..., :4], v)
        second = linear_attention_by_chunks(q[..., 4:], k[..., 4:], v)
        return first - lam[None, :, None, :] * second

    _assert_right(differential_linear_attention, exact, _inputs(dtype, *[(1, 1, LONG, 8)] * 3, (1, 8)))


@halves
def test_differential_attention_is_right_for_200000_keys(dtype: torch.dtype) -> None:
    # quadratic: every one of 200,000 keys, but few queries
    inputs = _inputs(dtype, (1, 1, 8, 8), (1, 1, LONG, 8), (1, 1, LONG, 8), (1,))
    _assert_right(differential_attention, differential_attention_naive, inputs)
