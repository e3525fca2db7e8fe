"""Neighbourhood mean and the two projections: the naive ones, gradients, precision, algebra, and what they refuse."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nnunet_gdla.ops import _gather
from nnunet_gdla.ops.exclusive import exclusive_projection
from nnunet_gdla.ops.neighbours import NeighbourGraph, grid_neighbours, nearest_neighbours
from nnunet_gdla.ops.redundancy import neighbourhood_mean, redundancy_projection
from tests.reference.compare import assert_all_close, gradients, relative_error
from tests.reference.redundancy import (
    exclusive_projection_naive,
    neighbourhood_mean_naive,
    redundancy_projection_naive,
    unit_naive,
)
from tests.srp_golden import SrpFile, srp_params
from tests.unchecked import unchecked

HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
AUTOCAST = pytest.mark.parametrize("autocast", [torch.float16, torch.bfloat16], ids=str)
SHAPES = pytest.mark.parametrize(
    "shape", [(1, 1), (37, 5), (2, 37, 1), (2, 37, 8), (2, 3, 37, 4), (1, 6, 37, 16)], ids=str
)
Projection = Callable[..., Tensor]


def graph_of(rows: int, *, weighting: str = "uniform") -> NeighbourGraph:
    coords = torch.randint(-4, 5, (rows, 2), generator=torch.Generator().manual_seed(1))
    return grid_neighbours(coords, 1, weighting=weighting, window=3, sigma=0.6)  # type: ignore[arg-type]


def projection_inputs(shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    axis = unit_naive(torch.randn(shape, dtype=torch.float64))
    axis[..., 0, :] = 0
    return [t.to(dtype) for t in (torch.randn(shape, dtype=torch.float64), axis, torch.randn(shape[:-1]) * 2)]


@SHAPES
@pytest.mark.parametrize("weighting", ["uniform", "gaussian", "inverse_distance"])
def test_mean_equals_naive(shape: tuple[int, ...], weighting: str) -> None:
    values, graph = torch.randn(shape, dtype=torch.float64), graph_of(shape[-2], weighting=weighting)
    expected = gradients(lambda x: neighbourhood_mean_naive(x, *graph), [values])
    assert_all_close(gradients(lambda x: neighbourhood_mean(x, graph), [values]), expected, 1e-12)
    with torch.no_grad():
        assert_all_close({"y": neighbourhood_mean(values, graph)}, {"y": expected["output"]}, 1e-12)


@pytest.mark.parametrize("golden", srp_params("projection_detached", "projection_gaussian", "projection_win5"))
def test_mean_is_the_golden_one(golden: SrpFile) -> None:
    tensors, rows = golden.tensors, int(golden.tensors["n_real"])
    mask = tensors["nbr_mask"]
    graph = NeighbourGraph(tensors["nbr_index"], mask, tensors.get("nbr_weight", mask.float()))
    mean = neighbourhood_mean(tensors["v"][:, :, 1 : rows + 1], graph)
    assert_all_close({"r": mean}, {"r": tensors["r"]}, 5e-6)


@SHAPES
def test_projection_equals_naive(shape: tuple[int, ...]) -> None:
    inputs = projection_inputs(shape)
    expected = gradients(redundancy_projection_naive, inputs)
    assert_all_close(gradients(redundancy_projection, inputs), expected, 1e-12)


@SHAPES
def test_exclusive_equals_naive(shape: tuple[int, ...]) -> None:
    inputs = [torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)]
    # in one dimension nothing is left, and all of it is rounding
    expected = gradients(exclusive_projection_naive, inputs)
    assert_all_close(gradients(exclusive_projection, inputs), expected, 1e-12, floor=1.0)


def test_gradcheck() -> None:
    graph = graph_of(6)
    inputs = [tensor.requires_grad_() for tensor in projection_inputs((2, 2, 6, 3))]
    assert torch.autograd.gradcheck(lambda x: neighbourhood_mean(x, graph), inputs[:1])
    assert torch.autograd.gradcheck(redundancy_projection, inputs)
    assert torch.autograd.gradcheck(exclusive_projection, [inputs[0], torch.randn_like(inputs[0]).requires_grad_()])


@pytest.mark.parametrize("needed", [(True, False, False), (False, True, False), (False, False, True)])
def test_projection_gives_each_gradient_alone(needed: tuple[bool, ...]) -> None:
    inputs = projection_inputs((2, 3, 7, 4))
    every = gradients(redundancy_projection, inputs)
    leaves = [tensor.clone().requires_grad_(need) for tensor, need in zip(inputs, needed, strict=True)]
    number = needed.index(True)

    def alone(leaf: Tensor) -> Tensor:
        return redundancy_projection(*leaves[:number], leaf, *leaves[number + 1 :])

    assert_all_close({"g": gradients(alone, [leaves[number]])["grad.0"]}, {"g": every[f"grad.{number}"]}, 1e-12)


@pytest.mark.parametrize("rows", [1, 5, 64])
def test_chunks_change_nothing(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = projection_inputs((2, 3, 50, 4), torch.float32)
    expected, exclusive = gradients(redundancy_projection, inputs), gradients(exclusive_projection, inputs[:2])
    monkeypatch.setattr(_gather, "CHUNK_CPU", rows * 24)
    actual = gradients(redundancy_projection, inputs)
    assert all(torch.equal(actual[name], value) for name, value in expected.items())
    actual = gradients(exclusive_projection, inputs[:2])
    assert all(torch.equal(actual[name], value) for name, value in exclusive.items())


@HALVES
@pytest.mark.parametrize("which", ["mean", "projection", "exclusive"])
def test_half_precision_error_is_at_most_twice_the_naive_error(which: str, dtype: torch.dtype) -> None:
    graph = graph_of(37, weighting="gaussian")
    fast, naive, inputs = {
        "mean": (
            lambda x: neighbourhood_mean(x, graph),
            lambda x: neighbourhood_mean_naive(x, *graph),
            projection_inputs((2, 3, 37, 16), dtype)[:1],
        ),
        "projection": (redundancy_projection, redundancy_projection_naive, projection_inputs((2, 3, 37, 16), dtype)),
        "exclusive": (
            exclusive_projection,
            exclusive_projection_naive,
            [torch.randn(2, 3, 37, 16).to(dtype) for _ in range(2)],
        ),
    }[which]
    exact = gradients(naive, [tensor.double() for tensor in inputs])
    ours, theirs = gradients(fast, inputs), gradients(naive, inputs)
    for name, value in exact.items():
        assert relative_error(ours[name], value) <= 2 * relative_error(theirs[name], value), name


@AUTOCAST
def test_autocast_changes_nothing(autocast: torch.dtype) -> None:
    inputs, graph = projection_inputs((2, 3, 37, 8), torch.float32), graph_of(37)

    def results() -> dict[str, Tensor]:
        one, two = gradients(redundancy_projection, inputs), gradients(exclusive_projection, inputs[:2])
        three = gradients(lambda x: neighbourhood_mean(x, graph), inputs[:1])
        return {
            f"{place}.{name}": value for place, each in enumerate((one, two, three)) for name, value in each.items()
        }

    expected = results()
    with torch.autocast("cpu", dtype=autocast):
        actual = results()
    assert all(torch.equal(actual[name], value) for name, value in expected.items())


def test_dtypes_of_the_results() -> None:
    y, axis, beta = projection_inputs((2, 3, 37, 8), torch.float16)
    assert redundancy_projection(y, axis.float(), beta.float()).dtype == torch.float16
    assert exclusive_projection(y, axis.float()).dtype == torch.float16
    assert neighbourhood_mean(y, graph_of(37)).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_beta_zero_and_a_zero_axis_change_no_bit(dtype: torch.dtype) -> None:
    y, axis, beta = projection_inputs((2, 3, 11, 4), dtype)
    y[..., ::2] = -0.0
    y[0, 0, 1, 1], y[0, 0, 2, 1] = torch.inf, torch.nan
    bits = torch.int16 if dtype == torch.float16 else torch.int32
    assert torch.equal(redundancy_projection(y, axis, torch.zeros_like(beta)).view(bits), y.view(bits))
    y = y.nan_to_num(1.0, 2.0)
    assert torch.equal(redundancy_projection(y, torch.zeros_like(axis), beta).view(bits), y.view(bits))
    assert torch.equal(exclusive_projection(y, torch.zeros_like(axis)), y)


def test_one_removes_and_two_reflects() -> None:
    y, axis, beta = projection_inputs((2, 3, 11, 4))
    dot = (y * axis).sum(-1)
    removed, reflected = (redundancy_projection(y, axis, torch.full_like(beta, value)) for value in (1, 2))
    torch.testing.assert_close((removed * axis).sum(-1), torch.zeros_like(dot))
    torch.testing.assert_close((reflected * axis).sum(-1), -dot)
    torch.testing.assert_close(reflected.norm(dim=-1), y.norm(dim=-1))


def test_the_mean_of_a_constant_is_the_constant() -> None:
    graph = graph_of(60)
    mean = neighbourhood_mean(torch.full((60, 3), 7.5), graph)
    torch.testing.assert_close(mean[graph.count > 0], torch.full((int((graph.count > 0).sum()), 3), 7.5))
    assert (mean[graph.count == 0] == 0).all()


def test_what_nobody_sees_reaches_nobody() -> None:
    graph = graph_of(37)
    values = torch.randn(2, 3, 37, 4)
    expected = neighbourhood_mean(values, graph)
    seen = set(graph.index.flatten().tolist())
    hidden = [row for row in range(37) if row not in seen]
    assert hidden
    assert (graph.count == 0).any()
    values[:, :, hidden] = torch.nan
    assert torch.equal(neighbourhood_mean(values, graph), expected)
    values[:, :, 0] = torch.inf  # row 0 is what empty rows read
    away = ~(graph.index == 0).any(-1)
    assert torch.equal(neighbourhood_mean(values, graph)[:, :, away], expected[:, :, away])


def test_batch_elements_are_independent() -> None:
    coords = torch.randint(0, 7, (3, 30, 2))
    graph, (y, axis, beta) = grid_neighbours(coords, 1), projection_inputs((3, 2, 30, 4), torch.float32)
    mean, z = neighbourhood_mean(y, graph), redundancy_projection(y, axis, beta)
    for one in range(3):
        alone = NeighbourGraph(*(part[one] for part in graph))
        assert torch.equal(mean[one : one + 1], neighbourhood_mean(y[one : one + 1], alone))
        assert torch.equal(neighbourhood_mean(y[:, 0], graph)[one], neighbourhood_mean(y[one, 0], alone))
        assert torch.equal(z[one], redundancy_projection(y[one], axis[one], beta[one]))


def test_the_order_of_patches_does_not_matter() -> None:
    coords = torch.cartesian_prod(torch.arange(6), torch.arange(6))
    order, values = torch.randperm(36), torch.randn(1, 2, 36, 4)
    straight = neighbourhood_mean(values, grid_neighbours(coords, 1))
    permuted = neighbourhood_mean(values[:, :, order], grid_neighbours(coords[order], 1))
    assert torch.equal(permuted, straight[:, :, order])


@pytest.mark.parametrize("batch", [1, 3])
def test_values_inside_a_joint_projection_give_the_same(batch: int) -> None:
    # as they leave a q, k, v projection behind a class token: they are read in place
    qkv = torch.randn(batch, 38, 3 * 24)
    views = [qkv[:, 1:, part * 24 :][..., :24].unflatten(-1, (6, 4)).transpose(1, 2) for part in range(3)]
    graph = graph_of(37)
    for view in views:
        assert torch.equal(neighbourhood_mean(view, graph), neighbourhood_mean(view.clone(), graph))
    odd = torch.randn(batch, 38, 25)[:, 1:, :24].unflatten(-1, (6, 4)).transpose(1, 2)
    assert torch.equal(neighbourhood_mean(odd, graph), neighbourhood_mean(odd.clone(), graph))


def test_a_long_bag_in_half_precision_is_right() -> None:
    rows = 200_000
    coords = torch.stack([torch.arange(rows) % 500, torch.arange(rows) // 500], dim=1)
    values = (torch.randn(1, 1, rows, 8) + 300).half()
    mean = neighbourhood_mean(values, grid_neighbours(coords, 1))
    inside = values[0, 0].double().reshape(400, 500, 8)
    near = inside[:3, :3].sum((0, 1)) - inside[1, 1]
    torch.testing.assert_close(mean[0, 0, 501].double(), near / 8, rtol=1e-6, atol=0)
    assert mean.isfinite().all()


def test_wrong_sizes_are_refused_and_shown() -> None:
    graph, y = graph_of(37), torch.zeros(2, 3, 37, 4)
    with unchecked():
        with pytest.raises(ValueError, match=r"graph \(37, 8\) does not fit patches \(2, 36\).*\(36, 'K'\)"):
            neighbourhood_mean(y[:, :, :36], graph)
        with pytest.raises(ValueError, match=r"values \(37,\) must be"):
            neighbourhood_mean(y[0, 0, :, 0], graph)
        with pytest.raises(ValueError, match=r"y \(2, 3, 37, 4\) and axis \(2, 1, 37, 4\)"):
            redundancy_projection(y, y[:, :1], y[..., 0])
        with pytest.raises(ValueError, match=r"beta \(2, 1, 37\)"):
            redundancy_projection(y, y, y[:, :1, :, 0])
        with pytest.raises(ValueError, match=r"y \(2, 3, 37, 4\) and v \(2, 3, 36, 4\)"):
            exclusive_projection(y, y[:, :, :36])


def test_nearest_graphs_are_averaged_too() -> None:
    coords, values = torch.randint(0, 100, (20, 2)), torch.randn(20, 3, dtype=torch.float64)
    graph = nearest_neighbours(coords, 10, 25, weighting="gaussian", sigma=2)
    assert_all_close({"r": neighbourhood_mean(values, graph)}, {"r": neighbourhood_mean_naive(values, *graph)}, 1e-12)
