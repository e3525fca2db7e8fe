"""Surface metrics against loops over voxels and pairs."""

import numpy as np
import numpy.typing as npt
import pytest

from nnunet_gdla.evaluation import surface
from nnunet_gdla.evaluation.surface import (
    SurfaceDistances,
    assd,
    hd95,
    hd95_pooled,
    nsd,
    surface_distances,
    surface_of,
)
from tests.evaluation.naive import naive_distances, naive_metrics, naive_surface

Mask = npt.NDArray[np.bool_]


def measured(a: Mask, b: Mask, spacing: tuple[float, ...]) -> SurfaceDistances:
    distances = surface_distances(a, b, spacing)
    assert distances is not None
    return distances


def metrics(a: Mask, b: Mask, spacing: tuple[float, ...], tolerance: float) -> dict[str, float]:
    distances = measured(a, b, spacing)
    return {
        "hd95": hd95(distances),
        "hd95_pooled": hd95_pooled(distances),
        "assd": assd(distances),
        "nsd": nsd(distances, tolerance),
    }


def random_mask(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> Mask:
    mask = np.zeros(shape, dtype=bool)
    if kind == "noise":
        return rng.random(shape) < 0.3
    if kind == "voxel":
        mask[tuple(rng.integers(0, size) for size in shape)] = True
    if kind == "full":
        mask[...] = True
    if kind in {"box", "border"}:
        low = [0 if kind == "border" else int(rng.integers(0, max(1, size // 2))) for size in shape]
        high = [int(rng.integers(start + 1, size + 1)) for start, size in zip(low, shape, strict=True)]
        mask[tuple(slice(start, stop) for start, stop in zip(low, high, strict=True))] = True
    return mask


SHAPES = [(9, 11, 8), (5, 14, 17), (1, 13, 12), (13, 1, 12), (16, 21), (1, 19), (23,), (1, 1, 9), (1, 1, 1)]
KINDS = ["noise", "voxel", "full", "box", "border"]


@pytest.mark.parametrize("near", [0, 1, 5])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_metric_equals_the_loops(shape: tuple[int, ...], near: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`near` 0 sends every distance through the map, 5 is the default, 1 mixes tree and map."""
    monkeypatch.setattr(surface, "_NEAR_VOXELS", near)
    rng = np.random.default_rng(sum(shape))
    spacing = (2.5, 0.7, 1.1)[-len(shape) :]
    for kind_a in KINDS:
        for kind_b in KINDS:
            a, b = random_mask(rng, shape, kind_a), random_mask(rng, shape, kind_b)
            if not a.any() or not b.any():
                continue
            expected = naive_metrics(a, b, spacing, 2.0)
            assert metrics(a, b, spacing, 2.0) == pytest.approx(expected, rel=2e-6, abs=1e-9), (kind_a, kind_b)


@pytest.mark.parametrize("shape", [(8, 24, 26), (40, 45)])
def test_far_pieces_go_through_the_map(shape: tuple[int, ...]) -> None:
    a, b = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    a[tuple(slice(0, 3) for _ in shape)] = True
    a[tuple(slice(-2, None) for _ in shape)] = True
    b[tuple(slice(1, 4) for _ in shape)] = True
    spacing = (3.0, 0.6, 0.9)[: len(shape)]
    for found, expected in zip(measured(a, b, spacing), naive_distances(a, b, spacing), strict=True):
        np.testing.assert_allclose(np.sort(found), np.sort(expected), rtol=2e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_surface_equals_the_loop(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    wide = tuple(size for size in shape if size > 1) or (1,)
    for kind in KINDS:
        mask = random_mask(rng, shape, kind)
        assert np.count_nonzero(surface_of(mask.reshape(wide))) == len(naive_surface(mask))


def test_the_border_of_the_image_is_surface() -> None:
    full = np.ones((4, 5, 6), dtype=bool)
    assert np.count_nonzero(surface_of(full)) == 4 * 5 * 6 - 2 * 3 * 4


def test_one_slice_is_a_two_dimensional_image() -> None:
    """Otherwise every voxel of the slice were surface, and distances within the mask vanished."""
    a, b = np.zeros((20, 20), dtype=bool), np.zeros((20, 20), dtype=bool)
    a[2:18, 2:18] = b[5:15, 5:15] = True
    flat = measured(a, b, (0.5, 0.5))
    thick = measured(a[None], b[None], (7.0, 0.5, 0.5))
    assert hd95(flat) == hd95(thick) > 1
    assert len(flat.from_truth) == 36


def test_a_flat_mask_in_a_volume_is_all_surface() -> None:
    mask = np.zeros((5, 9, 9), dtype=bool)
    mask[2, 1:8, 1:8] = True
    assert len(measured(mask, mask, (1, 1, 1)).from_truth) == 49


def test_an_empty_mask_has_no_distances() -> None:
    nothing, something = np.zeros((3, 4), dtype=bool), np.ones((3, 4), dtype=bool)
    assert surface_distances(nothing, something, (1, 1)) is None
    assert surface_distances(something, nothing, (1, 1)) is None
    assert surface_distances(nothing, nothing, (1, 1)) is None


def test_directions_and_percentiles_are_what_they_are_called() -> None:
    distances = SurfaceDistances(np.arange(101.0), np.zeros(101))
    assert hd95(distances) == 95
    assert hd95_pooled(distances) == pytest.approx(np.percentile([*range(101), *[0] * 101], 95))
    assert hd95_pooled(distances) < hd95(distances)
    assert hd95(SurfaceDistances(np.zeros(7), np.arange(101.0))) == 95
    assert assd(SurfaceDistances(np.array([3.0]), np.zeros(2))) == 1


def test_the_tolerance_includes_its_own_distance() -> None:
    """13 x 0.1 - 3 x 0.1 is a little more than 1 in floating point."""
    a, b = np.zeros((1, 20), dtype=bool), np.zeros((1, 20), dtype=bool)
    a[0, 3] = b[0, 13] = True
    distances = measured(a, b, (1, 0.1))
    assert nsd(distances, 1.0) == 1
    assert nsd(distances, 0.99) == 0


def test_masks_are_left_as_they_were() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random((6, 7)) < 0.5, rng.random((6, 7)) < 0.5
    before = a.copy(), b.copy()
    surface_distances(a, b, (1, 1))
    assert (a == before[0]).all()
    assert (b == before[1]).all()
