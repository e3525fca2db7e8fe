"""CSV tables as people have them, read as text and nothing but text."""

import csv
import difflib
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import pandas as pd

from nnunet_gdla.errors import UserError

__all__ = ["listed", "nearest", "read_table"]

DELIMITERS: Final = (",", ";", "\t", "|")
# Column names that an index gets when pandas or a spreadsheet saves it.
INDEX_NAMES: Final = ("", "Unnamed: 0")
NAMED: Final = 10


def read_table(path: str | Path, wanted: Sequence[str] = (), *, drop_index: bool = True) -> pd.DataFrame:
    """Read a table whose cells all stay text: `007`, `1e5` and `nan` are names.

    Delimiter (comma, semicolon, tab, bar) and byte order mark are recognised; blank lines, a column of row numbers
    without a name, and blanks around cells are dropped. Row labels are the line numbers of the file.

    Args:
        path: The file.
        wanted: Column names that help to recognise the delimiter.
        drop_index: False keeps a first column without a name.

    Raises:
        UserError: If the file cannot be read as a table, or a line has another number of cells than the first.
    """
    path = Path(path)
    text = _text(path)
    first = next((line for line in text.splitlines() if line.strip()), "")
    if not first:
        raise UserError(f"{path} is empty; expected a line of column names and a line per slide")
    delimiter = max(DELIMITERS, key=lambda each: _fitness(first, each, wanted))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        lines = [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
    except csv.Error as error:
        raise UserError(f"{path} cannot be read as a table: {error}") from None
    (_, header), *rows = [(number, row) for number, row in lines if any(row)]
    rows = [(number, row[: len(header)] if not any(row[len(header) :]) else row) for number, row in rows]
    uneven = [str(number) for number, row in rows if len(row) != len(header)]
    if uneven:
        raise UserError(f"{path}: not {len(header)} cells, as the first line has, in line {listed(uneven)}")
    table = pd.DataFrame([row for _, row in rows], columns=header, index=[n for n, _ in rows], dtype=str)
    if drop_index:
        table = table.loc[:, [not (place == 0 and name in INDEX_NAMES) for place, name in enumerate(header)]]
    twice = [name for name, count in Counter(table.columns).items() if count > 1]
    if twice:
        raise UserError(f"{path}: several columns are called {listed(twice)}")
    return table


def listed(names: Sequence[str]) -> str:
    """Return names for a message: all of a few, the first of many with their number."""
    shown = ", ".join(names[:NAMED])
    return shown if len(names) <= NAMED else f"{shown}, ... ({len(names)} in all)"


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the name that `name` was probably meant to be: the same number (`7.0` and `007`), or a similar text."""
    names = list(names)
    equal = [each for each in names if _number(name) is not None and _number(each) == _number(name)]
    return next(iter(equal or difflib.get_close_matches(name, names, n=1)), None)


def _number(name: str) -> float | None:
    try:
        return float(name)
    except ValueError:
        return None


def _text(path: Path) -> str:
    if path.suffix.lower() in (".xlsx", ".xls", ".ods"):
        raise UserError(f"{path} is a spreadsheet; save it as CSV (UTF-8)")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the table {path}: {error.strerror}") from None
    encoding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UserError(f"{path} is not UTF-8 (line {line}); save it as CSV UTF-8") from None


def _fitness(header: str, delimiter: str, wanted: Sequence[str]) -> tuple[int, int]:
    names = [name.strip() for name in next(csv.reader([header], delimiter=delimiter))]
    return sum(name in names for name in wanted), len(names)
