"""Local homogeneity: the mean cosine with the neighbours, whatever precision and chunks it is computed in."""

import pytest
import torch
from torch import Tensor

from nnunet_gdla.ops import _gather, homogeneity
from nnunet_gdla.ops.neighbours import NeighbourGraph, grid_neighbours, local_homogeneity, nearest_neighbours, shuffled
from tests.reference.compare import assert_all_close, relative_error
from tests.reference.neighbours import local_homogeneity_naive
from tests.srp_golden import SrpFile, srp_params
from tests.unchecked import unchecked

HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


def patches(number: int = 60, *, width: int = 19, cells: int = 9) -> tuple[Tensor, NeighbourGraph]:
    coords = torch.randint(-cells, cells, (number, 2))
    return torch.randn(number, width) + 0.5, grid_neighbours(coords, 2)


@pytest.mark.parametrize("golden", srp_params("h_local"))
@pytest.mark.parametrize("window", [3, 5])
def test_it_is_the_golden_one(golden: SrpFile, window: int) -> None:
    tensors = golden.tensors
    graph = grid_neighbours(tensors["coords"], tensors["stride"].item(), window=window)
    assert torch.equal(graph.count, tensors[f"win{window}_count"])
    result = local_homogeneity(tensors["features"], graph)
    assert_all_close({"h": result}, {"h": tensors[f"win{window}_h_local"]}, 5e-6)


@pytest.mark.parametrize("kind", ["grid", "ring", "weighted", "nearest", "shuffled", "none"])
def test_it_equals_naive_for_every_kind_of_graph(kind: str) -> None:
    coords = torch.randint(0, 9, (50, 2)) if kind != "none" else 10 * torch.arange(50)[:, None].expand(-1, 2)
    graph = {
        "grid": grid_neighbours(coords, 1),
        "ring": grid_neighbours(coords, 1, window=5, shell="ring"),
        "weighted": grid_neighbours(coords, 1, weighting="gaussian"),  # weights are not used
        "nearest": nearest_neighbours(coords, 1, 8),
        "shuffled": shuffled(grid_neighbours(coords, 1), 1),
        "none": grid_neighbours(coords, 1),
    }[kind]
    features = torch.randn(50, 33, dtype=torch.float64)
    expected = local_homogeneity_naive(features, graph.index, graph.mask)
    assert_all_close({"h": local_homogeneity(features, graph)}, {"h": expected}, 1e-12)
    assert_all_close({"h": local_homogeneity(features.float(), graph)}, {"h": expected}, 1e-6)


@HALVES
def test_half_precision_features_are_taken_as_they_are(dtype: torch.dtype) -> None:
    features, graph = patches()
    rounded = features.to(dtype)
    result = local_homogeneity(rounded, graph)
    assert result.dtype == torch.float32
    assert relative_error(result, local_homogeneity_naive(rounded, graph.index, graph.mask)) < 1e-6


@pytest.mark.parametrize("kind", ["float16", "float32", "transposed"])
def test_chunks_change_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    features, graph = patches(width=300)
    features = {"float16": features.half(), "float32": features, "transposed": features.t().contiguous().t()}[kind]
    expected = local_homogeneity(features, graph)
    monkeypatch.setattr(_gather, "CHUNK_CPU", 1000)
    monkeypatch.setattr(homogeneity, "FEATURES_AT_ONCE", 1)
    assert_all_close({"h": local_homogeneity(features, graph)}, {"h": expected}, 1e-6)


def test_a_zero_feature_has_cosine_zero_and_a_lonely_patch_zero() -> None:
    features = torch.tensor([[1.0, 0], [0, 0], [1, 1], [5, 5]])
    graph = grid_neighbours(torch.tensor([[0, 0], [1, 0], [1, 1], [9, 9]]), 1)
    expected = torch.tensor([0.5**0.5 / 2, 0, 0.5**0.5 / 2, 0])
    torch.testing.assert_close(local_homogeneity(features, graph), expected)


