"""What must hold for attention whatever the numbers: constants, order, batch elements, masks."""

import pytest
import torch

from tests.ops.operators import OPERATORS, Operator, Sizes, key_mask
from tests.reference.compare import assert_all_close, gradients

operators = pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
SIZES = Sizes(3, 2, 6, 9, 4, 5)


@operators
def test_constant_values_stay_constant(operator: Operator) -> None:
    inputs = operator.inputs(SIZES)
    inputs[2] = torch.full_like(inputs[2], 2.5)
    expected = torch.full((SIZES.b, SIZES.h, SIZES.n, SIZES.v), 2.5, dtype=torch.float64)
    if operator.lam_shape is not None:
        lam = inputs[3].reshape(1, -1, 1, SIZES.v if inputs[3].ndim == 2 else 1)
        expected = expected * (1 - lam)
    torch.testing.assert_close(operator.fast(*inputs), expected, rtol=1e-5, atol=1e-5)


@operators
def test_the_order_of_the_keys_does_not_matter(operator: Operator) -> None:
    mask = key_mask("random", SIZES)
    assert mask is not None
    inputs = operator.inputs(SIZES)
    order = torch.randperm(SIZES.m, generator=torch.Generator().manual_seed(3))
    shuffled = [inputs[0], inputs[1][:, :, order], inputs[2][:, :, order], *inputs[3:]]
    expected = operator.fast(*inputs, key_mask=mask)
    torch.testing.assert_close(operator.fast(*shuffled, key_mask=mask[:, order]), expected, rtol=1e-10, atol=1e-12)


@operators
def test_every_query_is_answered_on_its_own(operator: Operator) -> None:
    inputs = operator.inputs(SIZES)
    whole = operator.fast(*inputs)
    for n in range(SIZES.n):
        alone = operator.fast(inputs[0][:, :, n : n + 1], *inputs[1:])
        torch.testing.assert_close(alone, whole[:, :, n : n + 1], rtol=1e-10, atol=1e-12)


@operators
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, 1e30])
def test_batch_elements_are_independent(operator: Operator, poison: float) -> None:
    inputs = operator.inputs(SIZES)
    poisoned = [t.clone() for t in inputs]
    for tensor in poisoned[:3]:
        tensor[1] = poison

    def kept(tensors: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        leaves = [t.clone().requires_grad_() for t in tensors[:3]]
        y = operator.fast(*leaves, *tensors[3:])[[0, 2]]
        grads = torch.autograd.grad(y.square().sum(), leaves)
        return {"y": y.detach(), **{name: grad[[0, 2]] for name, grad in zip("qkv", grads, strict=True)}}

    assert_all_close(kept(poisoned), kept(inputs), 1e-12)


@operators
def test_masking_a_token_equals_dropping_it(operator: Operator) -> None:
    mask = key_mask("random", SIZES)
    assert mask is not None
    inputs = operator.inputs(SIZES)
    masked = operator.fast(*inputs, key_mask=mask)
    for b in range(SIZES.b):
        q, k, v = (t[b : b + 1] for t in inputs[:3])
        dropped = operator.fast(q, k[:, :, mask[b]], v[:, :, mask[b]], *inputs[3:])
        torch.testing.assert_close(masked[b : b + 1], dropped, rtol=1e-10, atol=1e-12)


@operators
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", ["k", "v", "k and v"])
def test_what_a_masked_token_holds_never_shows(
    operator: Operator, dtype: torch.dtype, poison: float, where: str
) -> None:
    mask = key_mask("random", SIZES)
    assert mask is not None
    inputs = operator.inputs(SIZES, dtype=dtype)
    poisoned = [t.clone() for t in inputs]
    for index, name in ((1, "k"), (2, "v")):
        if name in where:
            poisoned[index].masked_fill_(~mask[:, None, :, None], poison)
    fast, _ = operator.arguments(key_mask=mask)
    actual, expected = gradients(fast, poisoned), gradients(fast, inputs)
    for name, value in expected.items():
        assert torch.equal(actual[name], value), f"{name} changed"
    for name in ("grad.1", "grad.2"):
        assert not actual[name].masked_select(~mask[:, None, :, None]).any(), f"{name} of a masked token is not zero"


@operators
def test_without_any_key_the_output_and_all_gradients_are_zero(operator: Operator) -> None:
    inputs = operator.inputs(SIZES)
    inputs[1], inputs[2] = torch.full_like(inputs[1], torch.nan), torch.full_like(inputs[2], torch.nan)
    fast, _ = operator.arguments(key_mask=torch.zeros(SIZES.b, SIZES.m, dtype=torch.bool))
    for name, value in gradients(fast, inputs).items():
        assert not value.any(), name


@operators
def test_a_mask_of_true_equals_no_mask(operator: Operator) -> None:
    inputs = operator.inputs(SIZES)
    everyone = torch.ones(SIZES.b, SIZES.m, dtype=torch.bool)
    torch.testing.assert_close(operator.fast(*inputs, key_mask=everyone), operator.fast(*inputs), rtol=1e-12, atol=0)


def test_a_query_without_weight_gets_zeros() -> None:
    operator = next(op for op in OPERATORS if op.name == "linear_mapped")
    inputs = operator.inputs(SIZES)
    inputs[0][:, :, 0] = 0
    results = gradients(operator.fast, inputs)
    assert not results["output"][:, :, 0].any()
    assert all(torch.isfinite(value).all() for value in results.values())


@pytest.mark.parametrize("operator", [op for op in OPERATORS if op.lam_shape], ids=lambda operator: operator.name)
def test_lambda_zero_leaves_the_first_branch_and_equal_branches_cancel(operator: Operator) -> None:
    q, k, v, lam = operator.inputs(SIZES)
    without = operator.fast(q, k, v, torch.zeros_like(lam))
    changed = torch.cat([q[..., : SIZES.d], torch.randn_like(q[..., SIZES.d :])], -1)
    torch.testing.assert_close(operator.fast(changed, k, v, torch.zeros_like(lam)), without, rtol=1e-12, atol=1e-12)
    twin_q, twin_k = (torch.cat([t[..., : SIZES.d]] * 2, -1) for t in (q, k))
    equal = operator.fast(twin_q, twin_k, v, torch.ones_like(lam))
    torch.testing.assert_close(equal, torch.zeros_like(equal), rtol=0, atol=1e-12)
