"""Cases of the neighbourhood mean and correction in Triton, run by `test_triton_interpreter`.

Shape legend (this file): B batch, H heads, N patches, L rows, D head width, K slots.
"""

import pytest
import torch
from torch import Tensor

from nnunet_gdla.ops import _triton_redundancy
from nnunet_gdla.ops._triton_redundancy import alignment_triton, correction_triton
from nnunet_gdla.ops.neighbours import NeighbourGraph, grid_neighbours
from tests.reference.compare import assert_all_close, gradients, relative_error
from tests.reference.redundancy import neighbourhood_mean_naive, redundancy_projection_naive, unit_naive
from tests.unchecked import unchecked

SIZES = pytest.mark.parametrize(
    ("batch", "heads", "rows", "width", "first", "window"),
    [(1, 1, 1, 1, 0, 3), (2, 3, 37, 6, 1, 3), (1, 6, 33, 64, 2, 3), (1, 1, 20, 5, 0, 5), (1, 1, 9, 200, 1, 3)],
)


def a_graph(rows: int, window: int = 3, batch: int = 0) -> NeighbourGraph:
    """Weighted, with patches that have no neighbour; with a batch axis where asked for."""
    coords = torch.randint(0, 9, (max(batch, 1), rows, 2))
    coords[:, 0] = 100
    graph = grid_neighbours(coords, 1, window=window, weighting="gaussian")
    return graph if batch else NeighbourGraph(*(part[0] for part in graph))


def a_projection(batch: int, heads: int, rows: int, width: int, dtype: torch.dtype) -> Tensor:
    """Values (B, H, L, D) as a layer has them: a third of one projection."""
    projected = torch.randn(batch, rows, 3 * heads * width, dtype=torch.float64).to(dtype)
    return projected.unflatten(-1, (3, heads, width)).permute(2, 0, 3, 1, 4)[2]


def naive_axis(v: Tensor, graph: NeighbourGraph) -> Tensor:
    shared = graph.index.ndim == 2
    means = [
        neighbourhood_mean_naive(v[b], *(part if shared else part[b] for part in graph)) for b in range(v.shape[0])
    ]
    return unit_naive(torch.stack(means))


def naive(y: Tensor, beta: Tensor, v: Tensor, graph: NeighbourGraph, first: int) -> Tensor:
    end = first + beta.shape[2]
    axis = naive_axis(v[:, :, first:end].to(beta.dtype), graph).to(y.dtype)
    z = redundancy_projection_naive(y[:, :, first:end], axis, beta.to(y.dtype))
    return torch.cat([y[:, :, :first], z, y[:, :, end:]], dim=2)


def fast(y: Tensor, beta: Tensor, v: Tensor, graph: NeighbourGraph, first: int) -> Tensor:
    patches = slice(first, first + beta.shape[2])
    _, dot, _ = alignment_triton(y[:, :, patches], v[:, :, patches], graph, with_axis=False)
    return correction_triton(y, dot, beta, v, graph, first=first)


