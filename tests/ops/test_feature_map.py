"""`elu_plus_one`: exact everywhere, smooth at zero, accurate where ELU(x) + 1 cancels."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nnunet_gdla.ops import elu_plus_one
from tests.reference.compare import assert_all_close, gradients, relative_error
from tests.reference.linear import elu_plus_one_naive

SHAPES: list[tuple[int, ...]] = [(), (1,), (5,), (3, 0, 2), (2, 3, 7, 4)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_value_and_gradient_equal_the_naive_formula(shape: tuple[int, ...]) -> None:
    x = 3 * torch.randn(shape, dtype=torch.float64)
    assert_all_close(gradients(elu_plus_one, [x]), gradients(elu_plus_one_naive, [x]), 1e-14)


@given(st.lists(st.floats(-700, 700), min_size=1, max_size=20))
def test_any_value_equals_the_naive_formula(values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    torch.testing.assert_close(elu_plus_one(x), elu_plus_one_naive(x), rtol=1e-14, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_value_and_derivative_at_exactly_zero_are_one(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, -0.0], dtype=dtype, requires_grad=True)
    y = elu_plus_one(x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert y.dtype == grad.dtype == dtype
    assert y.tolist() == [1, 1]
    assert grad.tolist() == [1, 1]


def test_float32_keeps_its_relative_accuracy_for_very_negative_values() -> None:
    # ELU(x) + 1 in two steps is wrong by 6e-8 / phi: 100 % at x = -17
    x = torch.linspace(-87, -5, 2000, requires_grad=True)
    y = elu_plus_one(x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    exact = x.detach().double().exp()
    assert ((y.detach().double() - exact).abs() / exact).max() < 3e-7
    assert ((grad.double() - exact).abs() / exact).max() < 3e-7


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_at_most_twice_as_far_off_as_the_naive_formula(dtype: torch.dtype) -> None:
    x = (4 * torch.randn(4096, dtype=torch.float64)).to(dtype)
    exact = gradients(elu_plus_one_naive, [x.double()])
    fast, naive = gradients(elu_plus_one, [x]), gradients(elu_plus_one_naive, [x])
    for name, value in exact.items():
        assert relative_error(fast[name], value) <= 2 * relative_error(naive[name], value), name


def test_gradcheck_on_both_sides_of_zero_and_across_it() -> None:
    # phi is once continuously differentiable, so that finite differences across zero are right to their own order
    x = torch.tensor([-30.0, -2.0, -1e-3, -1e-9, 0.0, 1e-9, 1e-3, 2.0, 30.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(elu_plus_one, x, eps=1e-6, atol=1e-5)


def test_gradgradcheck_away_from_the_kink_of_the_derivative() -> None:
    x = torch.tensor([-3.0, -0.5, 0.5, 3.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(elu_plus_one, x)


def test_extreme_values_are_finite_and_nan_stays_visible() -> None:
    x = torch.tensor([-torch.inf, -3e38, 3e38, torch.inf, torch.nan], requires_grad=True)
    y = elu_plus_one(x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert y[:2].tolist() == [0, 0]
    assert grad[:4].tolist() == [0, 0, 1, 1]
    assert y[2] == 3e38
    assert y[3] == torch.inf
    assert y[4].isnan()


def test_the_input_is_not_changed() -> None:
    x = torch.randn(50)
    before = x.clone()
    elu_plus_one(x)
    assert torch.equal(x, before)
