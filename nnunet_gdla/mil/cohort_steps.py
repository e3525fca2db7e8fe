"""The steps from a table of text to a cohort; each says what it counted and left out."""

import difflib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import pandas as pd

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.cohort_events import read_events
from nnunet_gdla.mil.cohort_match import FeatureFiles
from nnunet_gdla.mil.cohort_targets import (
    class_order,
    constant_in_patients,
    missing,
    read_labels,
    read_times,
)
from nnunet_gdla.mil.remarks import Remarks
from nnunet_gdla.mil.slides.names import slide_id_of
from nnunet_gdla.mil.table_file import listed
from nnunet_gdla.words import counted

__all__ = [
    "add_patients",
    "add_place",
    "check_classes",
    "keep_sample_types",
    "match_files",
    "require_columns",
    "with_labels",
    "with_survival",
    "without_duplicates",
]

BARCODE: Final = re.compile(r"TCGA-[A-Z0-9]{2}-[A-Z0-9]{4}(?![A-Z0-9])", re.IGNORECASE)
SAMPLE: Final = re.compile(r"TCGA-[A-Z0-9]{2}-[A-Z0-9]{4}-(\d{2}[A-Z]?)(?![A-Z0-9])", re.IGNORECASE)
PATIENT_NAMES: Final = ("patient_id", "case_id", "patient")
# Looking for the nearest name takes a while in large folders.
HINTED: Final = 5
PLACE_NAMES: Final = {"site": ("site",), "centre": ("centre", "center"), "split": ("split",)}


def require_columns(table: pd.DataFrame, wanted: Sequence[str], path: Path) -> None:
    """Raise where a column is not there; says which are, and the nearest."""
    for name in wanted:
        if name not in table.columns:
            folded = {column.lower(): column for column in reversed(table.columns)}
            near = [folded[each] for each in difflib.get_close_matches(name.lower(), list(folded), n=1)]
            hint = f", did you mean {near[0]}?" if near else "."
            raise UserError(
                f"{path} has no column {name!r}{hint} It has: {', '.join(table.columns)}. "
                "Name the columns of your table in the settings"
            )


def match_files(
    raw: pd.DataFrame, column: str, files: FeatureFiles, path: Path, remarks: Remarks, *, allow_missing: bool
) -> pd.DataFrame:
    """Return slide_id and path of every row that has a file; refuses or counts the others."""
    names = raw[column]
    nameless = [str(line) for line in names.index[names == ""]]
    if nameless:
        raise UserError(f"{path}: no slide name in column {column}, line {listed(nameless)}")
    paths = names.map(files.of)
    absent = list(dict.fromkeys(names[paths.isna()]))
    if absent:
        hinted = [name + files.hint(name) if place < HINTED else name for place, name in enumerate(absent)]
        message = f"{counted(len(absent), 'row')} without a file: {listed(hinted)}"
        if not allow_missing:
            raise UserError(f"{path}: {message}. Searched: {files.folders()}; allow_missing leaves them out")
        remarks.warnings.append(f"left out {message}")
    paths = paths[paths.notna()]
    unused = sorted({slide_id_of(each) for each in set(files.paths) - set(paths)})
    if unused:
        remarks.notes.append(f"{counted(len(unused), 'file')} without a row in the table: {listed(unused)}")
    return pd.DataFrame({"slide_id": paths.map(slide_id_of), "path": paths.map(str)}, dtype=str)


def add_patients(slides: pd.DataFrame, raw: pd.DataFrame, patient: str | None, remarks: Remarks, path: Path) -> None:
    """Insert column patient_id; see `read_cohort`."""
    if patient == "tcga":
        strange = [name for name in slides.slide_id if BARCODE.match(name) is None]
        if strange:
            raise UserError(f"{path}: patient is tcga, but no TCGA barcode starts {listed(strange)}")
        patients = slides.slide_id.map(lambda name: name[:12].upper())
        types = Counter(_sample_type(name) for name in slides.slide_id)
        remarks.notes.append("sample types: " + ", ".join(f"{kind} ({count})" for kind, count in sorted(types.items())))
    elif patient == "slide":
        patients = slides.slide_id
    else:
        column = patient or next((name for name in PATIENT_NAMES if name in raw.columns), None)
        patients = _own_patients(slides, path, remarks) if column is None else _from_column(raw, column, slides, path)
    slides.insert(1, "patient_id", patients)


def add_place(slides: pd.DataFrame, raw: pd.DataFrame, chosen: Mapping[str, str | None], *, tcga: bool) -> None:
    """Add site, centre and split where the table has them; the site of a TCGA slide is in its name."""
    for name, usual in PLACE_NAMES.items():
        column = chosen.get(name) or next((each for each in usual if each in raw.columns), None)
        if column is not None:
            slides[name] = raw.loc[slides.index, column]
    if tcga and "site" not in slides:
        slides["site"] = slides.patient_id.str[5:7]


def with_labels(
    slides: pd.DataFrame, column: pd.Series, label_map: Mapping[Any, str] | None, remarks: Remarks
) -> pd.DataFrame:
    """Add the column label; slides without one are left out."""
    column = column[slides.index]
    empty = missing(column)
    slides = _without(slides, empty, "without a label", remarks)
    return slides.assign(label=read_labels(column[~empty], label_map, remarks.notes))


