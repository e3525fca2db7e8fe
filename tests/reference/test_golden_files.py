"""How golden files are found: by kind, in the named folder or beside the checkout; nothing found is never silence."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import golden_files
from tests.golden_files import COMMITTED, VARIABLE, golden_json, golden_params


@pytest.fixture(autouse=True)
def _forget_folders() -> Iterator[None]:
    golden_files._folder.cache_clear()
    yield
    golden_files._folder.cache_clear()


def _name(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(folder.parent))
    monkeypatch.setattr(golden_files, "NAMED", folder)
    monkeypatch.setattr(golden_files, "FULL", folder)


def test_the_committed_set_has_one_file_a_kind_no_network_and_is_small() -> None:
    files = sorted(COMMITTED.glob("*.npz"))
    kinds = [golden_files.GoldenFile(path).meta["kind"] for path in files]
    assert len(kinds) == len(set(kinds)) == 14
    assert not any(kind.startswith("PVT") for kind in kinds)
    assert sum(path.stat().st_size for path in files) < 1.5e6


def test_files_of_a_named_folder_are_found_by_kind_whatever_their_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "gdla"
    folder.mkdir()
    shutil.copy(COMMITTED / "mlp_d24.npz", folder / "another_name.npz")
    _name(monkeypatch, folder)
    ids = [param.id for param in golden_params("MLP")]
    assert ids == ["committed-mlp_d24", "another_name"]


def test_a_kind_that_the_named_folder_lacks_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _name(monkeypatch, tmp_path / "gdla")
    (committed, missing) = golden_params("MLP")
    assert committed.values[0].meta["kind"] == "MLP"
    assert not missing.marks
    with pytest.raises(pytest.fail.Exception, match=rf"{VARIABLE}.*'MLP'"):
        _ = missing.values[0].meta


def test_without_any_folder_a_kind_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(golden_files, "NAMED", None)
    monkeypatch.setattr(golden_files, "FULL", tmp_path / "gdla")
    (absent,) = golden_params("PVTGDLA")
    (mark,) = absent.marks
    assert mark.name == "skip"
    assert VARIABLE in mark.kwargs["reason"]


def test_maps_missing_in_the_named_folder_come_from_the_default_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    named, default = tmp_path / "named" / "gdla", tmp_path / "default" / "gdla"
    for folder in (named, default):
        folder.mkdir(parents=True)
    (default / "keys_a.json").write_text("{}")
    monkeypatch.setattr(golden_files, "JSON_FOLDERS", (named, default))
    assert golden_json("keys_*.json") == [default / "keys_a.json"]
    (named / "keys_b.json").write_text("{}")
    assert golden_json("keys_*.json") == [named / "keys_b.json"]
