"""Slides of several lattices, and rows sorted along them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.bundle import Bundle
from nnunet_gdla.mil.bundle_info import BundleInfo
from nnunet_gdla.mil.check import check_cohort
from nnunet_gdla.mil.cohort import folder_cohort
from nnunet_gdla.mil.heatmap import score_slide
from nnunet_gdla.mil.models import build_model
from nnunet_gdla.mil.neighbours import lattice_graph
from nnunet_gdla.mil.prepare import prepare
from nnunet_gdla.mil.slides import Slide, read_slide
from nnunet_gdla.mil.slides.overlap import separate_lattices
from nnunet_gdla.ops.neighbours import NeighbourGraph, grid_neighbours
from tests.mil.slide_files import Array, bag, grid, write_h5
from tests.mil.small_cohorts import make_cohort, small_config
from tests.paths import SHARED


def two_lattices(shift: tuple[int, int], stride: int = 512) -> tuple[Array, Array]:
    """A rectangle of 6 x 5 patches, and one of 4 x 4 that begins in its last column; which of them a patch is of."""
    first, second = grid(6, 5) * stride, grid(4, 4) * stride + np.array([5 * stride, 0]) + np.array(shift)
    return np.concatenate([first, second]), np.repeat([0, 1], [len(first), len(second)])


def pairs(graph: NeighbourGraph) -> set[tuple[int, int]]:
    rows, slots = graph.mask.nonzero(as_tuple=True)
    return set(zip(rows.tolist(), graph.index[rows, slots].tolist(), strict=True))


def graph_of(slide: Slide, window: int = 3) -> NeighbourGraph:
    assert slide.coords is not None
    assert slide.stride is not None
    graph = lattice_graph(slide.coords, slide.stride, slide.lattices, window=window)
    return NeighbourGraph(*(part[0] for part in graph))


def alone(xy: Array, member: Array, stride: float, window: int = 3) -> set[tuple[int, int]]:
    """The pairs of each lattice by itself."""
    found: set[tuple[int, int]] = set()
    for label in np.unique(member):
        rows = np.flatnonzero(member == label)
        own = grid_neighbours(torch.from_numpy(xy[rows]), stride, window=window)
        found |= {(int(rows[a]), int(rows[b])) for a, b in pairs(own)}
    return found


@pytest.mark.parametrize("shift", [(100, 0), (0, 100), (7, 490), (300, 200), (256, 256), (-60, 30)], ids=str)
@pytest.mark.parametrize("window", [3, 5])
def test_m6_overlapping_lattices_have_a_graph_each(shift: tuple[int, int], window: int, tmp_path: Path) -> None:
    xy, member = two_lattices(shift)
    order = np.random.default_rng(0).permutation(len(xy))
    xy, member = xy[order], member[order]
    slide = read_slide(write_h5(tmp_path / "s.h5", {"coords": xy, "features": bag(len(xy))}))
    found = pairs(graph_of(slide, window))
    assert found == {(b, a) for a, b in found}
    assert found == alone(xy, member, 512, window)
    torch.testing.assert_close(slide.coords, torch.from_numpy(xy))


def test_m6_a_stride_that_is_no_integer(tmp_path: Path) -> None:
    stride = 446.43
    first, second = np.rint(grid(9, 8) * stride), np.rint(grid(7, 7) * stride + [8 * stride + 150, 0.4 * stride])
    xy, member = np.concatenate([first, second]).astype(np.int64), np.repeat([0, 1], [72, 49])
    slide = read_slide(write_h5(tmp_path / "s.h5", {"coords": xy, "features": bag(len(xy))}), stride=stride)
    found = pairs(graph_of(slide))
    assert found == {(b, a) for a, b in found}
    assert not any(member[a] != member[b] for a, b in found)


def test_m6_check_counts_what_overlaps(tmp_path: Path) -> None:
    xy, _ = two_lattices((100, 0))
    write_h5(tmp_path / "s.h5", {"coords": xy, "features": bag(len(xy))})
    lines = check_cohort(folder_cohort(tmp_path)).lines
    said = "PASS 8 patches overlap those of another lattice (2 lattices): each lattice keeps its neighbours to itself"
    assert f"{said}: 1 slide: s" in lines


def test_m6_lattices_that_do_not_overlap_stay_as_they_were() -> None:
    apart = np.concatenate([grid(6, 5) * 512, grid(4, 4) * 512 + np.array([6 * 512 + 100, 0])]).astype(np.float64)
    assert separate_lattices(apart, 512.0) is None
    bricks = np.array([[512 * x + 256 * (y % 2), 512 * y] for x in range(6) for y in range(6)], dtype=np.float64)
    assert separate_lattices(bricks, 512.0) is None
    jittered = grid(8, 8) * 512 + np.random.default_rng(0).uniform(-40, 40, (64, 2))
    assert separate_lattices(jittered, 512.0) is None


def test_m6_a_cap_and_a_choice_of_rows_keep_the_lattices(tmp_path: Path) -> None:
    xy, member = two_lattices((100, 60))
    path = write_h5(tmp_path / "s.h5", {"coords": xy, "features": bag(len(xy))})
    slide = read_slide(path, max_patches=30)
    rows = [int(np.flatnonzero((xy == place).all(1))[0]) for place in slide.coords.numpy()]
    assert slide.lattices is not None
    assert slide.lattices.tolist() == member[rows].tolist()
    whole = read_slide(path)
    assert whole.take(torch.tensor([40, 3])).lattices.tolist() == member[[40, 3]].tolist()


@pytest.mark.parametrize("name", ["TCGA-2Y-A9GU", "TCGA-2Y-A9GX"])
def test_m6_real_contours_that_overlap(name: str, tmp_path: Path) -> None:
    found = sorted((SHARED / "data" / "wsi" / "tcga_lihc_coords").glob(f"{name}*.h5"))
    if not found:
        pytest.skip("no coordinates of real slides beside the checkout")
    import h5py

    with h5py.File(found[0]) as file:
        xy = file["coords"][...]
    slide = read_slide(write_h5(tmp_path / "s.h5", {"coords": xy, "features": bag(len(xy), 2)}))
    edges = pairs(graph_of(slide))
    assert edges == {(b, a) for a, b in edges}
    assert edges == alone(xy, np.unique(xy % 512, axis=0, return_inverse=True)[1].ravel(), 512)


def small_bundle(model: str, sort_rows: str | None) -> Bundle:
    kwargs = {"width": 24, "num_heads": 2, "num_landmarks": 4} | ({"depth": 3} if model != "transmil" else {})
    info = BundleInfo("classification", model, kwargs, 8, 2, ("a", "b"), sort_rows=sort_rows)
    torch.manual_seed(0)
    net = build_model(model, 8, 2, **kwargs).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return Bundle(info, (net,), torch.device("cpu"))


@pytest.mark.parametrize("model", ["slide_transformer", "transmil"])
@pytest.mark.parametrize("cap", [None, 40])
def test_m12_sorted_rows_make_the_answer_independent_of_their_order(
    model: str, cap: int | None, tmp_path: Path
) -> None:
    xy, _ = two_lattices((100, 60))
    features, order = bag(len(xy)), np.random.default_rng(1).permutation(len(xy))
    one = write_h5(tmp_path / "one.h5", {"coords": xy, "features": features})
    other = write_h5(tmp_path / "other.h5", {"coords": xy[order], "features": features[order]})
    answers: dict[str | None, list[Tensor]] = {}
    for sort in (None, "lattice"):
        bundle = small_bundle(model, sort)
        options = bundle.info.read_options() | {"max_patches": cap}
        answers[sort] = [torch.tensor(list(bundle.predict(read_slide(p, **options)).values())) for p in (one, other)]
    assert torch.equal(*answers["lattice"])
    if cap is None:
        assert not torch.allclose(*answers[None])
        scores = [score_slide(small_bundle(model, "lattice"), path).attention for path in (one, other)]
        np.testing.assert_array_equal(scores[0][order], scores[1])


def test_m12_files_without_coordinates_cannot_be_sorted(tmp_path: Path) -> None:
    path = write_h5(tmp_path / "s.h5", {"features": bag(6)})
    with pytest.raises(UserError, match="no coordinates by which rows could be sorted"):
        read_slide(path, need_coords=False, sort_rows="lattice")


def test_m12_check_says_once_which_models_depend_on_the_order(tmp_path: Path) -> None:
    make_cohort(tmp_path, "classification")
    for model, sort, expected in (("slide", None, 1), ("slide", "lattice", 0), ("abmil", None, 0)):
        kwargs = {"name": "abmil"} if model == "abmil" else None
        config = small_config(tmp_path, "classification", model=kwargs)
        config.data.sort_rows = sort
        lines: list[str] = []
        prepared = prepare(config, say=lines.append)
        assert sum("data.sort_rows: lattice sorts them" in line for line in lines) == expected
        assert prepared.info.sort_rows == sort
