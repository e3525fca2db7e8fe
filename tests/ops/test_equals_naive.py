"""Every attention operator equals its naive twin: output and each gradient, in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.operators import KEY_MASKS, OPERATORS, SIZES, Operator, Sizes, key_mask
from tests.reference.compare import assert_all_close, gradients

operators = pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)

# With one key the weights cancel: what is left of the gradients of q and k is eps, known to 1e-16 of the terms only.
FLOOR = 1e-3


@operators
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("kind", KEY_MASKS)
def test_output_and_gradients_equal_the_naive_twin(operator: Operator, sizes: Sizes, kind: str) -> None:
    fast, naive = operator.arguments(key_mask=key_mask(kind, sizes))
    inputs = operator.inputs(sizes)
    assert_all_close(gradients(fast, inputs), gradients(naive, inputs), 1e-10, floor=FLOOR)


@operators
@settings(max_examples=40)
@given(data=st.data())
def test_any_sizes_and_any_mask_equal_the_naive_twin(operator: Operator, data: st.DataObject) -> None:
    small = st.integers(1, 6)
    sizes = data.draw(st.builds(Sizes, b=st.integers(1, 3), h=small, n=small, m=small, d=small, v=small), "sizes")
    rows = st.lists(st.lists(st.booleans(), min_size=sizes.m, max_size=sizes.m), min_size=sizes.b, max_size=sizes.b)
    drawn = data.draw(st.none() | rows, "key mask")
    fast, naive = operator.arguments(key_mask=None if drawn is None else torch.tensor(drawn))
    inputs = operator.inputs(sizes, seed=data.draw(st.integers(0, 1000), "seed"))
    assert_all_close(gradients(fast, inputs), gradients(naive, inputs), 1e-10, floor=FLOOR)


@operators
@pytest.mark.parametrize("kind", ["none", "random"])
def test_gradcheck(operator: Operator, kind: str) -> None:
    sizes = Sizes(2, 2, 3, 4, 2, 3)
    fast, _ = operator.arguments(key_mask=key_mask(kind, sizes))
    inputs = [tensor.requires_grad_() for tensor in operator.inputs(sizes)]
    assert torch.autograd.gradcheck(fast, inputs)


@pytest.mark.parametrize("operator", [op for op in OPERATORS if op.linear], ids=lambda operator: operator.name)
@pytest.mark.parametrize("eps", [1e-6, 1e-2, 10.0])
def test_eps_is_added_to_every_normaliser(operator: Operator, eps: float) -> None:
    fast, naive = operator.arguments(eps=eps)
    sizes = Sizes(1, 2, 4, 5, 3, 2)
    inputs = operator.inputs(sizes)
    # weights as small as eps, where it decides the result
    inputs[0], inputs[1] = (1e-3 * t if operator.positive else t - 6 for t in inputs[:2])
    assert_all_close(gradients(fast, inputs), gradients(naive, inputs), 1e-10, floor=FLOOR)


@pytest.mark.parametrize("operator", [op for op in OPERATORS if not op.linear], ids=lambda operator: operator.name)
@pytest.mark.parametrize("scale", [None, 1.0, 0.05])
def test_scale_multiplies_the_scores(operator: Operator, scale: float | None) -> None:
    fast, naive = operator.arguments(scale=scale)
    inputs = operator.inputs(Sizes(1, 2, 4, 5, 3, 2))
    assert_all_close(gradients(fast, inputs), gradients(naive, inputs), 1e-10, floor=FLOOR)


@operators
def test_strided_inputs_equal_contiguous_ones(operator: Operator) -> None:
    inputs = operator.inputs(Sizes(2, 3, 6, 7, 4, 5))
    # as a layer makes them: heads cut out of a token's channels
    strided = [t.transpose(1, 2).contiguous().transpose(1, 2) if t.ndim == 4 else t for t in inputs]
    assert not strided[0].is_contiguous()
    assert_all_close({"y": operator.fast(*strided)}, {"y": operator.fast(*inputs)}, 1e-12)


@operators
def test_inputs_are_not_changed(operator: Operator) -> None:
    sizes = Sizes(2, 2, 4, 5, 3, 2)
    inputs, before = operator.inputs(sizes), operator.inputs(sizes)
    mask = key_mask("random", sizes)
    operator.fast(*inputs, key_mask=mask)
    assert all(torch.equal(after, original) for after, original in zip(inputs, before, strict=True))
