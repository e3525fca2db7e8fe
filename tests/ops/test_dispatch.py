"""Which form of an operator runs, and what becomes of a kernel that is wrong, without any GPU.

A form "triton" for CPU tensors takes the kernels' place.
"""

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from nnunet_gdla.errors import UserError
from nnunet_gdla.layers import GatedDifferentialLinearAttention, GatedSRP
from nnunet_gdla.ops import _dispatch, _self_check, forms, grid_neighbours, use_forms
from nnunet_gdla.ops._dispatch import Form, are_exact
from nnunet_gdla.ops._fusion import may_fuse
from nnunet_gdla.ops.gated_differential import gated_differential_attention

GATED = _dispatch.OPERATORS["gated_differential_attention"]
CORRECTION, ALIGNMENT = _dispatch.OPERATORS["correction"], _dispatch.OPERATORS["alignment"]
DIM, HEADS, GRID = 8, 2, (5, 7)

Run = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in which nothing was compared yet."""
    monkeypatch.setattr(_self_check, "_verdicts", {})
    monkeypatch.setattr(_self_check, "_warned", set())


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Put a form in the place of the kernels and return the list of its calls."""

    def put(run: Run, operator: _dispatch.Operator[Any] = GATED) -> list[Any]:
        calls: list[Any] = []

        def counted(call: Any) -> Any:  # noqa: ANN401
            calls.append(call)
            return run(call)

        monkeypatch.setitem(operator.forms, "triton", Form(counted, lambda _: None))
        return calls

    return put


def right(call: Any) -> Any:  # noqa: ANN401
    """What a good kernel returns."""
    return GATED.forms["plain"].run(call)


