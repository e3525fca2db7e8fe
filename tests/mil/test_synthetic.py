import dataclasses
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest

from nnunet_gdla.mil.synthetic import SyntheticSlide, TissueModel, class_directions, make_cohort, make_slide


def neighbour_cosines(slide: SyntheticSlide) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    unit = slide.features / np.linalg.norm(slide.features, axis=1, keepdims=True)
    cells = (slide.coords - slide.coords.min(0)) // 256
    near = np.abs(cells[:, None] - cells[None]).max(-1) == 1
    return (unit @ unit.T)[near], near


def test_redundancy_is_the_share_that_neighbours_have_in_common() -> None:
    means = []
    for share in (0.0, 0.5, 0.9):
        rng = np.random.default_rng(0)
        model = TissueModel(redundancy=share, strength=0.0, rare=3, dim=64, patches=400)
        slides = [make_slide(rng, class_directions(rng, 2, 64)[0], model) for _ in range(4)]
        assert abs(np.mean([slide.features.var() for slide in slides]) - 1) < 0.1
        means.append(np.mean([neighbour_cosines(slide)[0].mean() for slide in slides]))
    assert abs(means[0]) < 0.02
    assert 0.3 < means[1] < 0.5
    assert 0.6 < means[2] < 0.9


def test_rare_patches_are_isolated_and_carry_the_direction() -> None:
    rng = np.random.default_rng(1)
    direction = class_directions(rng, 2, 32)[1]
    slides = [make_slide(rng, direction, TissueModel(strength=20.0)) for _ in range(5)]
    for slide in slides:
        assert slide.rare.sum() == 3
        assert not neighbour_cosines(slide)[1][np.ix_(slide.rare, slide.rare)].any()
        projected = slide.features @ direction
        assert projected[slide.rare].min() > projected[~slide.rare].max()


def test_lattice_is_ragged_with_holes_and_unique_cells() -> None:
    slide = make_slide(np.random.default_rng(2), np.eye(32)[0], TissueModel(patches=200))
    cells = (slide.coords - slide.coords.min(0)) // 256
    assert slide.coords.dtype == np.int64
    assert len(np.unique(cells, axis=0)) == 200
    filled = neighbour_cosines(slide)[1].sum(1)
    assert 5 < filled.mean() < 8
    assert filled.min() < filled.max()


def test_cohort_is_bit_equal_for_equal_seeds(tmp_path: Path) -> None:
    first, again, other = (
        make_cohort(tmp_path / name, seed=seed, slides=9) for name, seed in (("a", 3), ("b", 3), ("c", 4))
    )
    assert first.table.read_bytes() == again.table.read_bytes()
    for path in first.features.iterdir():
        assert path.read_bytes() == (again.features / path.name).read_bytes()
        assert path.read_bytes() != (other.features / path.name).read_bytes()


def test_cohort_has_patients_labels_and_trident_files(tmp_path: Path) -> None:
    cohort = make_cohort(tmp_path, slides=24, classes=3)
    table = pd.read_csv(cohort.table, dtype=str)
    assert list(table.columns) == ["slide_id", "patient_id", "label"]
    assert sorted(table["label"].unique()) == ["class_0", "class_1", "class_2"]
    assert table.groupby("patient_id")["label"].nunique().max() == 1
    assert table.groupby("patient_id").size().max() == 2
    with h5py.File(cohort.features / "slide_000.h5") as file:
        assert file["features"].shape == (len(file["coords"]), 32)
        assert file["coords"].attrs["patch_size_level0"] == 256
    assert {path.stem for path in cohort.features.iterdir()} == set(table["slide_id"])


def test_survival_cohort_has_events_and_censored_patients(tmp_path: Path) -> None:
    table = pd.read_csv(make_cohort(tmp_path, slides=60, task="survival").table)
    assert list(table.columns) == ["slide_id", "patient_id", "time", "event"]
    assert table["time"].min() > 0
    assert 0.5 < table["event"].mean() < 0.9


@pytest.mark.parametrize(
    "change", [{"redundancy": 1.5}, {"patches": 10}, {"holes": 0.7}, {"dim": 0}, {"rare": -1}], ids=str
)
def test_senseless_sizes_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"patches|share"):
        dataclasses.replace(TissueModel(), **change)


def test_unknown_task_and_too_few_slides_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="classification, survival"):
        make_cohort(tmp_path, task="regression")
    with pytest.raises(ValueError, match="1 slide cannot hold 2 classes"):
        make_cohort(tmp_path, slides=1)
