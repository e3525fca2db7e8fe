"""Cases of the gated differential linear attention in Triton, run by `test_triton_interpreter`.

Shape legend (this file): B batch, N tokens, C channels, H heads, d width of a head, P projections.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from nnunet_gdla.ops import _triton_differential
from nnunet_gdla.ops._triton_differential import gated_differential_triton
from tests.reference.compare import assert_all_close, gradients, relative_error
from tests.reference.differential import differential_linear_attention_naive
from tests.reference.gdla import GATES, merge_heads, rms_naive, split_heads
from tests.reference.linear import linear_attention_naive
from tests.unchecked import unchecked

NORM_EPS = 1e-5


@dataclass(frozen=True)
class Case:
    b: int
    n: int
    h: int
    d: int
    gate: str | None = "silu"
    differential: bool = True
    masked: bool = False

    def inputs(self, dtype: torch.dtype = torch.float64) -> list[Tensor]:
        """Return projections, weight of the norm and, with the difference, lambda."""
        shapes = [(self.b, self.n, (4 if self.gate else 3) * self.h * self.d), (self.d,)]
        shapes += [(self.h, self.d)] if self.differential else []
        return [torch.randn(shape, dtype=torch.float64).to(dtype) for shape in shapes]

    def key_mask(self) -> Tensor | None:
        return torch.rand(self.b, self.n) < 0.6 if self.masked else None

    def functions(self, key_mask: Tensor | None) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
        options = {"num_heads": self.h, "gate": self.gate, "key_mask": key_mask}
        return functools.partial(fast, **options), functools.partial(naive, **options)


def fast(
    projected: Tensor,
    weight: Tensor,
    lam: Tensor | None = None,
    *,
    num_heads: int,
    gate: str | None,
    norm_eps: float = NORM_EPS,
    **options: object,
) -> Tensor:
    return gated_differential_triton(
        projected, lam, weight, num_heads=num_heads, gate=gate, norm_eps=norm_eps, **options
    )


def naive(
    projected: Tensor,
    weight: Tensor,
    lam: Tensor | None = None,
    *,
    num_heads: int,
    gate: str | None,
    key_mask: Tensor | None = None,
    eps: float = 1e-6,
    norm_eps: float = NORM_EPS,
) -> Tensor:
    q, k, v, *g = (split_heads(part, num_heads) for part in projected.chunk(4 if gate else 3, -1))
    if lam is None:
        y = linear_attention_naive(q, k, v, key_mask=key_mask, eps=eps)
    else:
        y = differential_linear_attention_naive(q, k, v, lam, key_mask=key_mask, eps=eps)
    y = rms_naive(y, norm_eps) * weight
    return merge_heads(y if gate is None else y * GATES[gate](g[0]))


CASES = [
    Case(1, 1, 1, 2),
    Case(2, 7, 3, 4, masked=True),
    Case(2, 9, 2, 16, gate="sigmoid"),
    Case(1, 5, 2, 5, differential=False),
    Case(2, 3, 1, 7, gate=None, differential=False, masked=True),
    Case(1, 131, 1, 24, gate=None, masked=True),
    Case(1, 300, 1, 34),
    Case(1, 70, 1, 128, masked=True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_output_and_gradients_equal_the_naive_twin(case: Case) -> None:
    run, twin = case.functions(case.key_mask())
    inputs = case.inputs()
    assert_all_close(gradients(run, inputs), gradients(twin, inputs), 1e-10, floor=1e-3)


@pytest.mark.parametrize("case", [Case(1, 2, 1, 2), Case(1, 2, 1, 3, None, False, True)], ids=str)
def test_gradcheck(case: Case) -> None:
    run, _ = case.functions(case.key_mask())
    assert torch.autograd.gradcheck(run, [tensor.requires_grad_() for tensor in case.inputs()])


@pytest.mark.parametrize("eps", [1e-2, 10.0])
def test_eps_is_added_to_every_normaliser(eps: float) -> None:
    case = Case(1, 5, 1, 6)
    run, twin = (functools.partial(function, eps=eps) for function in case.functions(None))
    inputs = case.inputs()
    inputs[0] -= 5  # weights as small as eps, where it decides the result
    assert_all_close(gradients(run, inputs), gradients(twin, inputs), 1e-10, floor=1e-3)


@pytest.mark.parametrize(
    ("case", "eps"),
    [
        (Case(1, 5, 2, 6), {"eps": 0.0}),
        (Case(1, 5, 2, 6), {"norm_eps": 0.0}),
        (Case(2, 131, 1, 24, "sigmoid", masked=True), {"eps": 0.0, "norm_eps": 0.0}),
        (Case(1, 70, 1, 7, None, False), {"eps": 0.0, "norm_eps": 0.0}),
    ],
    ids=str,
)
def test_rows_beyond_the_last_token_need_no_eps(case: Case, eps: dict[str, float]) -> None:
    run, twin = (functools.partial(function, **eps) for function in case.functions(case.key_mask()))
    inputs = case.inputs()
    ours = gradients(run, inputs)
    assert all(bool(value.isfinite().all()) for value in ours.values())
    assert_all_close(ours, gradients(twin, inputs), 1e-9, floor=1e-3)


def test_a_row_that_gets_no_gradient_needs_no_eps() -> None:
    case = Case(1, 5, 1, 6)
    run, twin = (functools.partial(function, eps=0.0, norm_eps=0.0) for function in case.functions(None))

    def first_rows(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        return function(*inputs)[:, :2]

    inputs = case.inputs()
    ours, theirs = (gradients(functools.partial(first_rows, function), inputs) for function in (run, twin))
    assert_all_close(ours, theirs, 1e-9, floor=1e-3)


@pytest.mark.parametrize("case", [Case(2, 65, 1, 16, masked=True), Case(1, 140, 1, 32, "sigmoid")], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_precision(case: Case, dtype: torch.dtype) -> None:
    run, twin = case.functions(case.key_mask())
    inputs = case.inputs(dtype)
    exact = gradients(twin, [tensor.double() for tensor in inputs])
    ours, theirs = gradients(run, inputs), gradients(twin, inputs)
    if dtype == torch.float32:
        assert_all_close(ours, exact, 2e-6)
    for name, value in exact.items():
        allowed = 2 * relative_error(theirs[name], value) if dtype != torch.float32 else 2e-6
        assert relative_error(ours[name], value) <= allowed, name
        assert ours[name].dtype == dtype


def test_parameters_may_be_wider_than_the_projections() -> None:
    case = Case(1, 6, 2, 4)  # as under autocast
    run, _ = case.functions(None)
    projected, *parameters = case.inputs(torch.float32)
    results = gradients(run, [projected.half(), *parameters])
    expected = gradients(run, [projected.half().float(), *parameters])
    assert [results[f"grad.{i}"].dtype for i in range(3)] == [torch.float16, torch.float32, torch.float32]
    for name, value in expected.items():
        # gradients of half projections come from a cotangent that float16 holds too
        assert relative_error(results[name], value) < 1e-3, name


# what numpy, which plays the GPU, says of inf - inf
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("held", [float("nan"), float("inf")])
def test_masked_tokens_are_as_if_cut_out(held: float) -> None:
    case = Case(1, 9, 2, 6)
    projected, weight, lam = case.inputs()
    key_mask = torch.tensor([[True, True, False, True, True, True, False, True, True]])
    kept = key_mask[0]
    spoilt = projected.clone()
    spoilt[:, ~kept] = held
    expected = gradients(case.functions(None)[1], [projected[:, kept], weight, lam])
    leaves = [tensor.clone().requires_grad_() for tensor in (spoilt, weight, lam)]
    out = case.functions(key_mask)[0](*leaves)
    cotangent = torch.randn(expected["output"].shape, generator=torch.Generator().manual_seed(7))
    of_out = torch.zeros_like(out)
    of_out[:, kept] = cotangent.bfloat16().half().double()
    of_projected, *rest = torch.autograd.grad(out, leaves, of_out)
    assert torch.equal(of_projected[:, ~kept], torch.zeros_like(of_projected[:, ~kept]))
    actual = {"output": out[:, kept], "grad.0": of_projected[:, kept], "grad.1": rest[0], "grad.2": rest[1]}
    assert_all_close(actual, expected, 1e-10)


def test_no_token_takes_part() -> None:
    case = Case(2, 4, 1, 4)
    key_mask = torch.tensor([[False] * 4, [True, False, True, True]])
    run, twin = case.functions(key_mask)
    inputs = case.inputs()
    assert_all_close(gradients(run, inputs), gradients(twin, inputs), 1e-10, floor=1e-3)


def test_nan_of_a_query_stays_in_its_row() -> None:
    case = Case(1, 6, 1, 4)
    projected, weight, lam = case.inputs()
    clean = case.functions(None)[0](projected, weight, lam)
    projected[0, 2, :4] = torch.nan
    out = case.functions(None)[0](projected, weight, lam)
    assert out[0, 2].isnan().all()
    others = [0, 1, 3, 4, 5]
    assert torch.equal(out[0, others], clean[0, others])


def test_any_strides_of_projections_and_gradient() -> None:
    case = Case(2, 6, 2, 4, masked=True)
    run, _ = case.functions(torch.tensor([[True], [False]]).expand(2, 6))
    projected, weight, lam = case.inputs()
    expected = gradients(lambda *x: run(*x).sum(-1, keepdim=True).expand(2, 6, 8), [projected, weight, lam])
    channels_first = projected.transpose(1, 2).contiguous().transpose(1, 2)
    wide = torch.randn(2, 12, 64, dtype=torch.float64)[:, ::2, ::2]
    wide.copy_(projected)
    for view in (channels_first, wide):
        assert not view.is_contiguous()
        leaves = [tensor.detach().requires_grad_() for tensor in (view, weight, lam)]
        out = run(*leaves)
        assert out.is_contiguous()
        actual = run(*leaves).sum(-1, keepdim=True).expand(2, 6, 8)
        cotangent = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(7)).bfloat16().half().double()
        grads = torch.autograd.grad(actual, leaves, cotangent)
        results = {"output": actual, **{f"grad.{i}": grad for i, grad in enumerate(grads)}}
        assert_all_close(results, expected, 1e-12)


def test_equal_inputs_give_equal_bits() -> None:
    case = Case(1, 300, 1, 8)
    run, _ = case.functions(None)
    inputs = case.inputs(torch.float32)
    one, two = gradients(run, inputs), gradients(run, inputs)
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # opcheck itself looks at it
@pytest.mark.parametrize("differential", [True, False])
def test_opcheck(differential: bool) -> None:
    case = Case(2, 5, 2, 4, differential=differential)
    projected, weight, *lam = (tensor.float().requires_grad_() for tensor in case.inputs())
    arguments = (projected, lam[0] if lam else None, weight, torch.rand(2, 5) < 0.6, 2, "silu", NORM_EPS, 1e-6)
    torch.library.opcheck(_triton_differential._forward, arguments)


@pytest.mark.compile
def test_compiled_equals_eager_for_any_batch_and_length() -> None:
    case = Case(2, 6, 2, 4)
    run, _ = case.functions(None)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=True)
    for b, n in ((2, 6), (3, 5)):
        inputs = Case(b, n, 2, 4).inputs(torch.float32)
        assert_all_close(gradients(compiled, inputs), gradients(run, inputs), 1e-7)


def test_wrong_sizes_are_named() -> None:
    projected, weight, lam = Case(1, 3, 2, 4).inputs()
    with unchecked():
        for wrong in ((projected[..., :-1], weight, lam), (projected, weight[:3], lam), (projected, weight, lam[:1])):
            with pytest.raises(ValueError, match="must"):
                fast(*wrong, num_heads=2, gate="silu")
        with pytest.raises(ValueError, match="key_mask"):
            fast(projected, weight, lam, num_heads=2, gate="silu", key_mask=torch.ones(1, 2, dtype=torch.bool))