def a_call(tokens: int = 35) -> Any:  # noqa: ANN401
    projected, lam = torch.randn(1, tokens, 4 * DIM), 0.1 * torch.randn(HEADS, DIM // HEADS)
    return GATED.call(projected, lam, torch.ones(DIM // HEADS), HEADS)


def wrong_values(call: Any) -> Tensor:  # noqa: ANN401
    return 1.01 * right(call)


def wrong_gradients(call: Any) -> Tensor:  # noqa: ANN401
    out = right(call)
    return out + 0.1 * (out - out.detach())


def one_value_is_nan(call: Any) -> Tensor:  # noqa: ANN401
    out = right(call)
    return torch.where(torch.arange(out.numel()).view(out.shape) == out.numel() - 1, torch.nan, out)


def wrong_dtype(call: Any) -> Tensor:  # noqa: ANN401
    return right(call).double()


class CompilationError(Exception):
    """As Triton's: no class of Python's own below `Exception`."""


def raises_at_compile(call: Any) -> Tensor:  # noqa: ANN401
    raise CompilationError("at 3:4: invalid operands\nmore lines")


def raises_at_launch(call: Any) -> Tensor:  # noqa: ANN401
    right(call)
    raise RuntimeError("Triton Error [CUDA]: out of resource: shared memory")


class _FailsBackwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ANN401
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ANN401
        raise RuntimeError("Triton Error [CUDA]: out of resource: registers")


def raises_at_backward_launch(call: Any) -> Tensor:  # noqa: ANN401
    return _FailsBackwards.apply(right(call))


def train(form: str) -> tuple[list[float], list[Tensor]]:
    """Three steps of one layer; losses and final weights."""
    torch.manual_seed(0)
    layer = GatedDifferentialLinearAttention(DIM, HEADS)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
    x, losses = torch.randn(2, GRID[0] * GRID[1], DIM), []
    with use_forms(form):
        for _ in range(3):
            optimiser.zero_grad()
            loss = layer(x + 0.01 * torch.randn_like(x), GRID).square().mean()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    return losses, [parameter.detach() for parameter in layer.parameters()]


BAD = {
    "wrong values": (wrong_values, "its output is off by"),
    "wrong gradients": (wrong_gradients, "its gradient of projected is off by"),
    "one NaN": (one_value_is_nan, "its output is off by inf"),
    "wrong dtype": (wrong_dtype, r"its output is \(2, 133, 8\) torch.float64"),
    "raises at compile": (raises_at_compile, r"CompilationError: at 3:4: invalid operands \("),
    "raises at launch": (raises_at_launch, "shared memory"),
    "raises at launch, backwards": (raises_at_backward_launch, "registers"),
}


@pytest.mark.parametrize("kind", BAD)
def test_training_goes_on_with_the_plain_form(kind: str, register: Callable[..., list[Any]]) -> None:
    bad, message = BAD[kind]
    calls = register(bad)
    with pytest.warns(RuntimeWarning, match=message) as record:
        losses, weights = train("triton")
    assert len(record) == 1
    assert len(calls) == 1, "the comparison, and nothing else"
    expected_losses, expected_weights = train("plain")
    assert losses == expected_losses
    assert all(torch.equal(one, other) for one, other in zip(weights, expected_weights, strict=True))


def test_a_form_that_agrees_is_used_and_says_nothing(register: Callable[..., list[Any]]) -> None:
    calls = register(right)
    losses, _ = train("triton")
    assert len(calls) == 1 + 3 * 2, "compared once; two calls a step"
    assert losses == train("plain")[0], "nor did the comparison draw random numbers"


def test_a_form_that_fails_only_at_a_size_is_left_out_from_there(register: Callable[..., list[Any]]) -> None:
    def too_large(call: Any) -> Tensor:  # noqa: ANN401
        if call.projected.shape[1] > 200:
            raise RuntimeError("grid too large")
        return right(call)

    calls = register(too_large)
    call = a_call(300)
    with use_forms("triton"):
        with pytest.warns(RuntimeWarning, match="grid too large"):
            out = gated_differential_attention(*call[:3], num_heads=HEADS)
        torch.testing.assert_close(out, right(call))
        before = len(calls)
        gated_differential_attention(*call[:3], num_heads=HEADS)
        assert len(calls) == before


def test_memory_that_runs_out_at_a_call_is_no_verdict(register: Callable[..., list[Any]]) -> None:
    def short_of_memory(call: Any) -> Tensor:  # noqa: ANN401
        if call.projected.shape[1] > 200:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return right(call)

    register(short_of_memory)
    with use_forms("triton"), pytest.raises(torch.OutOfMemoryError):
        gated_differential_attention(*a_call(300)[:3], num_heads=HEADS)


def test_memory_that_runs_out_in_the_comparison_leaves_the_plain_form(register: Callable[..., list[Any]]) -> None:
    def short_of_memory(call: Any) -> Tensor:  # noqa: ANN401
        raise torch.OutOfMemoryError("CUDA out of memory")

    register(short_of_memory)
    with pytest.warns(RuntimeWarning, match="memory ran out while it was compared"):
        losses, _ = train("triton")
    assert losses == train("plain")[0]


def test_each_width_and_choice_is_compared_by_itself_and_one_warning_is_enough(
    register: Callable[..., list[Any]],
) -> None:
    def only_silu(call: Any) -> Tensor:  # noqa: ANN401
        return right(call) if call.gate == "silu" else wrong_values(call)

    register(only_silu)
    projected, lam, weight = a_call()[:3]
    with use_forms("triton", "cpu"), warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        gated_differential_attention(projected, lam, weight, num_heads=HEADS)
        gated_differential_attention(projected, lam, weight, num_heads=HEADS, gate="sigmoid")
        gated_differential_attention(projected[..., :24], lam, weight, num_heads=HEADS, gate=None)
        assert forms(gated_differential_attention, projected, lam, weight, HEADS).runs == "triton"
        report = forms("gated_differential_attention", projected, lam, weight, num_heads=HEADS, gate="sigmoid")
        assert report.runs == "cpu"
        assert "its output is off by" in report.why_not["triton"]
    assert len(record) == 1


def test_the_comparison_is_not_part_of_what_calls_it(register: Callable[..., list[Any]]) -> None:
    modes = []

    def looking(call: Any) -> Tensor:  # noqa: ANN401
        modes.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled()))
        return right(call)

    register(looking)
    call = a_call()
    with use_forms("triton"), torch.inference_mode(), torch.autocast("cpu"):
        gated_differential_attention(*call[:3], num_heads=HEADS)
    assert modes == [(True, False, False), (False, True, True)]

    _self_check._verdicts.clear()
    layer, x = GatedDifferentialLinearAttention(DIM, HEADS), torch.randn(1, 35, DIM, requires_grad=True)
    with use_forms("triton"):  # hooks on saved tensors would catch what the comparison saves
        checkpoint(layer, x, GRID, use_reentrant=False).sum().backward()
    assert x.grad is not None


def test_the_correction_of_gated_srp_is_compared_too(register: Callable[..., list[Any]]) -> None:
    register(lambda call: ALIGNMENT.forms["plain"].run(call), ALIGNMENT)
    register(lambda call: 2 * CORRECTION.forms["plain"].run(call), CORRECTION)
    graph = grid_neighbours(torch.cartesian_prod(torch.arange(5), torch.arange(5)), 1)
    layer, (y, v) = GatedSRP(2, init="normal"), torch.randn(2, 1, 2, 25, 4)
    with use_forms("triton"), pytest.warns(RuntimeWarning, match="Triton form of correction") as record:
        found = layer(y, v, graph, torch.rand(1, 25, generator=torch.Generator().manual_seed(0)))
    assert len(record) == 1
    torch.testing.assert_close(found, layer(y, v, graph, torch.rand(1, 25, generator=torch.Generator().manual_seed(0))))


@pytest.mark.compile
def test_only_a_form_that_passed_stands_in_a_compiled_graph(register: Callable[..., list[Any]]) -> None:
    calls = register(lambda call: right(call) + 1)
    call = a_call()

    def compiled() -> Tensor:
        torch.compiler.reset()
        run = torch.compile(lambda *tensors: gated_differential_attention(*tensors, num_heads=HEADS), fullgraph=True,
                            backend="eager")  # fmt: skip
        found: Tensor = run(*call[:3])
        return found

    with use_forms("triton"):
        torch.testing.assert_close(compiled(), right(call))
        assert not calls, "nothing is compared inside a graph"
        _self_check._verdicts[GATED.name, GATED.key(call)] = _self_check.PASSED
        torch.testing.assert_close(compiled(), right(call) + 1)


def test_a_question_has_no_effect(register: Callable[..., list[Any]]) -> None:
    calls = register(wrong_values)
    call = a_call()
    with use_forms("triton,cpu"):
        report = forms(gated_differential_attention, *call)
        assert report.runs == "cpu"
        assert "not yet compared" in report.why_not["triton"]
        assert report.why_not["plain"] == "cpu comes first"
        assert forms("gated_differential_attention", call.projected.half(), *call[1:]).runs == "plain"
    assert not calls
    assert not _self_check._verdicts
    report = forms("gated_differential_attention", *call)
    assert report == ("cpu", {"plain": "cpu comes first", "triton": "not named before plain in NNUNET_GDLA_FORMS"})
    with pytest.raises(ValueError, match="linear_attention has one form only"):
        forms("linear_attention", call.projected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ("cpu", "plain")),
        ("plain", ("plain",)),
        ("triton", ("triton", "plain")),
        (" triton , cpu ", ("triton", "cpu", "plain")),
        ("cpu,triton,plain", ("cpu", "triton", "plain")),
        ("plain,cpu", ("plain",)),
    ],
)
def test_the_variable_names_forms_in_order(text: str, expected: tuple[str, ...]) -> None:
    assert _dispatch._read({"NNUNET_GDLA_FORMS": text}) == expected


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"NNUNET_GDLA_FORMS": "cuda"}, "NNUNET_GDLA_FORMS: unknown form 'cuda' in 'cuda'; name some of plain, cpu, "),
        ({"NNUNET_GDLA_FORMS": "cpu,,plain"}, "unknown form ''"),
        ({"NNUNET_GDLA_FUSED": "0"}, "export NNUNET_GDLA_FORMS=plain if"),
        ({"NNUNET_GDLA_TRITON": "0"}, "export NNUNET_GDLA_FORMS=cpu,plain if"),
        ({"NNUNET_GDLA_TRITON": "1", "NNUNET_GDLA_FORMS": "plain"}, "NNUNET_GDLA_TRITON is no longer read: unset it"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_sentence(
    variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _dispatch._read(variables)
    assert isinstance(found, str)
    assert message in found
    monkeypatch.setattr(_dispatch, "_named", [found])
    with pytest.raises(UserError, match="NNUNET_GDLA_"):
        may_fuse(torch.zeros(1))
    with use_forms("plain"):
        assert not may_fuse(torch.zeros(1))


def test_a_wrong_variable_does_not_end_the_import() -> None:
    program = (
        "import torch, nnunet_gdla.layers as layers\n"
        "from nnunet_gdla.errors import UserError\n"
        "layer = layers.GatedDifferentialLinearAttention(4, 1)\n"
        "try: layer(torch.zeros(1, 4, 4), (2, 2))\n"
        "except UserError as error: print(error)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"NNUNET_GDLA_FUSED": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert finished.stdout.startswith("NNUNET_GDLA_FUSED is no longer read")


def test_names_are_put_back_and_unknown_ones_refused() -> None:
    before = _dispatch._named[0]
    with pytest.raises(ValueError, match="unknown form 'gpu'"), use_forms("gpu"):
        pass
    with pytest.raises(ZeroDivisionError), use_forms("plain"):
        raise ZeroDivisionError
    assert _dispatch._named[0] == before


def test_exact_types() -> None:
    with FakeTensorMode():
        fake = torch.zeros(1)
    assert are_exact(torch.zeros(1), torch.nn.Parameter(torch.zeros(1)), None)
    assert not are_exact(torch.zeros(1), fake)


class _Allocator:
    """What torch.cuda says of memory, and what allocations do to it."""

    def __init__(self, taken: int, most: int) -> None:
        self.taken, self.most = taken, most

    def take(self, size: int) -> None:
        self.most = max(self.most, self.taken + size)

    def reset(self, _: object) -> None:
        self.most = self.taken


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Allocator]:
    found = _Allocator(1000, 1200)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: found.most)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: found.taken)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", found.reset)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(torch.cuda, "device", lambda _: warnings.catch_warnings())
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: warnings.catch_warnings())
    monkeypatch.setattr(torch, "empty", lambda size, dtype, device: found.take(size))
    return found


@pytest.mark.parametrize("size", [50, 700])
def test_peak_memory_is_put_back(size: int, allocator: _Allocator) -> None:
    with _self_check.as_it_was(torch.device("cuda", 0)):
        allocator.take(size)
    assert (allocator.taken, allocator.most) == (1000, 1200)
