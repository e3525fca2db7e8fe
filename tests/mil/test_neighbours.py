"""Neighbours found where slides are read: the bits of what the models find, once per slide and run."""

import pickle
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from nnunet_gdla.mil import data, neighbours
from nnunet_gdla.mil.data import EverySlideOnce, SlideBags, Visit, model_inputs, neighbour_options, slide_loader
from nnunet_gdla.mil.models import build_model
from nnunet_gdla.mil.neighbours import NeighbourCache, NeighbourOptions, find_neighbours
from nnunet_gdla.mil.slides import read_slide
from tests.mil.slide_files import bag, grid, write_h5

MODELS: list[tuple[str, dict[str, Any]]] = [
    ("slide_transformer", {"depth": 3}),
    ("slide_transformer", {"depth": 3, "window": 5, "shell": "ring", "weighting": "gaussian", "sigma": 1.5}),
    ("slide_transformer", {"depth": 3, "correction": "fixed:0.7"}),
    ("slide_transformer", {"attention": "gdla", "correction": "none", "local_mixing": "lattice"}),
    ("vit4", {"depth": 3, "window": 5}),
    ("vit4", {"depth": 2, "correction": "fixed:0.5"}),
    ("vit4", {"depth": 2, "correction": "none"}),
    ("abmil", {}),
    ("dsmil", {}),
    ("transmil", {}),
]


def files(folder: Path, count: int = 3, patches: int = 30) -> dict[str, Path]:
    ids = [f"s{number}" for number in range(count)]
    return {
        name: write_h5(folder / f"{name}.h5", {"coords": grid(6, patches // 6) * 256, "features": bag(patches, 8, i)})
        for i, name in enumerate(ids)
    }


@pytest.mark.parametrize(("name", "kwargs"), MODELS, ids=lambda each: each if isinstance(each, str) else str(each))
@pytest.mark.parametrize("half", [False, True])
def test_models_give_the_same_bits_with_what_the_reader_found(
    name: str, kwargs: dict[str, Any], half: bool, tmp_path: Path
) -> None:
    sizes = {} if name in ("abmil", "dsmil") else {"width": 24, "num_heads": 2}
    torch.manual_seed(0)
    model = build_model(name, 8, 2, **sizes, **kwargs)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)  # gates open
    model.eval()
    features = bag(30).astype(np.float16 if half else np.float32)
    slide = read_slide(write_h5(tmp_path / "s.h5", {"coords": grid() * 256, "features": features}))
    inputs = model_inputs(model, slide, torch.device("cpu"))
    assert ("graph" in inputs) is bool(model.needs_coords)
    coords = slide.coords[None]
    assert torch.equal(model(**inputs), model(slide.features[None], coords, slide.stride))
    found = model.patch_scores(slide.features[None], coords, slide.stride)
    assert torch.equal(model.patch_scores(**inputs), found)


def test_every_slide_is_looked_at_once_in_a_run(tmp_path: Path) -> None:
    paths, options = files(tmp_path), NeighbourOptions()
    for remember, expected in ((True, 3), (False, 9)):
        bags = SlideBags(paths, list(paths), {}, [options], remember=remember)
        with patch.object(data, "find_neighbours", side_effect=find_neighbours) as found:
            for _ in range(3):
                seen = [
                    bag.neighbours[options]
                    for bag in slide_loader(bags, EverySlideOnce(3), workers=0, pin_memory=False)
                ]
        assert found.call_count == expected
        assert len(seen) == 3


def test_the_cache_forgets_what_was_used_least_recently_and_keeps_to_its_size() -> None:
    coords, options = torch.from_numpy(grid() * 256), NeighbourOptions()

    def find() -> dict[NeighbourOptions, neighbours.Neighbours]:
        return {options: find_neighbours(torch.ones(30, 4), coords, 256.0, None, options)}

    size = find()[options].nbytes
    cache = NeighbourCache(int(2.5 * size))
    first = cache.get(0, find)
    cache.get(1, find)
    assert cache.get(0, find) is first
    cache.get(2, find)  # 1 goes
    assert len(cache) == 2
    assert cache.nbytes == 2 * size
    assert cache.get(0, find) is first
    small = NeighbourCache(size - 1)
    small.get(0, find)
    assert len(small) == 0


def test_readers_share_the_cap_and_a_copy_starts_empty(tmp_path: Path) -> None:
    paths = files(tmp_path)
    bags = SlideBags(paths, list(paths), {}, [NeighbourOptions()], remember=True)
    bags[Visit(0, 0)]
    assert bags._cache is not None
    assert bags._cache.most_bytes == neighbours.CACHE_BYTES
    assert pickle.loads(pickle.dumps(bags))._cache is None
    loader: DataLoader[Any] = slide_loader(bags, EverySlideOnce(3), workers=1, pin_memory=False)
    (options,) = next(iter(loader)).neighbours
    assert options == NeighbourOptions()


def test_a_model_without_neighbours_asks_for_none() -> None:
    assert neighbour_options(build_model("abmil", 8, 2)) is None
    assert neighbour_options(build_model("vit4", 8, 2, correction="none", width=24, num_heads=2)) is None


def test_homogeneity_of_another_size_is_refused(tmp_path: Path) -> None:
    model = build_model("slide_transformer", 8, 2, width=24, num_heads=2)
    slide = read_slide(next(iter(files(tmp_path).values())))
    inputs = model_inputs(model, slide, torch.device("cpu")) | {"homogeneity": torch.zeros(1, 29)}
    with pytest.raises(Exception, match=r"homogeneity|N"):
        model(**inputs)
