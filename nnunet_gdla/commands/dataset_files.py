"""Which files a raw nnU-Net dataset has: complete cases, missing partners, strays."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnunet_gdla.commands.dataset_json import Description
from nnunet_gdla.commands.findings import SHOWN, Finding, collapse, failed, passed, warned
from nnunet_gdla.words import counted

__all__ = ["Case", "check_files", "check_files_to_predict", "list_cases", "list_training_cases"]


@dataclass(frozen=True)
class Case:
    """The files of one patient or picture.

    Args:
        name: The case's identifier.
        images: Its image files, in the order of their channel numbers.
        label: Its mask; None for an image to predict.
    """

    name: str
    images: tuple[Path, ...]
    label: Path | None


def list_training_cases(folder: Path, description: Description) -> list[Case]:
    """Return the training cases, from the "dataset" table in dataset.json or else from imagesTr and labelsTr."""
    table: dict[str, Any] | None = description.content.get("dataset")
    if table is not None:
        return [
            Case(
                name,
                tuple(folder / os.path.expandvars(image) for image in files["images"]),
                folder / os.path.expandvars(files["label"]),
            )
            for name, files in table.items()
        ]
    return list_cases(folder / "imagesTr", folder / "labelsTr", description.ending)


def list_cases(images: Path, labels: Path | None, ending: str) -> list[Case]:
    """Return the cases among the properly named files of an image folder, sorted by name.

    Args:
        images: The folder; there need be none.
        labels: Folder of their masks, which may be missing; None for images to predict.
        ending: File ending as dataset.json has it, with its dot.
    """
    found: dict[str, list[Path]] = {}
    pattern = _pattern(ending)
    for path in _files(images):
        match = pattern.fullmatch(path.name)
        if match:
            found.setdefault(match[1], []).append(path)
    return [Case(name, tuple(files), labels and labels / f"{name}{ending}") for name, files in sorted(found.items())]


def check_files(folder: Path, description: Description, cases: list[Case]) -> list[Finding]:
    """Return what is missing, superfluous or wrongly named among the training files.

    Args:
        folder: The raw dataset.
        description: What its dataset.json promises.
        cases: Its training cases, as `list_training_cases` found them.
    """
    return collapse(_check_files(folder, description, cases))


def check_files_to_predict(folder: Path, description: Description) -> list[Finding]:
    """Return what is wrongly named among the images to predict: nnU-Net passes over it, or takes it for no file.

    Args:
        folder: Where they are; there need be none.
        description: What dataset.json promises.
    """
    return collapse(_check_files_to_predict(folder, description.ending))


def _check_files_to_predict(folder: Path, ending: str) -> Iterator[Finding]:
    pattern = _pattern(ending)
    for path in _files(folder):
        if path.name.endswith(ending) and not pattern.fullmatch(path.name):
            fix = (
                f"rename to CASE_0000{ending} (four digits = channel) or move away; nnU-Net makes a case without files "
                "of such a name"
            )
            yield warned("image name", path.name, fix)
    yield from _other_endings(_files(folder), folder.name, ending)


def _check_files(folder: Path, description: Description, cases: list[Case]) -> Iterator[Finding]:
    if not cases:
        fix = f"put the images there as CASE_0000{description.ending}, CASE_0001{description.ending} ..."
        yield failed("training cases", f"none found in {folder / 'imagesTr'}", fix)
    for case in cases:
        for path in (*case.images, case.label):
            if path is not None and not path.is_file():
                what = "label" if path == case.label else "image"
                yield failed(
                    f"missing {what}", str(path.name), f"add the file, or remove all files of the case ({what})"
                )
    yield from _check_channel_files(cases, description)
    if "dataset" not in description.content:
        yield from _check_strays(folder, description.ending, cases)
    yield from _check_count(description, cases)


def _check_count(description: Description, cases: list[Case]) -> Iterator[Finding]:
    promised = description.content.get("numTraining")
    if promised is not None and promised != len(cases):
        there = f"there {'is' if len(cases) == 1 else 'are'} {counted(len(cases), 'training case')}"
        fix = f'write "numTraining": {len(cases)}, or add the missing cases'
        yield failed("numTraining", f"dataset.json says {promised!r}, {there}", fix)
    elif 0 < len(cases) < SHOWN:
        fix = "train with fold all, or write your own splits_final.json into the preprocessed folder, or add cases"
        yield warned("training cases", f"only {len(cases)}; nnU-Net's five folds need at least 5", fix)
    elif cases:
        yield passed("training cases", f"{len(cases)} found, as numTraining says")


def _check_channel_files(cases: list[Case], description: Description) -> Iterator[Finding]:
    """Compare each case's channel numbers with what most cases have: one RGB file may stand for three channels."""
    numbers = {
        case.name: tuple(path.name.removesuffix(description.ending)[-4:] for path in case.images) for case in cases
    }
    if "dataset" in description.content or not numbers:
        return
    usual, _ = Counter(numbers.values()).most_common(1)[0]
    usual = usual if usual == tuple(f"{number:04d}" for number in range(len(usual))) else ("0000",)
    for name, present in numbers.items():
        if name.endswith("_seg"):
            fix = "rename the case: nnU-Net's preprocessed masks are called CASE_seg, and it would never train on it"
            yield failed("case name", name, fix)
        for number in sorted(set(usual) - set(present)):
            fix = "add the file, or remove all files of the case (image)"
            yield failed("missing image", f"{name}_{number}{description.ending}", fix)
        for number in sorted(set(present) - set(usual)):
            fix = f"number the channel files of every case {usual[0]} to {usual[-1]}, as the other cases have it"
            yield failed("extra channel file", f"{name}_{number}{description.ending}", fix)


def _check_strays(folder: Path, ending: str, cases: list[Case]) -> Iterator[Finding]:
    for sub in ("imagesTr", "labelsTr"):
        if not (folder / sub).is_dir():
            yield failed(f"{sub} folder", f"{folder / sub} does not exist", f"create {sub} and put the files there")
    pattern = _pattern(ending)
    for path in _files(folder / "imagesTr"):
        if path.name.endswith(ending) and not pattern.fullmatch(path.name):
            fix = (
                f"rename to CASE_0000{ending} (four digits = channel) or move away; nnU-Net takes it for a broken case"
            )
            yield failed("image name", path.name, fix)
    names = {case.name for case in cases}
    for path in _files(folder / "labelsTr"):
        if path.name.endswith(ending) and path.name.removesuffix(ending) not in names:
            yield warned("label without image", path.name, "add the case's image files, or remove the label")
    yield from _other_endings(_files(folder / "imagesTr"), "imagesTr", ending)
    yield from _other_endings(_files(folder / "labelsTr"), "labelsTr", ending)


def _other_endings(files: Iterable[Path], sub: str, ending: str) -> Iterator[Finding]:
    for path in files:
        # Tiff3DIO keeps the spacing of CASE.tif in CASE.json: no stray
        if not path.name.endswith((ending, ".json")) and not path.name.startswith("."):
            fix = f"nnU-Net reads only {ending} here: convert the file to {ending}, or move it away"
            yield warned(f"ignored file in {sub}", path.name, fix)


def _pattern(ending: str) -> re.Pattern[str]:
    return re.compile(rf"(.+)_\d{{4}}{re.escape(ending)}")


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
