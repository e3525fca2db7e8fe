"""The fused forms: equal to their naive twins and to the plain forms, twice differentiable, and used only where fit."""

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from nnunet_gdla.errors import UserError
from nnunet_gdla.ops import _gated_core, _products, conv_feed_forward, gated_differential, relu_projection, use_forms
from nnunet_gdla.ops._fusion import may_fuse
from nnunet_gdla.ops.conv_feed_forward import FeedForwardWeights
from nnunet_gdla.ops.gated_differential import gated_differential_attention
from nnunet_gdla.ops.projection import projection
from tests.reference.compare import assert_all_close, gradients
from tests.reference.feed_forward import linear_naive, mix_ffn_naive
from tests.reference.fused import gated_differential_naive, gelu_feed_forward_naive, relu_projection_naive
from tests.unchecked import unchecked

GRIDS = [(1, 1), (2, 3), (1, 5), (7, 4)]
GATES = ["silu", "sigmoid", None]


def draw(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64, seed: int = 0) -> list[Tensor]:
    """Normal tensors."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def feed_forward_shapes(middle: str, grid: tuple[int, int], kernel: int = 3) -> list[tuple[int, ...]]:
    """Of the tokens and the weights: 3 channels, 8 hidden ones."""
    last = 8 if middle == "gelu" else 4
    shapes: list[tuple[int, ...]] = [(2, grid[0] * grid[1], 3), (8, 3), (8,), (8, 1, kernel, kernel), (8,), (3, last)]
    return shapes + ([(3,)] if middle == "gelu" else [])


def feed_forward(middle: Any, grid: tuple[int, int], x: Tensor, *weights: Tensor) -> Tensor:  # noqa: ANN401
    """Ours, from a flat list of tensors."""
    project_bias = weights[5] if len(weights) > 5 else None
    return conv_feed_forward.conv_feed_forward(x, grid, FeedForwardWeights(*weights[:5], project_bias), middle=middle)


def naive_feed_forward(middle: str, grid: tuple[int, int], x: Tensor, *weights: Tensor) -> Tensor:
    """The twin, from the same list."""
    expand, depthwise = (weights[0], weights[1]), (weights[2], weights[3])
    if middle == "gelu":
        return gelu_feed_forward_naive(x, grid, expand, depthwise, (weights[4], weights[5]))
    return mix_ffn_naive(x, grid, expand, depthwise, weights[4])


@pytest.mark.parametrize("groups", ["one", "many"])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("middle", ["gelu", "gated_silu"])
@pytest.mark.parametrize("kernel", [3, 5])
def test_feed_forward_equals_its_naive_twin(
    middle: str, grid: tuple[int, int], groups: str, kernel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if groups == "many":
        monkeypatch.setattr(conv_feed_forward, "GROUP_BYTES", 1)
        monkeypatch.setattr(conv_feed_forward, "LEAST_CHANNELS", 3)
    inputs = draw(*feed_forward_shapes(middle, grid, kernel))
    ours = gradients(partial(feed_forward, middle, grid), inputs)
    assert_all_close(ours, gradients(partial(naive_feed_forward, middle, grid), inputs), 1e-11)


def attention_inputs(num_heads: int, tokens: int, gate: str | None, lam: bool, width: int = 4) -> list[Tensor]:
    """Projected tokens, norm weight and, with a second branch, lambda."""
    shapes = [(2, tokens, (3 if gate is None else 4) * num_heads * width), (width,)]
    return draw(*shapes, *([(num_heads, width)] if lam else []))


def attention(
    function: Callable[..., Tensor], num_heads: int, gate: str | None, x: Tensor, weight: Tensor, *lam: Tensor
) -> Tensor:
    """Ours or the twin, from a flat list of tensors."""
    return function(x, lam[0] if lam else None, weight, num_heads=num_heads, gate=gate)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("lam", [True, False])
@pytest.mark.parametrize(("num_heads", "tokens"), [(1, 1), (3, 7), (2, 64)])
def test_gated_differential_attention_equals_its_naive_twin(
    num_heads: int, tokens: int, gate: str | None, lam: bool
) -> None:
    inputs = attention_inputs(num_heads, tokens, gate, lam)
    ours, naive = (
        gradients(partial(attention, function, num_heads, gate), inputs)
        for function in (gated_differential_attention, gated_differential_naive)
    )
    # With one token the gradients of q and k cancel down to eps.
    assert_all_close(ours, naive, 1e-9, floor=1e-3)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("lam", [True, False])
@pytest.mark.parametrize(("num_heads", "tokens"), [(1, 2), (3, 7), (2, 64)])
def test_many_tokens_without_gradients_equal_the_naive_twin(
    num_heads: int, tokens: int, gate: str | None, lam: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = attention_inputs(num_heads, tokens, gate, lam)
    monkeypatch.setattr(_gated_core, "NUMBERS_AT_ONCE", 3 * 2 * num_heads * 4)  # three tokens
    monkeypatch.setattr(_gated_core, "MOST_AT_ONCE", 0)
    monkeypatch.setattr(gated_differential, "build_core", None)  # the other way
    ours = attention(gated_differential_attention, num_heads, gate, *inputs)
    torch.testing.assert_close(ours, attention(gated_differential_naive, num_heads, gate, *inputs))


def test_without_gradients_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters want gradients under `no_grad` too, and a group that is kept until the end costs fresh memory."""
    monkeypatch.setattr(conv_feed_forward, "GROUP_BYTES", 1)
    monkeypatch.setattr(conv_feed_forward, "LEAST_CHANNELS", 2)
    grid = (2, 3)
    x, *weights = (tensor.requires_grad_() for tensor in draw(*feed_forward_shapes("gelu", grid)))
    alive: list[weakref.ref[Tensor]] = []
    most = [0]

    def watched(*args: Any, **kwargs: Any) -> Tensor:  # noqa: ANN401
        made = linear(*args, **kwargs)
        alive.append(weakref.ref(made))
        most[0] = max(most[0], sum(ref() is not None for ref in alive))
        return made

    linear = conv_feed_forward.linear
    monkeypatch.setattr(conv_feed_forward, "linear", watched)
    with torch.no_grad():
        feed_forward("gelu", grid, x, *weights)
    assert most[0] == 3, "a group, the one before while its name still holds it, and the sum"
    feed_forward("gelu", grid, x, *weights)
    assert most[0] > 3


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("library", ["0", "1"])
def test_projection_equals_its_naive_twin(bias: bool, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_products.PRODUCTS_VARIABLE, library)
    inputs = draw((2, 5, 3), (4, 3), *([(4,)] if bias else []), dtype=torch.float32)

    def run(function: Callable[..., Tensor], x: Tensor, weight: Tensor, *rest: Tensor) -> Tensor:
        return function(x, weight, rest[0] if rest else None)

    assert_all_close(gradients(partial(run, projection), inputs), gradients(partial(run, linear_naive), inputs), 1e-6)


