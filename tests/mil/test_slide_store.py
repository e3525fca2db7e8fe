"""Slides by name: what stays open, what travels to another process, and that nothing differs from a single reading."""

import os
import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.slides import Slide, SlideStore, read_slide
from tests.mil.slide_files import bag, grid, write_h5

NAMES = ["a", "b", "c", "d"]


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, Path]:
    rng = np.random.default_rng(0)
    files = {}
    for seed, name in enumerate(NAMES):
        xy = grid(8, 6) * 512 + rng.normal(0, 15, (48, 2))
        files[name] = write_h5(tmp_path / f"{name}.h5", {"coords": xy, "features": bag(48, 5, seed)})
    return files


def same(a: Slide, b: Slide) -> bool:
    assert a.coords is not None
    assert b.coords is not None
    return torch.equal(a.features, b.features) and torch.equal(a.coords, b.coords) and a.stride == b.stride


def test_a_store_reads_what_read_slide_reads_also_again(paths: dict[str, Path]) -> None:
    store = SlideStore(paths, max_patches=40)
    for _ in range(2):
        for name, path in paths.items():
            assert same(store[name], read_slide(path, max_patches=40))
    assert list(store) == NAMES
    assert len(store) == 4
    assert "a" in store
    with pytest.raises(KeyError, match="no slide 'e' among the 4"):
        store["e"]


def test_only_the_last_used_files_stay_open(paths: dict[str, Path]) -> None:
    store = SlideStore(paths, max_open=2)
    opened: dict[str, h5py.File] = {}
    for name in ("a", "b", "a", "c"):
        store[name]
        opened[name] = store._open[name]
    assert list(store._open) == ["a", "c"]
    assert not opened["b"]
    assert opened["a"]
    store.close()
    assert not opened["a"]
    assert same(store["b"], read_slide(paths["b"]))
    with pytest.raises(ValueError, match="max_open must be at least 1"):
        SlideStore(paths, max_open=0)


def test_a_copy_for_another_process_has_no_open_files(paths: dict[str, Path]) -> None:
    store = SlideStore(paths)
    first = store["a"]
    copy = pickle.loads(pickle.dumps(store))
    assert not copy._open
    assert store._open
    assert same(copy["a"], first)


class Bags(Dataset[Slide]):
    def __init__(self, store: SlideStore) -> None:
        self.store = store

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, index: int) -> Slide:
        return self.store[NAMES[index]]


def test_workers_read_the_same_slides(paths: dict[str, Path]) -> None:
    store = SlideStore(paths)
    inherited = store["a"]
    loader = DataLoader(Bags(store), batch_size=None, num_workers=1, multiprocessing_context="fork")
    for name, slide in zip(NAMES, loader, strict=True):
        assert same(slide, read_slide(paths[name]))
    assert same(store["a"], inherited)


def test_open_files_of_another_process_are_not_used(paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    store = SlideStore(paths)
    store["a"]
    handle = store._open["a"]
    monkeypatch.setattr(os, "getpid", lambda: -1)
    store["b"]
    assert list(store._open) == ["b"]
    assert handle


def test_options_and_errors_are_those_of_read_slide(paths: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="must be a positive number"):
        SlideStore(paths, stride=-1)
    with pytest.raises(UserError, match="no features called 'uni'"):
        SlideStore(paths, feature_key="uni")["a"]
    paths["a"].unlink()
    with pytest.raises(UserError, match=r"no such file: .*a\.h5"):
        SlideStore(paths)["a"]


def test_tensor_files_are_served_too(tmp_path: Path) -> None:
    torch.save(torch.ones(9, 3), tmp_path / "t.pt")
    store = SlideStore({"t": tmp_path / "t.pt"}, need_coords=False, max_patches=4)
    assert store["t"].features.shape == (4, 3)
    assert store["t"].coords is None