def with_survival(
    slides: pd.DataFrame,
    time: pd.Series,
    event: pd.Series,
    event_map: Mapping[Any, int] | None,
    remarks: Remarks,
    *,
    censoring: bool | None = None,
) -> pd.DataFrame:
    """Add the columns time and event; slides without one, or with a time of zero or less, are left out."""
    time, event = time[slides.index], event[slides.index]
    empty = missing(time) | missing(event)
    slides = _without(slides, empty, "without a time or event", remarks, {"time": time, "event": event})
    cells = time[~empty]
    times = read_times(cells, remarks.notes)
    events = read_events(event[~empty], event_map, censoring=censoring, remarks=remarks)
    slides = slides.assign(time=times, event=events)
    return _without(slides, times <= 0, "with a time of zero or less", remarks, {"time": cells})


def without_duplicates(slides: pd.DataFrame, path: Path, remarks: Remarks) -> pd.DataFrame:
    """Drop rows that repeat another one; raise where two rows of a slide differ."""
    distinct = slides.drop_duplicates()
    repeated = slides[slides.duplicated()].slide_id.unique().tolist()
    if repeated:
        remarks.warnings.append(
            f"{counted(len(repeated), 'slide')} more than once, with equal entries: {listed(repeated)}"
        )
    conflicting = distinct[distinct.duplicated("slide_id", keep=False)]
    if len(conflicting):
        names = conflicting.slide_id.unique().tolist()
        rows = conflicting[conflicting.slide_id == names[0]]
        columns = [name for name in rows.columns if rows[name].nunique() > 1]
        example = " and ".join(f"{', '.join(f'{name} {row[name]}' for name in columns)}" for _, row in rows.iterrows())
        lines = ", ".join(map(str, rows.index))
        raise UserError(
            f"{path}: rows contradict each other for {counted(len(names), 'slide')}: {listed(names)}; "
            f"{names[0]} has {example} (lines {lines})"
        )
    return distinct


def keep_sample_types(
    slides: pd.DataFrame, sample_types: Sequence[str] | None, path: Path, remarks: Remarks
) -> pd.DataFrame:
    """Keep the slides of these TCGA sample types."""
    if sample_types is None:
        return slides
    wanted = tuple(str(kind).upper() for kind in sample_types)
    types = slides.slide_id.map(_sample_type)
    unknown = slides.slide_id[types == "unknown"].tolist()
    if unknown:
        raise UserError(f"{path}: sample_types is given, but the name of {listed(unknown)} holds no TCGA sample type")
    drop = ~types.str.startswith(wanted)
    if drop.any():
        remarks.notes.append(
            _left_out(slides.slide_id[drop].tolist(), f"of other sample types than {', '.join(wanted)}")
        )
    return slides[~drop]


def check_classes(
    slides: pd.DataFrame, classes: Sequence[str] | None, unit: Literal["slide", "patient"], path: Path, remarks: Remarks
) -> tuple[str, ...]:
    """Return the class names in the order of the outputs; raise where there is nothing to tell apart."""
    found = class_order(slides.label)
    if unit == "patient":
        constant_in_patients(slides, ["label"], "with unit patient they must be equal")
    mixed = slides.groupby("patient_id").label.nunique()
    if (mixed > 1).any():
        patients = mixed[mixed > 1].index.tolist()
        remarks.warnings.append(
            f"{counted(len(patients), 'patient')} with slides of several classes: {listed(patients)}"
        )
    if classes is not None:
        unknown = sorted(set(found) - set(classes))
        if unknown:
            raise UserError(f"{path}: label {listed(unknown)} is none of the model's classes: {', '.join(classes)}")
        return tuple(classes)
    if len(found) < 2:
        have = "the only slide has" if len(slides) == 1 else f"all {len(slides)} slides have"
        raise UserError(f"{path}: {have} the label {found[0]}; there is nothing to learn")
    return tuple(found)


def _own_patients(slides: pd.DataFrame, path: Path, remarks: Remarks) -> pd.Series:
    barcodes = Counter(match[0].upper() for name in slides.slide_id.unique() if (match := BARCODE.match(name)))
    shared = [name for name, count in barcodes.items() if count > 1]
    if shared:
        raise UserError(
            f"{path} has no patient column ({', '.join(PATIENT_NAMES)}), and {listed(shared)} has several slides; "
            "name the column, or give patient: tcga (or patient: slide if every slide is a patient)"
        )
    remarks.warnings.append("no patient column: every slide counts as its own patient")
    return slides.slide_id


def _from_column(raw: pd.DataFrame, column: str, slides: pd.DataFrame, path: Path) -> pd.Series:
    require_columns(raw, [column], path)
    values = raw.loc[slides.index, column]
    nameless = slides.slide_id[values == ""].tolist()
    if nameless:
        raise UserError(f"{path}: no patient in column {column} for slide {listed(nameless)}")
    return values


def _sample_type(name: str) -> str:
    match = SAMPLE.match(name)
    return match[1].upper() if match else "unknown"


def _without(
    slides: pd.DataFrame,
    drop: "pd.Series[bool]",
    why: str,
    remarks: Remarks,
    cells: Mapping[str, pd.Series] | None = None,
) -> pd.DataFrame:
    """Leave slides out and say so, with the line of the table and what these cells hold."""
    if drop.any():
        found = [(line, slides.slide_id[line]) for line in slides.index[drop]]
        shown = {
            line: [f"line {line}", *(f"{name} {cell[line]!r}" for name, cell in (cells or {}).items())]
            for line, _ in found
        }
        remarks.warnings.append(_left_out([f"{name} ({', '.join(shown[line])})" for line, name in found], why))
    return slides[~drop]


def _left_out(names: Sequence[str], why: str) -> str:
    return f"left out {counted(len(names), 'slide')} {why}: {listed(names)}"
