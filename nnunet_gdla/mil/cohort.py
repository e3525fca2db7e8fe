"""A cohort: one row per slide with its patient, its file, and what is to be learned."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil import cohort_steps as steps
from nnunet_gdla.mil.cohort_events import many_events
from nnunet_gdla.mil.cohort_match import find_files
from nnunet_gdla.mil.cohort_targets import constant_in_patients
from nnunet_gdla.mil.remarks import Remarks
from nnunet_gdla.mil.table_file import listed, read_table
from nnunet_gdla.words import counted

__all__ = ["Cohort", "Columns", "Task", "folder_cohort", "read_cohort"]

Task = Literal["classification", "survival"]


@dataclass(frozen=True)
class Columns:
    """Names of a table's columns; None takes the usual name where the table has it.

    Attributes:
        slide: Slide names.
        label: Class.
        time: Follow-up time.
        event: Whether the event was seen.
        site: Hospital, usually "site".
        centre: Centre, usually "centre" or "center".
        split: train, val or test, usually "split".
    """

    slide: str = "slide_id"
    label: str = "label"
    time: str = "time"
    event: str = "event"
    site: str | None = None
    centre: str | None = None
    split: str | None = None


@dataclass(frozen=True, eq=False)
class Cohort:
    """The slides that take part.

    Attributes:
        task: What is learned; None without labels.
        table: One row per slide: slide_id, patient_id, path (text); label (text), or time (float) and event (0 or 1);
            site, centre and split where the table had them.
        classes: Class names in the order of the outputs; empty for survival.
        remarks: What was counted, changed and left out, with names.
    """

    task: Task | None
    table: pd.DataFrame
    classes: tuple[str, ...] = ()
    remarks: Remarks = field(default_factory=Remarks)

    @property
    def notes(self) -> list[str]:
        """All remarks, one sentence each."""
        return self.remarks.notes + self.remarks.warnings

    @property
    def paths(self) -> dict[str, Path]:
        """Feature file of every slide."""
        return {slide: Path(path) for slide, path in zip(self.table.slide_id, self.table.path, strict=True)}

    def __len__(self) -> int:
        return len(self.table)


def folder_cohort(features: str | Path | Sequence[str | Path], *, patient: str | None = None) -> Cohort:
    """Take every feature file of a folder, and of its subfolders, as a slide without label.

    Args:
        features: Folder or folders.
        patient: "tcga", or None: every slide is its own patient.

    Raises:
        UserError: If there are no files, or two of the same name.
    """
    files = find_files(features).unique()
    table = pd.DataFrame({"slide_id": list(files), "path": [str(path) for path in files.values()]}, dtype=str)
    remarks = Remarks([f"{counted(len(table), 'slide')} in {_folders(features)}"])
    steps.add_patients(table, table, patient or "slide", remarks, Path(_folders(features)))
    return Cohort(None, table, (), remarks)


def read_cohort(
    table: str | Path,
    features: str | Path | Sequence[str | Path],
    *,
    task: Task | None,
    columns: Columns | None = None,
    patient: str | None = None,
    sample_types: Sequence[str] | None = None,
    event_map: Mapping[Any, int] | None = None,
    event_is_censoring: bool | None = None,
    label_map: Mapping[Any, str] | None = None,
    unit: Literal["slide", "patient"] = "slide",
    classes: Sequence[str] | None = None,
    allow_missing: bool = False,
) -> Cohort:
    """Read a table, find the file of every row, and turn its entries into labels, or times and events.

    Args:
        table: CSV file (`read_table`). Cells that are empty or say nan, NA, n/a or null hold no label, time or event;
            such slides are left out, counted and named. So are times of zero or less.
        features: Folder or folders of the feature files, searched with their subfolders; `FeatureFiles` says which
            name fits which file.
        task: What is learned. None: only names are read.
        columns: Names of the columns.
        patient: A column; "tcga": the first 12 characters of the slide name; "slide": every slide is its own patient.
            None: column patient_id where there is one, else as "slide".
        sample_types: TCGA sample types to keep, such as "01" (01A and 01Z too) or "11A".
        event_map: What entries of the event column mean, 1 (event) or 0 (censored).
        event_is_censoring: Whether 1 means censored in the event column, so that 0 is the event. None: 1 is the event,
            and a column whose name says censored or alive is refused.
        label_map: Class of every label.
        unit: "patient" refuses several labels of one patient.
        classes: Classes of an existing model: other labels are refused, and some may be absent.
        allow_missing: Leave out rows without a file; otherwise they are refused.

    Raises:
        UserError: If the table cannot be used; names the rows.
    """
    columns, path, remarks = columns or Columns(), Path(table), Remarks()
    wanted = _wanted(columns, task)
    raw = read_table(path, wanted)
    steps.require_columns(raw, wanted, path)
    if not len(raw):
        raise UserError(f"{path} has column names but no rows")
    slides = steps.match_files(raw, columns.slide, find_files(features), path, remarks, allow_missing=allow_missing)
    steps.add_patients(slides, raw, patient, remarks, path)
    steps.add_place(slides, raw, vars(columns), tcga=patient == "tcga")
    slides = steps.keep_sample_types(slides, sample_types, path, remarks)
    if task == "classification":
        slides = steps.with_labels(slides, raw[columns.label], label_map, remarks)
    elif task == "survival":
        slides = steps.with_survival(
            slides, raw[columns.time], raw[columns.event], event_map, remarks, censoring=event_is_censoring
        )
    slides = steps.without_duplicates(slides, path, remarks)
    if not len(slides):
        raise UserError(f"{path}: no slide is left; " + "; ".join(remarks.notes + remarks.warnings))
    found: tuple[str, ...] = ()
    if task == "classification":
        found = steps.check_classes(slides, classes, unit, path, remarks)
    elif task == "survival":
        constant_in_patients(slides, ["time", "event"], "they belong to the patient: correct the table")
        patients = slides.drop_duplicates("patient_id").event.tolist()
        if doubt := many_events(patients, columns.event, event_is_censoring):
            remarks.warnings.append(doubt)
    remarks.notes.insert(0, _summary(slides, found, path))
    return Cohort(task, slides.reset_index(drop=True), found, remarks)


def _wanted(columns: Columns, task: Task | None) -> list[str]:
    targets = {"classification": [columns.label], "survival": [columns.time, columns.event]}
    optional = [name for name in (columns.site, columns.centre, columns.split) if name is not None]
    return [columns.slide, *(targets[task] if task is not None else []), *optional]


def _summary(slides: pd.DataFrame, classes: tuple[str, ...], path: Path) -> str:
    text = f"{path}: {counted(len(slides), 'slide')} of {counted(slides.patient_id.nunique(), 'patient')}"
    if classes:
        counts = slides.label.value_counts()
        text += "; " + ", ".join(f"{name} {counts.get(name, 0)}" for name in classes)
    elif "event" in slides:
        patients = slides.drop_duplicates("patient_id")
        text += f"; {counted(int(patients.event.sum()), 'event')}"
    return text


def _folders(features: str | Path | Sequence[str | Path]) -> str:
    return str(features) if isinstance(features, str | Path) else listed([str(each) for each in features])