def test_the_matrix_library_is_a_setting_and_never_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = draw((50, 64), (32, 64), (32,), dtype=torch.float32)
    by_onednn = []
    monkeypatch.setattr(_products, "onednn_linear", lambda *tensors: by_onednn.append(tensors) or F.linear(*tensors))
    for value in (None, "", "0"):
        if value is None:
            monkeypatch.delenv(_products.PRODUCTS_VARIABLE, raising=False)
        else:
            monkeypatch.setenv(_products.PRODUCTS_VARIABLE, value)
        assert torch.equal(projection(x, weight, bias), F.linear(x, weight, bias))
    assert not by_onednn
    monkeypatch.setenv(_products.PRODUCTS_VARIABLE, "1")
    projection(x, weight, bias)
    assert len(by_onednn) == 1 or not _products.has_onednn()
    monkeypatch.setenv(_products.PRODUCTS_VARIABLE, "yes")
    with pytest.raises(UserError, match="NNUNET_GDLA_ONEDNN=yes must be 1"):
        projection(x, weight, bias)


@pytest.mark.parametrize("pixels", [1, 5, 11])
def test_relu_projection_equals_its_naive_twin(pixels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relu_projection, "CHUNK", 4)
    inputs = draw((2, 3, pixels), (6, 3), (6,), (4, 6), (4,))
    ours, naive = (gradients(function, inputs) for function in (relu_projection.relu_projection, relu_projection_naive))
    assert_all_close(ours, naive, 1e-12)


def cases() -> list[Any]:
    """Every form that can be differentiated twice, with small inputs."""
    found: list[tuple[str, Callable[..., Tensor], list[Tensor]]] = [
        (f"feed forward {middle}", partial(feed_forward, middle, (2, 2)), draw(*feed_forward_shapes(middle, (2, 2))))
        for middle in ("gelu", "gated_silu")
    ]
    found += [
        (
            f"attention {gate} {lam}",
            partial(attention, gated_differential_attention, 2, gate),
            attention_inputs(2, 3, gate, lam, width=2),
        )
        for gate in GATES
        for lam in (True, False)
    ]
    found.append(("projection", projection, draw((2, 2, 3), (2, 3), (2,))))
    return [pytest.param(function, inputs, id=name) for name, function, inputs in found]


