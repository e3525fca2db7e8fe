"""On a GPU: the Triton kernels equal the naive twins there too, and are what is chosen."""

import pytest
import torch
from torch import Tensor

from nnunet_gdla.layers import GatedDifferentialLinearAttention
from nnunet_gdla.ops import forms, use_forms
from nnunet_gdla.ops._triton_switch import why_no_kernel
from tests.ops.triton_cases_differential import Case
from tests.ops.triton_cases_redundancy import a_graph, a_projection, fast, naive
from tests.reference.compare import gradients, relative_error

# float32 in three tf32 products, and the rounding of the results
ALLOWED = {torch.float32: 2e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
CASES = [Case(2, 777, 3, 24, masked=True), Case(1, 3000, 2, 32), Case(1, 300, 1, 128, "sigmoid", False, True)]
dtypes = pytest.mark.parametrize("dtype", ALLOWED, ids=str)


def assert_as_exact_as_possible(ours: dict[str, Tensor], exact: dict[str, Tensor], dtype: torch.dtype) -> None:
    errors = {name: relative_error(ours[name], value) for name, value in exact.items()}
    assert all(error <= ALLOWED[dtype] for error in errors.values()), errors


@pytest.mark.gpu
@dtypes
@pytest.mark.parametrize("case", CASES, ids=str)
def test_differential_attention_equals_the_naive_twin(case: Case, dtype: torch.dtype, device: torch.device) -> None:
    mask = case.key_mask()
    run, twin = case.functions(None if mask is None else mask.to(device))
    inputs = [tensor.to(device) for tensor in case.inputs(dtype)]
    assert why_no_kernel(*inputs) is None
    ours = gradients(run, inputs)
    assert_as_exact_as_possible(ours, gradients(twin, [tensor.double() for tensor in inputs]), dtype)
    again = gradients(run, inputs)
    assert all(torch.equal(value, again[name]) for name, value in ours.items())


@pytest.mark.gpu
@dtypes
def test_correction_equals_the_naive_twin(dtype: torch.dtype, device: torch.device) -> None:
    graph, v = a_graph(60), a_projection(2, 6, 62, 64, dtype)
    y, beta = torch.randn(2, 6, 62, 64).to(dtype), torch.randn(2, 6, 60)
    exact = gradients(lambda *x: naive(*x, v.double(), graph, 1), [y.double(), beta.double()])
    there = graph.to(device)
    ours = gradients(lambda *x: fast(*x, v.to(device), there, 1), [y.to(device), beta.to(device)])
    assert_as_exact_as_possible({name: value.cpu() for name, value in ours.items()}, exact, dtype)


@pytest.mark.gpu
@dtypes
def test_the_layer_takes_the_kernels_where_they_are_named(dtype: torch.dtype, device: torch.device) -> None:
    layer, x = GatedDifferentialLinearAttention(64, 2).to(device, dtype), torch.randn(2, 77, 64).to(device, dtype)
    state, most = torch.cuda.get_rng_state(device), torch.cuda.max_memory_allocated(device)
    projected = layer.qkvg(x)
    question = ("gated_differential_attention", projected, layer.lambda_global, layer.norm.weight, 2)
    with use_forms("triton"):
        assert forms(*question).runs == "plain"
        layer(x, (7, 11))
        assert forms(*question) == ("triton", {"cpu": "not named before plain in NNUNET_GDLA_FORMS",
                                               "plain": "triton comes first"})  # fmt: skip
    assert forms(*question).runs == "plain"
    assert torch.equal(torch.cuda.get_rng_state(device), state)
    assert torch.cuda.max_memory_allocated(device) < most + (1 << 25)
