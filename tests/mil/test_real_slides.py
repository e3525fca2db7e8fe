"""Real tissue shapes and real slides through reader, graph, homogeneity and models."""

from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
import pytest
import torch

from nnunet_gdla.mil import build_model, read_slide
from nnunet_gdla.mil.slides import Slide
from nnunet_gdla.ops import grid_neighbours, local_homogeneity
from tests.paths import SHARED

WSI: Final = SHARED / "data" / "wsi"
LATTICES: Final = sorted((WSI / "tcga_lihc_coords").glob("*.h5"))
SLIDES: Final = sorted((WSI / "feature_h5").glob("*.h5"))
SMALL: Final[dict[str, Any]] = {"width": 24, "depth": 2, "num_heads": 2, "num_landmarks": 16}
MODELS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "nystrom": ("slide_transformer", SMALL),
    "gdla on the lattice": ("slide_transformer", SMALL | {"attention": "gdla", "local_mixing": "lattice"}),
    "abmil": ("abmil", {"width": 24}),
}


def found(paths: list[Path], what: str) -> list[Any]:
    """One parameter per file; a single skipped one, with the reason, where the folder is not there."""
    if paths:
        return [pytest.param(path, id=path.stem) for path in paths]
    return [pytest.param(None, id="absent", marks=pytest.mark.skip(reason=f"no {what} in {WSI}"))]


def checked_scores(slide: Slide, name: str) -> None:
    kind, options = MODELS[name]
    model = build_model(kind, slide.features.shape[1], 3, **options).eval()
    assert slide.coords is not None
    with torch.no_grad():
        logits = model(slide.features[None], slide.coords[None], slide.stride)
        scores = model.patch_scores(slide.features[None], slide.coords[None], slide.stride)
    assert logits.shape == (1, 3)
    assert scores.shape == (len(slide.features),)
    assert torch.isfinite(logits).all()
    assert torch.isfinite(scores).all()


@pytest.mark.parametrize("path", found(LATTICES, "patch coordinates"))
def test_a_real_tissue_shape_has_neighbours_and_goes_through_a_model(path: Path, tmp_path: Path) -> None:
    with h5py.File(path) as file:
        coords = file["coords"][()]
    features = np.random.default_rng(0).standard_normal((len(coords), 8)).astype(np.float16)
    with h5py.File(tmp_path / path.name, "w") as file:
        file["coords"], file["features"] = coords, features
    slide = read_slide(tmp_path / path.name)
    assert slide.stride == 512
    assert slide.coords is not None
    np.testing.assert_array_equal(slide.coords.numpy(), coords)
    graph = grid_neighbours(slide.coords, 512)
    assert 7.3 <= graph.count.double().mean() <= 7.9
    homogeneity = local_homogeneity(slide.features, graph)
    assert homogeneity.abs().max() <= 1 + 1e-6
    assert abs(homogeneity.mean()) < 0.02  # the features are noise
    checked_scores(slide, "nystrom")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("path", found(SLIDES, "feature files"))
def test_a_real_slide_in_any_layout_goes_through_a_model(path: Path, name: str) -> None:
    slide = read_slide(path)
    assert slide.coords is not None
    assert slide.stride is not None
    graph = grid_neighbours(slide.coords, slide.stride)
    assert (graph.count > 0).double().mean() > 0.9
    homogeneity = local_homogeneity(slide.features, graph)
    assert homogeneity[graph.count > 0].mean() > 0.2  # neighbouring tissue looks alike
    checked_scores(slide, name)