def test_equal_features_have_one_and_opposite_ones_minus_one() -> None:
    coords = torch.cartesian_prod(torch.arange(4), torch.arange(2))
    same = torch.full((8, 40), 1000.0).half()
    torch.testing.assert_close(local_homogeneity(same, grid_neighbours(coords, 1)), torch.ones(8))
    pair = torch.tensor([[1.0, 2], [-3, -6]])
    torch.testing.assert_close(local_homogeneity(pair, grid_neighbours(coords[:2], 1)), -torch.ones(2))


@pytest.mark.parametrize("scale", [1e-9, 1e15])
def test_the_size_of_features_does_not_matter(scale: float) -> None:
    features, graph = patches()
    assert_all_close({"h": local_homogeneity(scale * features, graph)}, {"h": local_homogeneity(features, graph)}, 1e-6)


def test_what_nobody_sees_reaches_nobody() -> None:
    features, graph = patches(cells=16)
    seen = set(graph.index.flatten().tolist())
    hidden = [row for row in range(60) if row not in seen]
    expected = local_homogeneity(features, graph)
    features[hidden] = torch.nan
    result = local_homogeneity(features, graph)
    alone = graph.count == 0
    assert alone.any()
    assert (result[alone] == 0).all()
    others = torch.ones(60, dtype=torch.bool)
    others[hidden] = False
    assert others.any()
    assert torch.equal(result[others], expected[others])


def test_row_0_reaches_only_its_neighbours() -> None:
    # empty slots have to read something
    features, graph = patches()
    features[0] = torch.nan
    sees = (graph.index == 0).any(-1)
    result = local_homogeneity(features, graph)
    assert result[1:][~sees[1:]].isfinite().all()


def test_a_batch_is_its_elements_with_own_or_shared_graph() -> None:
    coords = torch.randint(0, 9, (3, 40, 2))
    features, graph = torch.randn(3, 40, 7), grid_neighbours(coords, 1)
    both = local_homogeneity(features, graph)
    shared = NeighbourGraph(*(part[0] for part in graph))
    with_shared = local_homogeneity(features, shared)
    for number in range(3):
        own = NeighbourGraph(*(part[number] for part in graph))
        assert torch.equal(both[number], local_homogeneity(features[number], own))
        assert torch.equal(with_shared[number], local_homogeneity(features[number], shared))


def test_the_order_of_patches_does_not_matter() -> None:
    coords = torch.cartesian_prod(torch.arange(8), torch.arange(8))
    features, order = torch.randn(64, 12), torch.randperm(64)
    straight = local_homogeneity(features, grid_neighbours(coords, 1))
    assert torch.equal(local_homogeneity(features[order], grid_neighbours(coords[order], 1)), straight[order])


def test_it_carries_no_gradient() -> None:
    features, graph = patches()
    assert not local_homogeneity(features.requires_grad_(), graph).requires_grad


@pytest.mark.parametrize("rows", [0, 1])
def test_no_patch_and_one_patch(rows: int) -> None:
    graph = grid_neighbours(torch.zeros(rows, 2), 1)
    assert local_homogeneity(torch.ones(rows, 5).half(), graph).tolist() == [0.0] * rows


def test_a_graph_of_other_patches_is_refused() -> None:
    features, graph = patches()
    with unchecked(), pytest.raises(ValueError, match=r"graph \(60, 8\) does not fit patches \(59,\)"):
        local_homogeneity(features[:59], graph)
    batched = NeighbourGraph(*(part.expand(2, -1, -1) for part in graph))
    with unchecked(), pytest.raises(ValueError, match=r"graph \(2, 60, 8\) does not fit patches \(3, 60\)"):
        local_homogeneity(features.expand(3, -1, -1), batched)
    broken = graph._replace(mask=graph.mask[:, :7])
    with unchecked(), pytest.raises(ValueError, match=r"one shape: .*mask \(60, 7\)"):
        local_homogeneity(features, broken)
