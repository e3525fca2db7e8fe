"""Strides found in coordinates, and lattices fitted to them, in all ways in which coordinates are less than perfect."""

from collections.abc import Callable
from typing import Final

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nnunet_gdla.mil.slides import cap_rows, infer_stride, random_rows
from nnunet_gdla.mil.slides.lattice import fit_lattice, share_with_neighbour, snap_to_lattice
from nnunet_gdla.mil.slides.stride import estimate_stride
from nnunet_gdla.ops.neighbours import grid_neighbours
from tests.mil.slide_files import Array, grid
from tests.paths import SHARED
from tests.srp_golden import SrpFile, srp_params

STRIDES: Final = (64, 224, 256, 512, 1024)
REAL: Final = sorted((SHARED / "data" / "wsi" / "tcga_lihc_coords").glob("*.h5"))


def tissue(rng: np.random.Generator, share: float) -> Array:
    """Part of a rectangle."""
    cells = grid(int(rng.integers(10, 50)), int(rng.integers(10, 50)))
    return cells[rng.random(len(cells)) < share]


DISTURBED: Final[dict[str, tuple[Callable[[np.random.Generator, Array, int], Array], float]]] = {
    "clean": (lambda rng, cells, s: cells * s + rng.integers(-9000, 300000, 2), 0.0),
    "jitter of 4 %": (lambda rng, cells, s: cells * s + rng.normal(0, 0.04 * s, cells.shape), 0.01),
    "jitter of a pixel": (lambda rng, cells, s: cells * s + rng.integers(-1, 2, cells.shape), 0.005),
    "jitter of three pixels": (lambda rng, cells, s: cells * s + rng.integers(-3, 4, cells.shape), 0.01),
    "checkerboard": (lambda rng, cells, s: cells[cells.sum(1) % 2 == 0] * s, 0.0),
    "half missing": (lambda rng, cells, s: cells[rng.random(len(cells)) < 0.5] * s, 0.0),
    "duplicates": (lambda rng, cells, s: np.repeat(cells, 2, 0) * s, 0.0),
    "three shifted lattices": (
        lambda rng, cells, s: cells * s + rng.integers(0, s, (3, 2))[cells[:, 0] % 9 // 3],
        0.0,
    ),
    "unsorted": (lambda rng, cells, s: rng.permutation(cells * s), 0.0),
}


@pytest.mark.parametrize("name", DISTURBED)
@pytest.mark.parametrize("seed", range(6))
def test_a_stride_is_found_in_disturbed_coordinates(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    stride = STRIDES[seed % len(STRIDES)]
    disturb, tolerance = DISTURBED[name]
    xy = disturb(rng, tissue(rng, 0.9), stride)
    assert infer_stride(xy) == pytest.approx(stride, rel=tolerance, abs=0)


@pytest.mark.parametrize("stride", [497.3, 255.6, 1023.9])
def test_a_stride_between_integers_is_found_to_a_hundredth(stride: float) -> None:
    xy = np.rint(grid(300, 40) * stride).astype(int)
    assert infer_stride(xy) == pytest.approx(stride, abs=0.01)


def test_micrometres_in_float32_and_grid_indices() -> None:
    assert infer_stride((grid(30, 20) * 448 * 0.2527).astype(np.float32)) == pytest.approx(448 * 0.2527, rel=1e-4)
    assert infer_stride(grid(30, 20)) == 1.0


def test_a_thinly_filled_lattice_is_found() -> None:
    cells = np.random.default_rng(0).permutation(grid(40, 40))[:60]
    assert infer_stride(cells * 512) == 512


@pytest.mark.parametrize("xy", [[[5, 5]], [[5, 5], [5, 5]], [[0, 0], [4601, 3583]]], ids=["one", "twice", "far"])
def test_without_neighbours_there_is_no_stride(xy: list[list[int]]) -> None:
    assert estimate_stride(np.array(xy, dtype=float)) == (1.0, 0)


def test_random_points_have_no_stride() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        cloud = rng.uniform(0, 40000, (int(rng.integers(20, 400)), 2))
        for xy in (cloud, np.rint(cloud)):
            assert share_with_neighbour(xy, infer_stride(xy)) < 0.1


@given(st.integers(0, 2**32 - 1), st.sampled_from([64.0, 255.6, 512.0]), st.booleans())
def test_snapped_coordinates_have_the_cells_that_were_meant(seed: int, stride: float, whole: bool) -> None:
    rng = np.random.default_rng(seed)
    cells = grid(9, 7)[rng.permutation(63)[:50]]
    origin = rng.uniform(-3000, 3000, 2)
    xy = origin + cells * stride + rng.uniform(-0.2 * stride, 0.2 * stride, cells.shape)
    xy = np.rint(xy) if whole else xy
    snapped = snap_to_lattice(xy, stride, whole_pixels=whole)
    found = np.floor_divide(snapped.coords, snapped.stride)
    assert np.ptp(found - cells, axis=0).max() == 0
    if snapped.residual:
        assert np.abs(snapped.coords - xy).max() <= 0.25 * stride + 1
        assert not whole or np.array_equal(snapped.coords, np.rint(snapped.coords))


def test_clean_and_shifted_lattices_stay_where_they_are() -> None:
    cells = grid(20, 20)
    shifted = np.where(cells[:, :1] < 10, cells * 512 + 100, cells * 512 + 200).astype(float)
    for xy in (cells * 512.0 + 77, shifted):
        snapped = snap_to_lattice(xy, 512.0, whole_pixels=True)
        assert snapped.residual == 0
        np.testing.assert_array_equal(snapped.coords, xy)


def test_two_patches_are_never_moved_into_one_cell() -> None:
    xy = np.array([[-562, 0], [-50, 3], [50, -3], [562, 0]], dtype=float)
    np.testing.assert_array_equal(snap_to_lattice(xy, 512.0, whole_pixels=True).coords, xy)


def test_a_fit_follows_a_stride_that_was_given_a_little_wrong() -> None:
    xy = np.rint(grid(200, 10) * 497.3)
    fit = fit_lattice(xy, 497.0)
    assert fit.stride == pytest.approx(497.3, abs=0.01)
    assert fit.residual < 0.01


@given(st.integers(0, 2**32 - 1), st.integers(1, 60))
def test_the_share_with_a_neighbour_is_that_of_the_graph(seed: int, patches: int) -> None:
    rng = np.random.default_rng(seed)
    xy = rng.integers(-20, 20, (patches, 2)) * 100 * rng.choice([1, 10**9])
    graph = grid_neighbours(torch.from_numpy(xy), 100.0)
    assert share_with_neighbour(xy.astype(float), 100.0) == pytest.approx(graph.mask.any(1).double().mean().item())


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem[:12])
def test_real_lattices(path: str) -> None:
    with h5py.File(path) as file:
        xy = file["coords"][:]
    stride = infer_stride(xy)
    assert stride == 512
    snapped = snap_to_lattice(xy.astype(float), stride, whole_pixels=True)
    np.testing.assert_array_equal(snapped.coords, xy)
    neighbours = grid_neighbours(torch.from_numpy(xy), stride).mask.sum(1).double().mean().item()
    assert 7.3 < neighbours < 7.9


def test_there_are_nine_real_lattices() -> None:
    if not SHARED.is_dir():
        pytest.skip(f"no folder {SHARED} with real lattices")
    assert len(REAL) == 9


@pytest.mark.parametrize("golden", srp_params("subsample"))
def test_the_published_caps(golden: SrpFile) -> None:
    arrays = golden.arrays
    cap, coords = int(arrays["cap"]), arrays["coords"]
    rows = cap_rows(golden.tensors["coords"], cap)
    np.testing.assert_array_equal(rows.numpy(), arrays["uniform_rows"])
    np.testing.assert_array_equal(coords[rows.numpy()], arrays["uniform_coords"])
    drawn = random_rows(len(coords), cap, seed=int(arrays["random_seed"]), key=str(arrays["random_key"]))
    np.testing.assert_array_equal(drawn.numpy(), arrays["random_rows"])


def test_a_cap_that_does_not_act_keeps_the_order_of_the_file() -> None:
    xy = np.random.default_rng(0).permutation(grid())
    assert cap_rows(xy, 30).tolist() == list(range(30))
    assert random_rows(30, 30, seed=1, key="a").tolist() == list(range(30))
    assert len(cap_rows(xy, 1)) == 1
    for refuse in (lambda: cap_rows(xy, 0), lambda: random_rows(30, 0, seed=1, key="a")):
        with pytest.raises(ValueError, match="keeps nothing"):
            refuse()
