"""Neighbour graphs where the stride is unknown or the lattice is degenerate, against brute force.

Kinds of bug: smallest difference of sorted coordinates as stride, a division by zero where nobody has a neighbour, an
origin or sign that shifts cells, jitter or a stride between two integers that tears neighbours apart.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.slides import read_slide
from nnunet_gdla.ops.neighbours import grid_neighbours, local_homogeneity
from tests.mil.adapters_data import GRAPH, STRIDE
from tests.mil.slide_files import Array, bag, grid, write_h5

S: Final = 512
FULL: Final = grid() * S
RNG: Final = np.random.default_rng(0)

# coordinates, and the stride where there is a right answer
CASES: Final[dict[str, tuple[Array, float | None]]] = {
    "plain": (FULL, S),
    "single patch": (FULL[:1], None),
    "two far patches": (np.array([[0, 0], [9 * S, 7 * S]]), None),
    "one column": (FULL[::6], S),
    "one row": (FULL[:6], S),
    "checkerboard": (FULL[(FULL.sum(1) // S) % 2 == 0], S),
    "sparse: no two adjacent": (FULL[(FULL // S % 3 == 0).all(1)], None),
    "offset origin": (np.add(FULL, [7, 1333]), S),
    "50 % overlap": (grid(8, 8) * (S // 2), S // 2),
    "anisotropic step": (FULL * [1, 2], S),
    "20 px jitter": (FULL + np.random.default_rng(0).normal(0, 20, FULL.shape), S),
    "float stride 497.3": (np.rint(FULL / S * 497.3), 497.3),
    "duplicate rows": (np.repeat(FULL, 2, 0), S),
    "negative coordinates": (FULL - 3000, S),
    "300k wide slide": (np.add(FULL, [299000, 0]), S),
    "unsorted": (np.random.default_rng(1).permutation(FULL), S),
}


def oracle(xy: Array, stride: float) -> Array:
    """Who is whose neighbour on one lattice, pair by pair."""
    steps = (xy[None] - xy[:, None]) / stride
    whole = np.rint(steps)
    near = np.abs(whole).max(-1)
    return (near == 1) & (np.abs(steps - whole).max(-1) < 0.25)


def matrix(index: Array, mask: Array) -> Array:
    rows = np.arange(len(index))[:, None].repeat(index.shape[1], 1)
    adjacent = np.zeros((len(index), len(index)), bool)
    adjacent[rows[mask], index[mask]] = True
    return adjacent


@pytest.mark.parametrize("name", [name for name, (_, true) in CASES.items() if true is not None])
def test_the_stride_is_found(name: str) -> None:
    xy, true = CASES[name]
    assert true is not None
    assert STRIDE(xy) == pytest.approx(true, rel=0.02 if name in ("20 px jitter", "float stride 497.3") else 0)


@pytest.mark.parametrize("name", [name for name in CASES if name != "duplicate rows"])
def test_the_graph_is_that_of_the_oracle(name: str) -> None:
    xy, true = CASES[name]
    adjacent = matrix(*GRAPH(xy, true or S))
    np.testing.assert_array_equal(adjacent, oracle(xy.astype(float), true or S))
    np.testing.assert_array_equal(adjacent, adjacent.T)


@pytest.mark.parametrize("name", [name for name in CASES if name != "duplicate rows"])
def test_the_graph_of_a_slide_on_disk_is_that_of_the_oracle(tmp_path: Path, name: str) -> None:
    """The whole way: stride from the coordinates, moved onto the lattice where needed."""
    xy, true = CASES[name]
    path = write_h5(tmp_path / "a.h5", {"coords": xy, "features": bag(len(xy))})
    options: dict[str, Any] = {} if true is not None else {"stride": float(S), "allow_isolated": True}
    if true is None and len(xy) > 1:
        with pytest.warns(UserWarning, match=f"0% of {len(xy)} patches have a neighbour"):
            slide = read_slide(path, **options)
    else:
        slide = read_slide(path, **options)
    assert slide.coords is not None
    assert slide.stride is not None
    graph = grid_neighbours(slide.coords, slide.stride)
    adjacent = matrix(graph.index.numpy(), graph.mask.numpy())
    np.testing.assert_array_equal(adjacent, oracle(xy.astype(float), true or S))
    moved = name in ("20 px jitter", "float stride 497.3")
    assert any("moved onto it" in note for note in slide.notes) == moved


def test_of_duplicates_the_first_row_wins() -> None:
    xy, true = CASES["duplicate rows"]
    assert true is not None
    adjacent = matrix(*GRAPH(xy, true))
    first = matrix(*GRAPH(FULL, true))
    np.testing.assert_array_equal(adjacent[:, ::2], first.repeat(2, 0))
    assert not adjacent[:, 1::2].any()


def test_nobody_has_a_neighbour_and_nothing_breaks() -> None:
    xy = torch.from_numpy(FULL * 3)
    graph = grid_neighbours(xy, float(S))
    assert not graph.mask.any()
    assert torch.equal(local_homogeneity(torch.from_numpy(bag(30)), graph), torch.zeros(30))


@pytest.mark.parametrize("given", [None, 170.0], ids=["stated in the file", "given"])
def test_a_wrong_stride_is_refused(tmp_path: Path, given: float | None) -> None:
    attributes = {"patch_size_level0": 170} if given is None else {}
    path = write_h5(tmp_path / "a.h5", {"coords": FULL, "features": bag(30)}, on_file=attributes)
    with pytest.raises(UserError, match=r"170.*512"):
        read_slide(path, stride=given)


def test_a_guess_that_leaves_patches_alone_is_refused(tmp_path: Path) -> None:
    cloud = RNG.integers(0, 100000, (40, 2))
    path = write_h5(tmp_path / "a.h5", {"coords": cloud, "features": bag(40)})
    with pytest.raises(UserError, match="only 0% of 40 patches have a neighbour"):
        read_slide(path)
    with pytest.warns(UserWarning, match="no stride can be seen"), pytest.warns(UserWarning, match="0% of 40 patches"):
        assert read_slide(path, allow_isolated=True).coords is not None
