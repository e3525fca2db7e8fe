"""Neighbour graphs: the golden ones, the naive ones on any coordinates, and what they refuse."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nnunet_gdla.ops import _lattice
from nnunet_gdla.ops.neighbours import NeighbourGraph, Shell, Weighting, grid_neighbours, nearest_neighbours, shuffled
from tests.reference.compare import assert_all_close
from tests.reference.neighbours import grid_neighbours_naive, nearest_neighbours_naive, shuffled_naive
from tests.srp_golden import SrpFile, srp_params
from tests.unchecked import unchecked

Options = dict[str, Any]
Points = list[tuple[float, float]]
WEIGHTINGS = ("uniform", "gaussian", "inverse_distance")
GOLDEN_SIGMA = 1.5


def same(graph: NeighbourGraph, expected: tuple[Tensor, Tensor, Tensor]) -> None:
    assert torch.equal(graph.index, expected[0])
    assert torch.equal(graph.mask, expected[1])
    torch.testing.assert_close(graph.weight, expected[2], rtol=1e-6, atol=0)
    assert graph.index.dtype == torch.int64
    assert graph.weight.dtype == torch.float32


def lattice(width: int, height: int, stride: int = 1) -> Tensor:
    return torch.cartesian_prod(torch.arange(width), torch.arange(height)) * stride


@pytest.mark.parametrize("golden", srp_params("graph"))
@pytest.mark.parametrize(("window", "shell"), [(3, "cumulative"), (5, "cumulative"), (5, "ring")])
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_grid_is_the_golden_one(golden: SrpFile, window: int, shell: Shell, weighting: Weighting) -> None:
    tensors, name = golden.tensors, f"win{window}_{shell}"
    graph = grid_neighbours(
        tensors["coords"],
        tensors["stride"].item(),
        window=window,
        shell=shell,
        weighting=weighting,
        sigma=GOLDEN_SIGMA,
    )
    assert torch.equal(graph.index, tensors[f"{name}_index"])
    assert torch.equal(graph.mask, tensors[f"{name}_mask"])
    assert_all_close({"weight": graph.weight}, {"weight": tensors[f"{name}_weight_{weighting}"]}, 5e-6)


@pytest.mark.parametrize("golden", srp_params("graph"))
def test_counts_shuffled_and_nearest_are_the_golden_ones(golden: SrpFile) -> None:
    tensors, stride = golden.tensors, golden.tensors["stride"].item()
    assert torch.equal(grid_neighbours(tensors["coords"], stride, window=7).count, tensors["win7_cumulative_count"])
    control = shuffled(grid_neighbours(tensors["coords"], stride), int(tensors["win3_shuffled_seed"]))
    assert torch.equal(control.index, tensors["win3_shuffled_index"])
    assert torch.equal(control.mask, tensors["win3_shuffled_mask"])
    slots = tensors["nearest_index"].shape[1]
    nearest = nearest_neighbours(tensors["nearest_coords"], stride, slots, weighting="gaussian", sigma=GOLDEN_SIGMA)
    assert torch.equal(nearest.index, tensors["nearest_index"])
    assert torch.equal(nearest.mask, tensors["nearest_mask"])
    assert_all_close({"weight": nearest.weight}, {"weight": tensors["nearest_weight_gaussian"]}, 5e-6)


NEAR = st.integers(-6, 6)
FAR = st.integers(-(2**63), 2**63 - 1)
SPARSE = st.sampled_from([-(2**62), -(10**9), -1, 0, 1, 2, 10**9, 10**9 + 1, 2**62])
whole = st.lists(st.tuples(*[st.one_of(NEAR, SPARSE, FAR)] * 2), min_size=1, max_size=25)
close = st.lists(st.tuples(NEAR, NEAR), min_size=1, max_size=25)
real = st.lists(st.tuples(*[st.floats(-1e4, 1e4)] * 2), min_size=1, max_size=20)
options = st.fixed_dictionaries(
    {
        "window": st.sampled_from([3, 5, 7]),
        "shell": st.sampled_from(["cumulative", "ring"]),
        "weighting": st.sampled_from(WEIGHTINGS),
        "sigma": st.sampled_from([0.7, 1, 2.5]),
    }
)


@settings(max_examples=150)
@given(coords=st.one_of(whole, close), stride=st.sampled_from([1, 2, 3, 256]), chosen=options)
def test_grid_equals_naive_for_whole_coordinates(coords: Points, stride: int, chosen: Options) -> None:
    xy = torch.tensor(coords)
    same(grid_neighbours(xy, stride, **chosen), grid_neighbours_naive(xy, stride, **chosen))
    assert torch.equal(grid_neighbours(xy, float(stride), **chosen).index, grid_neighbours(xy, stride, **chosen).index)


@settings(max_examples=150)
@given(coords=st.one_of(close, real), stride=st.sampled_from([0.1, 0.3, 1.0, 1.7, 497.3]), chosen=options)
def test_grid_equals_naive_for_real_coordinates_and_strides(coords: Points, stride: float, chosen: Options) -> None:
    xy = torch.tensor(coords, dtype=torch.float64)
    same(grid_neighbours(xy, stride, **chosen), grid_neighbours_naive(xy, stride, **chosen))


@settings(max_examples=60)
@given(coords=st.one_of(whole, close))
def test_sorted_keys_and_the_table_find_the_same(coords: Points) -> None:
    xy = torch.tensor(coords)
    expected = grid_neighbours(xy, 2, window=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_lattice, "TABLE_ENTRIES_PER_PATCH", 0)
        patch.setattr(_lattice, "SMALL_TABLE", 0)
        assert torch.equal(grid_neighbours(xy, 2, window=5).index, expected.index)


@settings(max_examples=100)
@given(coords=st.one_of(close, real), k=st.integers(1, 9), weighting=st.sampled_from(["uniform", "gaussian"]))
def test_nearest_equals_naive(coords: Points, k: int, weighting: Weighting) -> None:
    xy = torch.tensor(coords, dtype=torch.float64).round(decimals=2).float().double()
    found = nearest_neighbours(xy, 2.5, k, weighting=weighting)
    if all(value == int(value) for value in xy.flatten().tolist()):
        same(found, nearest_neighbours_naive(xy, 2.5, k, weighting=weighting))
    # rounded differences of real coordinates may swap neighbours that are equally far to 1e-12
    squared = (xy[:, None] - xy).square().sum(-1).sqrt()
    expected = squared.fill_diagonal_(torch.inf).sort(dim=-1).values[:, :k]
    chosen = squared.gather(1, found.index[:, : expected.shape[1]].clamp(min=0))
    finite = expected < torch.inf
    torch.testing.assert_close(chosen[finite], expected[finite], rtol=1e-9, atol=1e-9)


def test_nearest_is_the_same_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    coords = torch.randint(0, 30, (101, 2))
    expected = nearest_neighbours(coords, 1, 8)
    same(expected, nearest_neighbours_naive(coords, 1, 8))
    for at_once, rows in ((101 * 7, 512), (50, 16), (1 << 20, 3)):
        monkeypatch.setattr(_lattice, "DISTANCES_AT_ONCE", at_once)
        monkeypatch.setattr(_lattice, "ROWS_AT_ONCE", rows)
        assert torch.equal(nearest_neighbours(coords, 1, 8).index, expected.index)


def test_patches_on_one_spot_have_a_finite_inverse_distance() -> None:
    graph = nearest_neighbours(torch.zeros(3, 2), 4, 5, weighting="inverse_distance")
    assert graph.index.tolist() == [[1, 2, -1, -1, -1], [0, 2, -1, -1, -1], [0, 1, -1, -1, -1]]
    assert graph.weight.tolist() == [[1, 1, 0, 0, 0]] * 3


@settings(max_examples=60)
@given(coords=close, seed=st.integers(0, 2**32), window=st.sampled_from([3, 5]))
def test_shuffled_equals_naive_and_keeps_the_slots(coords: Points, seed: int, window: int) -> None:
    graph = grid_neighbours(torch.tensor(coords), 1, window=window, weighting="gaussian")
    control = shuffled(graph, seed)
    assert torch.equal(control.index, shuffled_naive(graph.index, graph.mask, seed))
    assert torch.equal(control.mask, graph.mask)
    assert torch.equal(control.weight, graph.weight)
    for i, row in enumerate(control.index.tolist()):
        others = [j for j in row if j >= 0]
        assert i not in others
        assert len(set(others)) == len(others)


@pytest.mark.parametrize("number_of_patches", [0, 1])
def test_no_patch_and_one_patch_have_no_neighbours(number_of_patches: int) -> None:
    coords = torch.zeros(number_of_patches, 2, dtype=torch.int64)
    for graph in (grid_neighbours(coords, 256), nearest_neighbours(coords, 256, 8)):
        assert graph.index.tolist() == [[-1] * 8] * number_of_patches
        assert not graph.mask.any()
        assert graph.weight.sum() == 0
        assert torch.equal(shuffled(graph, 0).index, graph.index)


def test_a_full_lattice_has_the_counts_of_its_geometry() -> None:
    for window, inner in ((3, 8), (5, 24), (7, 48)):
        graph = grid_neighbours(lattice(20, 30, 256), 256, window=window)
        assert graph.count.max() == inner
        assert (graph.count == inner).sum() == (20 - window + 1) * (30 - window + 1)
    assert grid_neighbours(lattice(4, 4), 1).count.tolist() == [3, 5, 5, 3, 5, 8, 8, 5, 5, 8, 8, 5, 3, 5, 5, 3]


@pytest.mark.parametrize("shift", [-3000, 7, 299_000 * 256])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32, torch.float64], ids=str)
def test_the_origin_and_the_dtype_of_coordinates_do_not_matter(shift: int, dtype: torch.dtype) -> None:
    xy = lattice(6, 5, 512)
    assert torch.equal(grid_neighbours((xy + shift).to(dtype), 512).index, grid_neighbours(xy, 512).index)


def test_more_columns_are_not_read() -> None:
    xy = lattice(4, 4)
    wide = torch.cat([xy, torch.full((16, 3), -7)], dim=1)
    assert torch.equal(grid_neighbours(wide, 1).index, grid_neighbours(xy, 1).index)
    assert torch.equal(nearest_neighbours(wide, 1, 4).index, nearest_neighbours(xy, 1, 4).index)


def test_of_duplicates_the_first_row_is_found_and_the_others_look() -> None:
    graph = grid_neighbours(torch.tensor([[0, 0], [1, 0], [0, 0]]), 1)
    assert [sorted(j for j in row if j >= 0) for row in graph.index.tolist()] == [[1], [0], [1]]


def test_permuted_rows_give_the_permuted_graph() -> None:
    xy = lattice(7, 9)[torch.randperm(63)[:40]]
    order = torch.randperm(40)
    place = torch.empty(40, dtype=torch.int64)
    place[order] = torch.arange(40)
    graph, permuted = grid_neighbours(xy, 1), grid_neighbours(xy[order], 1)
    renamed = torch.where(graph.mask, place[graph.index.clamp(min=0)], -1)
    assert torch.equal(permuted.index, renamed[order])


@pytest.mark.parametrize("find", [grid_neighbours, functools.partial(nearest_neighbours, k=8)], ids=["grid", "near"])
def test_a_batch_is_its_elements_and_masked_rows_are_nobody(find: Callable[..., NeighbourGraph]) -> None:
    coords = torch.randint(-9, 9, (3, 50, 2))
    mask = torch.rand(3, 50) < 0.7
    mask[2] = False
    both = find(coords, 2, mask=mask)
    for number in range(3):
        alone = find(coords[number], 2, mask=mask[number])
        kept = torch.nonzero(mask[number])[:, 0]
        for ours, theirs in zip(both, alone, strict=True):
            assert torch.equal(ours[number], theirs)
        assert not alone.mask[~mask[number]].any()
        small = find(coords[number][kept], 2)
        there = torch.where(small.mask, kept[small.index.clamp(min=0)], -1) if len(kept) else small.index
        assert torch.equal(alone.index[kept], there)


def test_a_batch_is_shuffled_as_its_elements() -> None:
    graph = grid_neighbours(torch.randint(0, 9, (2, 40, 2)), 1)
    both = shuffled(graph, 5)
    for number in range(2):
        alone = shuffled(NeighbourGraph(*(part[number] for part in graph)), 5)
        assert torch.equal(both.index[number], alone.index)


def test_far_fragments_do_not_need_memory_for_the_gap() -> None:
    near = lattice(50, 50, 256)
    coords = torch.cat([near, near + 2**55, near * torch.tensor([1, -1]) - 2**58])
    assert torch.equal(grid_neighbours(coords, 256).count, grid_neighbours(near, 256).count.repeat(3))
    diagonal = torch.arange(20_000)[:, None].expand(-1, 2)
    assert grid_neighbours(diagonal, 1).count.sum() == 2 * 19_999


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "zero stride": ({"stride": 0}, "stride must be a positive number, got 0"),
    "negative stride": ({"stride": -256.0}, "stride must be a positive number, got -256"),
    "stride NaN": ({"stride": math.nan}, "stride must be a positive number, got nan"),
    "infinite stride": ({"stride": math.inf}, "stride must be a positive number, got inf"),
    "even window": ({"window": 4}, "window must be odd and at least 3, got 4"),
    "small window": ({"window": 1}, "window must be odd and at least 3, got 1"),
    "shell": ({"shell": "disc"}, "(?s)'disc'.*'cumulative', 'ring'"),
    "weighting": ({"weighting": "linear"}, "(?s)'linear'.*'uniform', 'gaussian', 'inverse_distance'"),
    "sigma": ({"sigma": 0.0}, "sigma must be a positive number of cells, got 0"),
    "NaN": ({"coords": torch.tensor([[0.0, 1], [0, math.nan]])}, "coords must be finite, row 1 is not"),
    "infinite": ({"coords": torch.tensor([[[0.0, math.inf]]])}, r"coords must be finite, row \(0, 0\) is not"),
    "huge": ({"coords": torch.tensor([[1e300, 0.0]], dtype=torch.float64)}, "below 2\\^62"),
    "one column": ({"coords": torch.zeros(3, 1)}, r"coords \(3, 1\) must be"),
    "mask": ({"mask": torch.ones(3, dtype=torch.bool)}, r"mask \(3,\) torch.bool must be \(4,\)"),
    "float mask": ({"mask": torch.ones(4)}, r"mask \(4,\) torch.float32 must be \(4,\) torch.bool"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments_are_refused_with_value_and_choices(wrong: str) -> None:
    options, message = WRONG[wrong]
    arguments: dict[str, Any] = {"coords": torch.zeros(4, 2), "stride": 256, **options}
    with unchecked(), pytest.raises(ValueError, match=message):
        grid_neighbours(**arguments)
    if not {"window", "shell"} & set(options):
        with unchecked(), pytest.raises(ValueError, match=message):
            nearest_neighbours(**arguments, k=8)


def test_nearest_needs_a_slot_and_shuffled_enough_patches() -> None:
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        nearest_neighbours(torch.zeros(4, 2), 1, 0)
    full = NeighbourGraph(torch.zeros(1, 2, dtype=torch.int64), torch.ones(1, 2, dtype=torch.bool), torch.ones(1, 2))
    with pytest.raises(ValueError, match="2 neighbours, but there are only 0 other patches"):
        shuffled(full, 0)


def test_a_graph_moves_as_a_whole() -> None:
    graph = grid_neighbours(lattice(3, 3), 1).to("meta")
    assert {part.device.type for part in graph} == {"meta"}


def test_the_shuffled_draw_is_that_of_the_numpy_generator() -> None:
    graph = grid_neighbours(lattice(3, 3), 1)
    expected = np.random.default_rng(3).choice(8, size=3, replace=False)
    assert shuffled(graph, 3).index[0][graph.mask[0]].tolist() == [j + 1 for j in expected.tolist()]
