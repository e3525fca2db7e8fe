"""Labels, times and events of a table: text becomes what is learned, and what cannot is said."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

import pandas as pd

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.table_file import listed

T = TypeVar("T")

__all__ = [
    "MISSING",
    "class_order",
    "constant_in_patients",
    "entries",
    "missing",
    "read_labels",
    "read_times",
    "whole",
    "with_lines",
]

# Cells that mean "not known", in any case of letters. "None" is not among them: it can be a class.
MISSING: Final = frozenset({"", "nan", "na", "n/a", "<na>", "#n/a", "null"})
# What YAML reads as a truth value, in small letters, capitalised or in capitals.
YAML_WORDS: Final = {True: ("true", "yes", "on"), False: ("false", "no", "off")}
INTEGER: Final = re.compile(r"[+-]?\d+(\.0*)?")
NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
DECIMAL_COMMA: Final = re.compile(r"[+-]?\d+,\d+")
THOUSANDS: Final = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")


def missing(column: pd.Series) -> "pd.Series[bool]":
    """Return where a text column holds nothing."""
    return column.str.lower().isin(MISSING)


def read_labels(column: pd.Series, label_map: Mapping[Any, str] | None, notes: list[str]) -> pd.Series:
    """Return class names as text: mapped, and whole numbers as such (`1.0` is `1`).

    Raises:
        UserError: If a label is not in the map, or labels differ only in capitals or blanks.
    """
    if label_map is not None:
        wanted = {name: str(to) for name, to in entries(label_map).items()}
        values = column.map(whole)
        unknown = sorted(set(values) - set(wanted))
        if unknown:
            raise UserError(f"label_map says nothing about {listed(unknown)}; it knows: {', '.join(wanted)}")
        return values.map(wanted)
    if _all_match(INTEGER, column):
        column = column.map(whole)
    folded: dict[str, str] = {}
    for label in class_order(column):
        plain = " ".join(label.lower().split())
        if plain in folded:
            raise UserError(
                f"column {column.name}: labels {folded[plain]!r} and {label!r} differ only in capitals or blanks; "
                "correct the table, or say by label_map which class each of them is"
            )
        folded[plain] = label
    numbers = class_order(column)
    if all(INTEGER.fullmatch(name) for name in numbers) and numbers != [str(n) for n in range(len(numbers))]:
        notes.append(f"labels are the numbers {', '.join(numbers)}: {len(numbers)} classes, not {numbers[-1]} + 1")
    return column


def class_order(labels: Sequence[str] | pd.Series) -> list[str]:
    """Return the distinct class names, whole numbers by value, otherwise by text."""
    names = set(labels)
    if all(INTEGER.fullmatch(name) for name in names):
        return sorted(names, key=lambda name: (float(name), name))
    return sorted(names)


def read_times(column: pd.Series, notes: list[str]) -> pd.Series:
    """Return follow-up times as float; a decimal comma is understood where it cannot mean thousands.

    Raises:
        UserError: If a cell is no number, or its comma could be either.
    """
    comma = column[column.str.contains(",", regex=False)]
    if len(comma):
        if _all_match(THOUSANDS, comma):
            raise UserError(f"column {column.name}: has {comma.iloc[0]!r} a decimal comma, or thousands? Write dots")
        if _all_match(DECIMAL_COMMA, comma) and not column.str.contains(".", regex=False).any():
            notes.append(f"column {column.name}: commas are decimal commas, such as {comma.iloc[0]}")
            column = column.str.replace(",", ".", regex=False)
    wrong = {cell for cell in column if not NUMBER.fullmatch(cell) or not math.isfinite(float(cell))}
    if wrong:
        raise UserError(f"column {column.name}: {with_lines(column, wrong, quoted=True)} is no number")
    return column.astype(float)


def constant_in_patients(table: pd.DataFrame, columns: Sequence[str], why: str) -> None:
    """Raise where rows of one patient differ in these columns; names the patients.

    Raises:
        UserError: As said.
    """
    for column in columns:
        different = table.groupby("patient_id")[column].nunique()
        patients = different[different > 1].index.tolist()
        if patients:
            raise UserError(f"{column} differs between slides of patient {listed(patients)}; {why}")


def with_lines(column: pd.Series, cells: Collection[str], *, quoted: bool = False) -> str:
    """Return each of these cells with the first line of the table that holds it."""
    first = column[column.isin(list(cells))].drop_duplicates().sort_values()
    return listed([f"{cell!r} (line {line})" if quoted else f"{cell} (line {line})" for line, cell in first.items()])


def _all_match(pattern: re.Pattern[str], column: pd.Series) -> bool:
    return all(pattern.fullmatch(cell) for cell in column)


def whole(cell: str) -> str:
    """Return a whole number without its decimals: `1.0` is `1`."""
    return cell.split(".")[0] if INTEGER.fullmatch(cell) and "." in cell else cell


def entries(names: Mapping[Any, T]) -> dict[str, T]:
    """Return a map with its keys as text; one that YAML made a truth value stands for all that it may have been."""
    found: dict[str, T] = {}
    for name, value in names.items():
        words = YAML_WORDS[name] if isinstance(name, bool) else ()
        found |= {spelt: value for word in words for spelt in (word, word.capitalize(), word.upper())}
    return found | {whole(str(name)): value for name, value in names.items() if not isinstance(name, bool)}