@SIZES
@pytest.mark.parametrize("shared", [True, False])
def test_everything_equals_the_naive_twin(
    batch: int, heads: int, rows: int, width: int, first: int, window: int, shared: bool
) -> None:
    graph = a_graph(rows, window, 0 if shared else batch)
    v = a_projection(batch, heads, rows + first + 1, width, torch.float64)
    y = torch.randn(batch, rows + first + 1, heads, width, dtype=torch.float64).transpose(1, 2)
    beta = torch.randn(batch, heads, rows, dtype=torch.float64)
    patches = slice(first, first + rows)
    axis = naive_axis(v[:, :, patches], graph)
    found = alignment_triton(y[:, :, patches], v[:, :, patches], graph)
    dot = (y[:, :, patches] * axis).sum(-1)
    expected = {"axis": axis, "dot": dot, "norm": y[:, :, patches].norm(dim=-1)}
    assert_all_close(dict(zip(expected, found, strict=True)), expected, 1e-12)
    actual = gradients(lambda *x: fast(*x, v, graph, first), [y, beta])
    assert_all_close(actual, gradients(lambda *x: naive(*x, v, graph, first), [y, beta]), 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_precision(dtype: torch.dtype) -> None:
    graph, v = a_graph(40), a_projection(2, 2, 40, 16, dtype)
    y, beta = torch.randn(2, 2, 40, 16).to(dtype), torch.randn(2, 2, 40)
    ours = gradients(lambda *x: fast(*x, v, graph, 0), [y, beta])
    theirs = gradients(lambda *x: naive(*x, v, graph, 0), [y, beta])
    exact = gradients(lambda *x: naive(*x, v.double(), graph, 0), [y.double(), beta.double()])
    assert [ours[name].dtype for name in ("output", "grad.0", "grad.1")] == [dtype, dtype, torch.float32]
    for name, value in exact.items():
        allowed = 2e-6 if dtype == torch.float32 else 2 * relative_error(theirs[name], value)
        assert relative_error(ours[name], value) <= allowed, name


def test_gradcheck() -> None:
    graph, v = a_graph(3), a_projection(1, 1, 4, 3, torch.float64)
    y = torch.randn(1, 1, 4, 3, dtype=torch.float64, requires_grad=True)
    beta = torch.randn(1, 1, 3, dtype=torch.float64, requires_grad=True)

    def run(y: Tensor, beta: Tensor) -> Tensor:
        # dot is a function of y, of which the operator's backward knows
        with torch.no_grad():
            _, dot, _ = alignment_triton(y[:, :, 1:], v[:, :, 1:], graph)
        return correction_triton(y, dot, beta, v, graph, first=1)

    assert torch.autograd.gradcheck(run, [y, beta])


def test_no_gradient_reaches_the_values() -> None:
    graph, v = a_graph(6), a_projection(1, 2, 6, 4, torch.float32).clone().requires_grad_()
    y, beta = torch.randn(1, 2, 6, 4, requires_grad=True), torch.ones(1, 2, 6)
    fast(y, beta, v, graph, 0).sum().backward()
    assert v.grad is None
    assert y.grad is not None


# what numpy, which plays the GPU, says of inf - inf
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_beta_zero_and_patches_without_neighbours_change_no_bit() -> None:
    graph, v = a_graph(30), a_projection(1, 2, 30, 4, torch.float32)
    y = torch.randn(1, 2, 30, 4)
    y[0, 0, 3], y[0, 1, 4] = torch.inf, -0.0
    assert torch.equal(fast(y, torch.zeros(1, 2, 30), v, graph, 0).view(torch.int32), y.view(torch.int32))
    z = fast(y, torch.full((1, 2, 30), torch.inf), v, graph, 0)
    alone = ~graph.mask.any(-1)
    assert alone.any()
    assert torch.equal(z[:, :, alone], y[:, :, alone])


def test_nan_that_nobody_sees_reaches_nobody() -> None:
    graph, v = a_graph(20), a_projection(1, 1, 20, 4, torch.float32)
    y, beta = torch.randn(1, 1, 20, 4), torch.ones(1, 1, 20)
    expected = gradients(lambda *x: fast(*x, v, graph, 0), [y, beta])
    spoilt = v.clone()
    spoilt[:, :, 0] = torch.nan  # far from all others
    actual = gradients(lambda *x: fast(*x, spoilt, graph, 0), [y, beta])
    assert all(torch.equal(actual[name], value) for name, value in expected.items())


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # opcheck itself looks at it
def test_opcheck() -> None:
    graph, v = a_graph(6, batch=2), a_projection(2, 2, 7, 4, torch.float32)
    y, beta = torch.randn(2, 2, 7, 4, requires_grad=True), torch.randn(2, 2, 6, requires_grad=True)
    dot = torch.randn(2, 2, 6)
    torch.library.opcheck(_triton_redundancy._correction, (y, v, *graph, beta, dot, 1))
    for with_axis in (True, False):
        arguments = (y[:, :, 1:].detach(), v[:, :, 1:], *graph, with_axis)
        torch.library.opcheck(_triton_redundancy._alignment, arguments)


@pytest.mark.compile
def test_compiled_equals_eager_for_any_length() -> None:
    compiled = torch.compile(fast, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (12, 7):
        graph, v = a_graph(rows), a_projection(1, 2, rows, 4, torch.float32)
        inputs = [torch.randn(1, 2, rows, 4), torch.randn(1, 2, rows)]
        results = [gradients(lambda *x, f=f, v=v, g=graph: f(*x, v, g, 0), inputs) for f in (compiled, fast)]
        assert_all_close(*results, 1e-7)


def test_wrong_sizes_are_named() -> None:
    graph, y = a_graph(5), torch.randn(1, 2, 5, 4)
    beta = torch.zeros(1, 2, 5)
    with unchecked():
        for wrong in ((y[:, :, :4], beta, beta), (y, beta[:, :1], beta[:, :1]), (y, beta, beta[:, :, :3])):
            with pytest.raises(ValueError, match=r"must|fit"):
                correction_triton(wrong[0], wrong[1], wrong[2], y, graph)
        with pytest.raises(ValueError, match="same four sizes"):
            alignment_triton(y, y[..., :2], graph)