@pytest.mark.parametrize(("function", "inputs"), cases())
def test_gradients_and_their_gradients(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> None:
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves)


@pytest.mark.parametrize(("function", "inputs"), cases())
def test_gradients_with_a_graph_count_no_path_twice(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> None:
    """Inputs that depend on one another, as the folded stem on its pixels."""
    leaf = inputs[0].clone().requires_grad_()
    moved = [leaf, *(tensor * (1 + leaf.square().mean()) for tensor in inputs[1:])]
    out = function(*moved).square().sum()
    (without,) = torch.autograd.grad(out, leaf, retain_graph=True)
    (with_graph,) = torch.autograd.grad(out, leaf, create_graph=True)
    torch.testing.assert_close(with_graph, without)


@pytest.mark.parametrize(("function", "inputs"), cases())
def test_the_plain_form_gives_the_same(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> None:
    fused = gradients(function, inputs)
    with use_forms("plain"):
        assert_all_close(fused, gradients(function, inputs), 1e-11)


@pytest.mark.parametrize(("function", "inputs"), cases())
def test_a_gradient_that_nobody_asks_for_is_not_given(
    function: Callable[..., Tensor], inputs: Sequence[Tensor]
) -> None:
    for wanted in range(len(inputs)):
        leaves = [tensor.clone().requires_grad_(number == wanted) for number, tensor in enumerate(inputs)]
        function(*leaves).sum().backward()
        assert [leaf.grad is not None for leaf in leaves] == [number == wanted for number in range(len(inputs))]


def test_bfloat16_autocast_and_dispatch_modes_take_the_plain_form() -> None:
    x = torch.ones(2)
    assert may_fuse(x, None)
    assert not may_fuse(x.bfloat16())
    assert not may_fuse(x, x.double())
    with torch.autocast("cpu", torch.bfloat16):
        assert not may_fuse(x)
    with FlopCounterMode(display=False):
        assert not may_fuse(x)
    with use_forms("plain"):
        assert not may_fuse(x)
    assert may_fuse(x)


def test_forward_mode_derivatives_go_through_the_plain_form() -> None:
    """Under `no_grad` too, where nothing else tells that derivatives are wanted."""
    inputs = draw(*feed_forward_shapes("gated_silu", (2, 3)))
    tangents = draw(*feed_forward_shapes("gated_silu", (2, 3)), seed=1)
    function, step = partial(feed_forward, "gated_silu", (2, 3)), 1e-6
    ahead, behind = (
        function(*(x + sign * step * t for x, t in zip(inputs, tangents, strict=True))) for sign in (1, -1)
    )
    with torch.no_grad(), forward_ad.dual_level():
        assert not may_fuse(inputs[0])
        out = function(*(forward_ad.make_dual(x, t) for x, t in zip(inputs, tangents, strict=True)))
        torch.testing.assert_close(
            forward_ad.unpack_dual(out).tangent, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-6
        )
    assert may_fuse(inputs[0])


def test_wrong_arguments_get_one_sentence() -> None:
    x, weight, lam = draw((1, 2, 16), (2,), (2, 2))
    with unchecked():
        with pytest.raises(ValueError, match="unknown gate 'relu'"):
            gated_differential_attention(x, lam, weight, num_heads=2, gate="relu")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"projected \(1, 2, 16\) must be"):
            gated_differential_attention(x, lam, weight, num_heads=3)
        with pytest.raises(ValueError, match="lam"):
            gated_differential_attention(x, lam[:, :1], weight, num_heads=2)
        with pytest.raises(ValueError, match="unknown middle 'tanh'"):
            feed_forward("tanh", (1, 2), *draw(*feed_forward_shapes("gelu", (1, 2))))


@pytest.mark.parametrize("function", [relu_projection.relu_projection, relu_projection.second_moments])
def test_the_stems_operators_can_be_differentiated_twice(function: Callable[..., Tensor]) -> None:
    shapes = [(2, 3, 7), (4, 3), (4,), (2, 4), (2,)][: 1 if function is relu_projection.second_moments else None]
    inputs = [tensor.requires_grad_() for tensor in draw(*shapes, dtype=torch.float64)]
    assert torch.autograd.gradgradcheck(function, inputs)
