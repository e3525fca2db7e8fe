"""HAM10000: dermoscopic photographs; several can show the same lesion."""

import csv
import filecmp
import re
from pathlib import Path

from nnunet_gdla.errors import UserError
from nnunet_gdla.recipes.layout import Case, Found, Options, Skipped, list_files
from nnunet_gdla.recipes.photographs import pair_photographs
from nnunet_gdla.words import counted

__all__ = ["find"]

_IMAGE = re.compile(r"(ISIC_\d+)\.jpe?g", re.IGNORECASE)
_MASK = re.compile(r"(ISIC_\d+)_segmentation\.png", re.IGNORECASE)
_METADATA = re.compile(r"HAM10000_metadata(\.csv|\.tab|\.txt)?", re.IGNORECASE)
_EXPECTED = (
    "HAM10000_images_part_1/ISIC_0024306.jpg with "
    "HAM10000_segmentations_lesion_tschandl/ISIC_0024306_segmentation.png, and HAM10000_metadata.csv"
)


def find(source: Path, options: Options) -> Found:
    """Find the photographs in whatever folders they lie, the masks, and which photographs show the same lesion.

    Raises:
        UserError: If the folder has another layout, or two different files have the same name.
    """
    del options
    files = list_files(source)
    skipped: list[Skipped] = []
    images = _by_name(files, source, _IMAGE, skipped)
    masks = _by_name(files, source, _MASK, skipped)
    tables = [path for path in files if _METADATA.fullmatch(path.name)]
    lesions = _read_lesions(tables[0]) if tables else {}
    found = pair_photographs(
        images,
        masks,
        groups=lesions,
        mask_name="{name}_segmentation.png",
        files=files,
        tables=tables[:1],
        skipped=skipped,
        source=source,
        expected=_EXPECTED,
        why=lambda _: None,
    )
    found.notes = _notes(found.cases, tables, lesions)
    return found


def _by_name(files: list[Path], source: Path, pattern: re.Pattern[str], skipped: list[Skipped]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in files:
        match = pattern.fullmatch(path.name)
        if match is None:
            continue
        name = match[1].upper()
        first = found.setdefault(name, path)
        if first == path:
            continue
        if not filecmp.cmp(first, path, shallow=False):
            raise UserError(f"{first} and {path} have the same name and differ; remove the one that is wrong")
        skipped.append(Skipped(path.relative_to(source).as_posix(), f"the same file as {first.relative_to(source)}"))
    return found


def _read_lesions(path: Path) -> dict[str, str]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        separator = "\t" if "\t" in file.readline() else ","
        file.seek(0)
        table = csv.DictReader(file, delimiter=separator)
        missing = {"image_id", "lesion_id"} - set(table.fieldnames or ())
        if missing:
            raise UserError(f"{path} has no column {' and '.join(sorted(missing))}; it has {table.fieldnames}")
        return {row["image_id"].upper(): row["lesion_id"] for row in table}


def _notes(cases: list[Case], tables: list[Path], lesions: dict[str, str]) -> list[str]:
    if not tables:
        return ["no HAM10000_metadata.csv: photographs of one lesion may land on both sides of a split"]
    unknown = [case.name for case in cases if case.name not in lesions]
    notes = [f"{counted(len({case.group for case in cases}), 'lesion')} by {tables[0].name}, kept together in a split"]
    if unknown:
        notes.append(
            f"{counted(len(unknown), 'image')} not in {tables[0].name}, each its own lesion: {', '.join(unknown)}"
        )
    return notes
