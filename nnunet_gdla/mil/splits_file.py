"""A split of the user's own: CLAM's tables, a long table, or a column of the cohort."""

from pathlib import Path
from typing import Final

import pandas as pd

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.slides.names import comparable_name
from nnunet_gdla.mil.splits_paper import Parts
from nnunet_gdla.mil.table_file import listed, nearest, read_table
from nnunet_gdla.words import counted

__all__ = ["PARTS", "parts_of_column", "parts_of_file"]

PARTS: Final = ("train", "val", "test")
SYNONYMS: Final = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev", "tune"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
PART_NAMES: Final = ("part", "split", "set", "subset")
NAME_NAMES: Final = ("slide_id", "patient_id", "case_id", "patient", "slide", "")
TRUE: Final = ("true", "1", "1.0")


def parts_of_file(path: Path, cohort: pd.DataFrame, *, allow_missing: bool = False) -> tuple[Parts, str]:
    """Read a split table and find its names in the cohort; also return how many were asked for and not found.

    Known forms: columns train, val, test that hold names, or true and false with the names in the first column (both
    CLAM's); or a column part (or split) beside slide_id or patient_id. A name is a slide, or a patient with all slides.

    Raises:
        UserError: If the table has none of these forms, or names that the cohort does not have.
    """
    table = read_table(path, [*PARTS, *PART_NAMES, *NAME_NAMES], drop_index=False)
    pairs = _pairs(table, path)
    return _found(pairs, cohort, path, allow_missing=allow_missing)


def parts_of_column(cohort: pd.DataFrame) -> Parts:
    """Return the parts that the column split of a cohort says; empty cells are in none.

    Raises:
        UserError: If there is no such column, or it says something else than train, val and test.
    """
    if "split" not in cohort:
        raise UserError("scheme file needs a split file, or a column split in the table of the cohort")
    pairs = zip(cohort.slide_id, cohort.split, strict=True)
    return _grouped([(name, _part(word, "column split")) for name, word in pairs if word])


def _pairs(table: pd.DataFrame, path: Path) -> list[tuple[str, str]]:
    """Name and part of every entry."""
    wide = {name: SYNONYMS[name.lower()] for name in table.columns if name.lower() in SYNONYMS}
    if "train" in wide.values():
        cells = {cell.lower() for name in wide for cell in table[name]}
        if cells <= {"true", "false", "0", "1", "0.0", "1.0"} and table.columns[0] not in wide:
            names = table[table.columns[0]]
            return [(n, part) for column, part in wide.items() for n in names[table[column].str.lower().isin(TRUE)]]
        return [(cell, part) for column, part in wide.items() for cell in table[column] if cell]
    part = next((name for name in PART_NAMES if name in table.columns), None)
    named = next((name for name in NAME_NAMES if name in table.columns), None)
    if part is None or named is None:
        raise UserError(
            f"{path} is no split: expected columns train, val, test, or slide_id (or patient_id) and part; it has: "
            f"{', '.join(table.columns)}"
        )
    return [(name, _part(word, str(path))) for name, word in zip(table[named], table[part], strict=True) if word]


def _part(word: str, where: str) -> str:
    if word.lower() not in SYNONYMS:
        raise UserError(f"{where}: unknown part {word!r}; use train, val or test")
    return SYNONYMS[word.lower()]


def _found(pairs: list[tuple[str, str]], cohort: pd.DataFrame, path: Path, *, allow_missing: bool) -> tuple[Parts, str]:
    slides = {name: [name] for name in cohort.slide_id}
    loose = {comparable_name(name): [name] for name in cohort.slide_id}
    patients = cohort.groupby("patient_id").slide_id.apply(list).to_dict()
    placed: list[tuple[str, str]] = []
    unknown: list[str] = []
    for name, part in pairs:
        members = slides.get(name) or patients.get(name) or loose.get(comparable_name(name))
        placed += [(member, part) for member in members or ()]
        if members is None:
            unknown.append(name)
    if unknown and not allow_missing:
        near = nearest(unknown[0], [*slides, *patients])
        hint = f" (nearest to {unknown[0]}: {near})" if near else ""
        raise UserError(
            f"{path}: {len(unknown)} of {counted(len(pairs), 'name')} not in the cohort: {listed(unknown)}{hint}; "
            "allow_missing leaves them out"
        )
    without = f", {len(unknown)} not in the cohort: {listed(unknown)}" if unknown else ""
    return _grouped(placed), f"{path} ({counted(len(pairs), 'name')}{without})"


def _grouped(placed: list[tuple[str, str]]) -> Parts:
    distinct = list(dict.fromkeys(placed))
    return Parts(*([name for name, where in distinct if where == part] for part in PARTS))
