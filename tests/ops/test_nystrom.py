"""Nystrom attention equals its naive twin, and what must hold for it whatever the numbers."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nnunet_gdla.ops.nystrom import nystrom_attention, nystrom_attention_row, segment_means
from tests.reference.compare import assert_all_close, gradients, relative_error
from tests.reference.nystrom import nystrom_attention_naive, nystrom_matrix_naive

# batch, heads, tokens, width, value width, landmarks: fewer tokens than landmarks, one token, slightly above a multiple
SIZES = [
    (1, 1, 1, 1, 1, 1),
    (1, 2, 1, 3, 4, 8),
    (2, 3, 5, 4, 4, 8),
    (1, 2, 9, 4, 6, 8),
    (2, 1, 16, 3, 3, 4),
    (1, 2, 17, 4, 4, 4),
    (3, 2, 31, 8, 5, 7),
]
inits = pytest.mark.parametrize("init", ["per_matrix", "global"])
halves = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


def _inputs(sizes: tuple[int, ...], dtype: torch.dtype = torch.float64, scale: float = 1.0) -> list[Tensor]:
    batch, heads, tokens, width, values, _ = sizes
    generator = torch.Generator().manual_seed(tokens)
    shapes = [(batch, heads, tokens, width)] * 2 + [(batch, heads, tokens, values)]
    return [(scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype) for shape in shapes]


def _mask(sizes: tuple[int, ...], kind: str) -> Tensor | None:
    if kind == "none":
        return None
    generator = torch.Generator().manual_seed(sizes[2])
    mask = torch.rand((sizes[0], sizes[2]), generator=generator) < 0.6
    if kind == "one row":
        mask[:] = False
        mask[:, sizes[2] // 2] = True
    if kind == "nothing in one element":
        mask[0] = False
    return mask


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("mask", ["none", "random", "one row", "nothing in one element"])
@inits
def test_equals_the_naive_twin(sizes: tuple[int, ...], mask: str, init: str) -> None:
    if init == "global" and mask != "none" and sizes[0] > 1:
        init = "per_matrix"  # with a mask the twin takes every element alone, so that there is nothing to share
    options: dict[str, Any] = {"num_landmarks": sizes[-1], "pinv_init": init, "key_mask": _mask(sizes, mask)}
    inputs = _inputs(sizes)
    actual = gradients(functools.partial(nystrom_attention, **options), inputs)
    expected = gradients(functools.partial(nystrom_attention_naive, **options), inputs)
    assert_all_close(actual, expected, 1e-9, floor=1e-3)


@pytest.mark.parametrize("iterations", [0, 1, 12])
def test_any_number_of_iterations_equals_the_naive_twin(iterations: int) -> None:
    sizes = (2, 2, 19, 4, 4, 6)
    options: dict[str, Any] = {"num_landmarks": 6, "pinv_iterations": iterations}
    actual = gradients(functools.partial(nystrom_attention, **options), _inputs(sizes))
    assert_all_close(actual, gradients(functools.partial(nystrom_attention_naive, **options), _inputs(sizes)), 1e-8)


@pytest.mark.parametrize("tokens", [3, 6])
@inits
def test_gradcheck(tokens: int, init: str) -> None:
    inputs = [tensor.requires_grad_() for tensor in _inputs((2, 1, tokens, 2, 1, 4))]
    function = functools.partial(nystrom_attention, num_landmarks=4, pinv_init=init)
    assert torch.autograd.gradcheck(function, inputs)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@inits
def test_a_row_is_that_of_the_whole_matrix(sizes: tuple[int, ...], init: str) -> None:
    q, k, _ = _inputs(sizes)
    matrix = nystrom_matrix_naive(q, k, num_landmarks=sizes[-1], pinv_init=init)
    for row in (0, sizes[2] - 1):
        actual = nystrom_attention_row(q, k, row=row, num_landmarks=sizes[-1], pinv_init=init)
        assert_all_close({"row": actual}, {"row": matrix[:, :, row]}, 1e-9)


def test_a_masked_row_weighs_nothing_and_the_others_as_if_it_were_not_there() -> None:
    sizes = (2, 2, 13, 4, 4, 4)
    q, k, v = _inputs(sizes)
    mask = _mask(sizes, "random")
    assert mask is not None
    mask[:, 0] = True
    row = nystrom_attention_row(q, k, num_landmarks=4, key_mask=mask)
    assert (row.masked_select(~mask[:, None].expand_as(row)) == 0).all()
    out = nystrom_attention(q, k, v, num_landmarks=4, key_mask=mask)
    torch.testing.assert_close((row.unsqueeze(-2) @ v).squeeze(-2), out[:, :, 0])


@pytest.mark.parametrize("masked", [False, True])
def test_the_class_query_alone_gets_its_row_of_the_result(masked: bool) -> None:
    sizes = (2, 2, 13, 4, 3, 4)
    q, k, v = _inputs(sizes)
    mask = _mask(sizes, "random") if masked else None
    if mask is not None:
        mask[:, 0] = True
    means = segment_means(q, 4, mask=mask)
    alone = nystrom_attention(q[:, :, :1], k, v, num_landmarks=4, key_mask=mask, query_landmarks=means)
    torch.testing.assert_close(alone, nystrom_attention(q, k, v, num_landmarks=4, key_mask=mask)[:, :, :1])


def test_constant_values_stay_nearly_constant() -> None:
    sizes = (1, 2, 33, 4, 4, 4)
    q, k, v = _inputs(sizes, scale=0.3)
    out = nystrom_attention(q, k, torch.full_like(v, 2.5), num_landmarks=4, pinv_iterations=30)
    torch.testing.assert_close(out, torch.full_like(out, 2.5), rtol=1e-6, atol=1e-6)


def test_with_a_landmark_a_token_it_is_softmax_attention() -> None:
    q, k, v = _inputs((2, 2, 12, 6, 3, 12))
    out = nystrom_attention(q, k, v, num_landmarks=12, pinv_iterations=40)
    exact = nn.functional.scaled_dot_product_attention(q, k, v)
    torch.testing.assert_close(out, exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, 1e30])
def test_batch_elements_and_heads_are_independent(poison: float) -> None:
    inputs = _inputs((3, 2, 9, 4, 4, 4))
    poisoned = [tensor.clone() for tensor in inputs]
    for tensor in poisoned:
        tensor[1, 0] = poison

    def kept(tensors: list[Tensor]) -> dict[str, Tensor]:
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        out = nystrom_attention(*leaves, num_landmarks=4)
        out = torch.cat([out[[0, 2]].flatten(0, 1), out[1, 1:]])
        grads = torch.autograd.grad(out.square().sum(), leaves)
        clean = {name: grad[[0, 2]] for name, grad in zip("qkv", grads, strict=True)}
        return {"out": out.detach(), **clean}

    assert_all_close(kept(poisoned), kept(inputs), 1e-12)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_what_a_masked_row_holds_never_shows(poison: float, dtype: torch.dtype) -> None:
    sizes = (2, 2, 13, 4, 4, 4)
    mask = _mask(sizes, "random")
    assert mask is not None
    inputs = _inputs(sizes, dtype)
    poisoned = [tensor.masked_fill(~mask[:, None, :, None], poison) for tensor in inputs]
    function = functools.partial(nystrom_attention, num_landmarks=4, key_mask=mask)
    actual, expected = gradients(function, poisoned), gradients(function, inputs)
    for name, value in expected.items():
        assert torch.equal(actual[name], value), name
    row = nystrom_attention_row(*poisoned[:2], num_landmarks=4, key_mask=mask)
    assert torch.equal(row, nystrom_attention_row(*inputs[:2], num_landmarks=4, key_mask=mask))


@halves
@pytest.mark.parametrize("masked", [False, True])
def test_error_in_half_precision_is_at_most_twice_the_naive_error(dtype: torch.dtype, masked: bool) -> None:
    sizes = (2, 2, 129, 16, 16, 8)
    options: dict[str, Any] = {"num_landmarks": 8, "key_mask": _mask(sizes, "random" if masked else "none")}
    inputs = _inputs(sizes, dtype, scale=0.5)
    naive = functools.partial(nystrom_attention_naive, **options)
    exact, theirs = gradients(naive, [tensor.double() for tensor in inputs]), gradients(naive, inputs)
    ours = gradients(functools.partial(nystrom_attention, **options), inputs)
    errors = {
        name: (relative_error(ours[name], exact[name]), relative_error(theirs[name], exact[name])) for name in exact
    }
    assert all(own <= 2 * naive_error for own, naive_error in errors.values()), errors
    assert all(value.dtype == dtype for value in ours.values())


def test_float32_is_as_exact_as_float32_can_be() -> None:
    inputs = _inputs((2, 2, 129, 16, 16, 8), torch.float32, scale=0.5)
    function = functools.partial(nystrom_attention, num_landmarks=8)
    exact = gradients(functools.partial(nystrom_attention_naive, num_landmarks=8), [x.double() for x in inputs])
    assert_all_close(gradients(function, inputs), exact, 1e-5)


@halves
def test_autocast_changes_nothing(dtype: torch.dtype) -> None:
    inputs = _inputs((1, 2, 40, 4, 4, 4), torch.float32)
    function = functools.partial(nystrom_attention, num_landmarks=4)
    expected = gradients(function, inputs)
    with torch.autocast("cpu", dtype=dtype):
        actual = gradients(function, inputs)
        row = nystrom_attention_row(*inputs[:2], num_landmarks=4)
    for name, value in expected.items():
        assert torch.equal(actual[name], value), name
    assert torch.equal(row, nystrom_attention_row(*inputs[:2], num_landmarks=4))


@pytest.mark.parametrize(("dtype", "scale"), [(torch.float16, 8.0), (torch.bfloat16, 1.0)], ids=str)
def test_200000_tokens_stay_finite(dtype: torch.dtype, scale: float) -> None:
    inputs = _inputs((1, 1, 200_000, 8, 8, 16), dtype, scale=scale)
    results = gradients(functools.partial(nystrom_attention, num_landmarks=16), inputs)
    assert all(torch.isfinite(value).all() for value in results.values())
    assert torch.isfinite(nystrom_attention_row(*inputs[:2], num_landmarks=16)).all()


def test_the_output_has_the_dtype_of_the_values() -> None:
    q, k, v = _inputs((1, 2, 20, 4, 4, 4), torch.float32)
    out = nystrom_attention(q, k, v.half(), num_landmarks=4)
    assert out.dtype == torch.float16
    assert relative_error(out, nystrom_attention(q, k, v.half().float(), num_landmarks=4)) < 1e-3


@pytest.mark.parametrize("rows", [1, 5, 8, 9, 16, 17])
def test_segment_means_are_means_of_runs(rows: int) -> None:
    x = torch.randn(2, 3, rows, 4, dtype=torch.float64)
    length = -(-rows // 8)
    expected = torch.zeros(2, 3, 8, 4, dtype=torch.float64)
    for run, start in enumerate(range(0, rows, length)):
        expected[:, :, run] = x[:, :, start : start + length].mean(2)
    torch.testing.assert_close(segment_means(x, 8), expected)
    everything = torch.ones(2, rows, dtype=torch.bool)
    torch.testing.assert_close(segment_means(x, 8, mask=everything), expected)


class _Module(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return self.function(q, k, v, key_mask=mask)


@pytest.mark.compile
@pytest.mark.parametrize("masked", [False, True])
def test_compiled_equals_eager(masked: bool) -> None:
    sizes = (2, 2, 13, 4, 4, 4)
    mask = _mask(sizes, "random") if masked else None
    function = functools.partial(nystrom_attention, num_landmarks=4, key_mask=mask)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    inputs = _inputs(sizes, torch.float32)
    assert_all_close(gradients(compiled, inputs), gradients(function, inputs), 1e-5)


@pytest.mark.compile
@pytest.mark.parametrize("masked", [False, True])
def test_exported_equals_eager_for_other_batches_and_lengths(masked: bool) -> None:
    module = _Module(functools.partial(nystrom_attention, num_landmarks=4))
    sizes = (2, 2, 13, 4, 4, 4)
    mask = _mask(sizes, "random") if masked else None
    dynamic: dict[int, Any] = {0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC}
    of_mask = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC} if masked else None
    arguments = (*_inputs(sizes, torch.float32), mask)
    program = torch.export.export(module, arguments, dynamic_shapes=(dynamic, dynamic, dynamic, of_mask))
    for new in (sizes, (3, 2, 12, 4, 4, 4), (5, 2, 21, 4, 4, 4), (2, 2, 3, 4, 4, 4)):
        tensors, new_mask = _inputs(new, torch.float32), _mask(new, "random") if masked else None
        actual, expected = program.module()(*tensors, new_mask), module(*tensors, new_mask)
        assert_all_close({"y": actual}, {"y": expected}, 1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": torch.zeros(1, 2, 9, 5)}, r"q \(1, 2, 9, 4\), k \(1, 2, 9, 5\)"),
        ({"v": torch.zeros(1, 2, 8, 4)}, r"v \(1, 2, 8, 4\)"),
        ({"q": torch.zeros(2, 9, 4)}, "four axes"),
        ({"key_mask": torch.ones(1, 8, dtype=torch.bool)}, r"key_mask \(1, 8\)"),
        ({"key_mask": torch.ones(1, 9)}, "torch.bool"),
        ({"pinv_init": "none"}, "'per_matrix', 'global'"),
        ({"num_landmarks": 0}, "num_landmarks"),
        ({"pinv_iterations": -1}, "pinv_iterations"),
        ({"q": torch.zeros(1, 2, 1, 4), "key_mask": torch.ones(1, 9, dtype=torch.bool)}, "query_landmarks"),
        ({"query_landmarks": torch.zeros(1, 2, 3, 4)}, r"\(1, 2, 3, 4\) must be \(1, 2, 4, 4\)"),
        ({"k": torch.zeros(1, 2, 0, 4), "v": torch.zeros(1, 2, 0, 4)}, "at least one token"),
    ],
)
@pytest.mark.compile  # the shape checks would speak first
def test_wrong_input_is_refused(changes: dict[str, Any], message: str) -> None:
    tensor = torch.zeros(1, 2, 9, 4)
    arguments = {"q": tensor, "k": tensor, "v": tensor, "num_landmarks": 4} | changes
    with pytest.raises(ValueError, match=message):
        nystrom_attention(**arguments)
