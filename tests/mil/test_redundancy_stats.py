from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil import figures
from nnunet_gdla.mil.redundancy_stats import cosine_with_mean, slide_redundancy, write_redundancy
from nnunet_gdla.mil.slides import Slide, read_slide
from nnunet_gdla.mil.synthetic import make_cohort
from nnunet_gdla.ops.neighbours import grid_neighbours
from tests.paths import SHARED

FEATURES = SHARED / "data" / "wsi" / "feature_h5"


def slide_of(features: torch.Tensor, coords: torch.Tensor | None) -> Slide:
    stride = None if coords is None else 1.0
    return Slide("made", features, coords, stride, "cell", Path("made.h5"), "features")


def test_cosine_with_the_mean_of_the_neighbours() -> None:
    features = torch.randn(40, 5, dtype=torch.float64).to(torch.float16)
    coords = torch.stack([torch.arange(40) % 7, torch.arange(40) // 7], dim=1)
    coords[-1] = 99  # nobody around
    graph = grid_neighbours(coords, 1.0)
    found = cosine_with_mean(features, graph)
    for row in range(39):
        mean = features[graph.index[row][graph.mask[row]]].double().mean(0)
        expected = torch.cosine_similarity(features[row].double(), mean, dim=0)
        assert found[row] == pytest.approx(expected.item(), abs=1e-4)
    assert found[-1] == 0


def test_redundancy_is_found_where_it_was_planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "DPI", 30)
    gaps = []
    for share in (0.0, 0.9):
        cohort = make_cohort(tmp_path / f"{share}", slides=4, redundancy=share)
        slides = [read_slide(path) for path in sorted(cohort.features.iterdir())]
        csv, png = write_redundancy(tmp_path / f"{share}" / "stats", slides)
        table = pd.read_csv(csv)
        assert png.is_file()
        assert list(table["slide_id"]) == [f"slide_{place:03d}" for place in range(4)]
        assert (table["neighbours"] > 5).all()
        assert (table["cosine_q25"] <= table["cosine_q75"]).all()
        gaps.append((table["homogeneity"] - table["homogeneity_random"]).mean())
    assert abs(gaps[0]) < 0.05
    assert gaps[1] > 0.4


def test_slides_without_neighbours_or_coordinates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "DPI", 30)
    alone = slide_of(torch.randn(3, 4), torch.tensor([[0, 0], [5, 5], [10, 0]]))
    row = slide_redundancy(alone)
    assert row["isolated"] == 1
    assert np.isnan(row["homogeneity"])
    assert all(path.is_file() for path in write_redundancy(tmp_path / "alone", [alone]))
    assert all(path.is_file() for path in write_redundancy(tmp_path / "none", []))
    with pytest.raises(UserError, match="holds no coordinates"):
        slide_redundancy(slide_of(torch.randn(3, 4), None))


@pytest.mark.skipif(not FEATURES.is_dir(), reason=f"no real slides in {FEATURES}")
def test_neighbours_of_a_real_slide_are_more_alike_than_random_patches() -> None:
    row = slide_redundancy(read_slide(FEATURES / "tcga-cr-7395-01a-01-ts1_64_trident.h5"))
    assert row["patches"] == 2461
    assert row["neighbours"] > 7
    assert row["homogeneity"] > row["homogeneity_random"] + 0.03
