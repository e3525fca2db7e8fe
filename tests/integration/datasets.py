"""Real datasets, found by kind; small copies of them, and plans that suit a test."""

import json
import math
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import SimpleITK

from tests.paths import nnunet_raw_folder

__all__ = ["KINDS", "cases_of", "copy_small", "edit_plans", "find_dataset", "image_files", "read_json"]

PICTURES: Final = (".png", ".bmp", ".tif")
LARGEST: Final = (301, 283)  # no multiples of 32; whole pictures would be most of the time of a test


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object."""
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def find_dataset(kind: str) -> Path:
    """Return the smallest dataset of a kind; its absence is a skip, or a failure where NNUNET_GDLA_DATA is set."""
    raw = nnunet_raw_folder()
    fitting = KINDS[kind]
    found = [
        (len(list((folder / "labelsTr").iterdir())), folder)
        for folder in sorted(raw.glob("Dataset*"))
        if (folder / "splits_final.json").is_file() and fitting(folder, read_json(folder / "dataset.json"))
    ]
    if found:
        return min(found)[1]
    told = f"no dataset of the kind {kind!r} with splits_final.json in {raw}"
    if os.environ.get("NNUNET_GDLA_DATA"):
        pytest.fail(told)
    pytest.skip(told)


def cases_of(folder: Path, part: str, number: int | None = None) -> list[str]:
    """Return case ids of fold 0, `part` "train" or "val"; the small ones of awkward sizes go first."""
    split: dict[str, list[str]] = json.loads((folder / "splits_final.json").read_text())[0]
    sizes = {case: _size(folder, case) for case in split[part]}
    return sorted(split[part], key=lambda case: (_is_even(sizes[case]), math.prod(sizes[case])))[:number]


def image_files(folder: Path, case: str, sub: str = "imagesTr") -> list[Path]:
    """Return the files of a case, one a channel (or a single one that holds all)."""
    ending = read_json(folder / "dataset.json")["file_ending"]
    return sorted(path for path in (folder / sub).iterdir() if path.name[: -len(ending) - 5] == case)


def copy_small(folder: Path, raw: Path, train: int, val: int) -> Path:
    """Copy a dataset with the first training and validation cases of fold 0 only, which become its only fold.

    Of large pictures it has the middle. Its `imagesTs` holds the validation images: what is predicted there must equal
    what the validation has written.
    """
    parts = {"train": cases_of(folder, "train", train), "val": cases_of(folder, "val", val)}
    kept = parts["train"] + parts["val"]
    about = read_json(folder / "dataset.json")
    copy = raw / folder.name
    for sub in ("imagesTr", "labelsTr", "imagesTs"):
        (copy / sub).mkdir(parents=True)
    for case in kept:
        for path in image_files(folder, case):
            _copy(path, copy / "imagesTr")
        _copy(folder / "labelsTr" / f"{case}{about['file_ending']}", copy / "labelsTr")
    for case in parts["val"]:
        for path in image_files(folder, case):
            _copy(path, copy / "imagesTs")
    (copy / "dataset.json").write_text(json.dumps({**about, "numTraining": len(kept)}))
    (copy / "splits_final.json").write_text(json.dumps([parts]))
    return copy


def _copy(path: Path, folder: Path) -> None:
    image = SimpleITK.ReadImage(path)
    size = image.GetSize()
    if len(size) != 2 or all(edge <= most for edge, most in zip(size, LARGEST, strict=True)):
        shutil.copy(path, folder)
        return
    kept = [min(edge, most) for edge, most in zip(size, LARGEST, strict=True)]
    start = [(edge - length) // 2 for edge, length in zip(size, kept, strict=True)]
    SimpleITK.WriteImage(SimpleITK.RegionOfInterest(image, kept, start), folder / path.name)


def edit_plans(
    folder: Path, source: str, name: str, *, largest_patch: Sequence[int], shrink: int = 0, encoder: str | None = None
) -> None:
    """Copy plans under another name, which share the preprocessed data, with batch size 2 and a smaller patch.

    Args:
        folder: The dataset's preprocessed folder.
        source: Name of the plans to copy.
        name: Name of the copy.
        largest_patch: No edge becomes longer than this.
        shrink: Each edge becomes shorter by as much.
        encoder: Other encoder for a network of ours.
    """
    plans = read_json(folder / f"{source}.json")
    plans["plans_name"] = name
    planned = plans["configurations"]["2d"]
    planned["batch_size"] = 2
    planned["patch_size"] = [
        min(edge - shrink, most) for edge, most in zip(planned["patch_size"], largest_patch, strict=True)
    ]
    if encoder is not None:
        planned["architecture"]["arch_kwargs"]["encoder"] = encoder
    plans["configurations"] = {"2d": planned}
    (folder / f"{name}.json").write_text(json.dumps(plans))


def _is_plain(about: dict[str, Any]) -> bool:
    return "ignore" not in about["labels"] and "regions_class_order" not in about


def _has_classes(folder: Path, about: dict[str, Any]) -> bool:
    return _is_plain(about) and about["file_ending"] not in PICTURES and len(about["labels"]) > 2


def _has_regions(folder: Path, about: dict[str, Any]) -> bool:
    return "regions_class_order" in about


def _has_ignore_label(folder: Path, about: dict[str, Any]) -> bool:
    return "ignore" in about["labels"]


def _has_odd_pictures(folder: Path, about: dict[str, Any]) -> bool:
    if not _is_plain(about) or about["file_ending"] not in PICTURES:
        return False
    return not _is_even(_size(folder, cases_of(folder, "val", 1)[0]))


def _size(folder: Path, case: str) -> tuple[int, ...]:
    reader = SimpleITK.ImageFileReader()
    reader.SetFileName(str(image_files(folder, case)[0]))
    reader.ReadImageInformation()
    size: tuple[int, ...] = reader.GetSize()
    return size


def _is_even(size: tuple[int, ...]) -> bool:
    return all(edge % 32 == 0 for edge in size)


KINDS: Final[dict[str, Callable[[Path, dict[str, Any]], bool]]] = {
    "classes": _has_classes,
    "regions": _has_regions,
    "ignore": _has_ignore_label,
    "odd": _has_odd_pictures,
}
