"""Who trains, who chooses the epoch, who is tested: always whole patients, never drawn twice, written with the run."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.cohort import Cohort
from nnunet_gdla.mil.cohort_targets import class_order
from nnunet_gdla.mil.files import write_csv
from nnunet_gdla.mil.splits_draw import draw_folds, draw_shares
from nnunet_gdla.mil.splits_file import PARTS, parts_of_column, parts_of_file
from nnunet_gdla.mil.splits_paper import Parts, grouped_holdout, stratified_holdout, survival_holdout
from nnunet_gdla.mil.table_file import listed, read_table
from nnunet_gdla.words import counted

__all__ = ["Scheme", "Split", "audit_split", "holdout_split", "make_splits", "read_split", "split_lines", "write_split"]

Scheme = Literal["paper", "holdout", "kfold", "site", "centre", "file"]
Rule = Literal["auto", "survival", "stratified", "grouped", "centre", "provider"]


class Split(NamedTuple):
    """Slide names of the three parts, how they came about, and what was decided that nobody asked for."""

    train: tuple[str, ...]
    val: tuple[str, ...]
    test: tuple[str, ...]
    name: str = ""
    note: str = ""


def make_splits(
    cohort: Cohort,
    scheme: Scheme,
    *,
    seed: int = 0,
    folds: int = 5,
    fold: int = 0,
    file: str | Path | None = None,
    centre: str | None = None,
    val_share: float = 0.1,
    test_share: float = 0.2,
    allow_missing: bool = False,
) -> Split:
    """Split a cohort by patients.

    Args:
        cohort: Slides with labels, or times and events.
        scheme: "paper": seed hold-out of the publication (`holdout_split`). "holdout": shares drawn within every
            class, or within events and quartiles of time. "kfold": part `fold` of `folds` is tested. "site": as
            "kfold", and no site is in two parts. "centre": the centre numbered `fold` (or named by `centre`) is
            tested. "file": your own, from `file` or from the column split of the cohort.
        seed: Seed of the draw.
        folds: Number of parts of "kfold" and "site".
        fold: Which part is tested, from 0.
        file: Table of your own split: columns train, val, test holding names; or slide_id (or patient_id) and part.
        centre: Name of the centre that is tested.
        val_share: Share of all that validates.
        test_share: Share of all that is tested ("holdout"); 0 leaves no test part.
        allow_missing: Let the file name slides that the cohort does not have.

    Raises:
        UserError: If the cohort cannot be split so, or a patient would be in two parts.
    """
    if scheme not in get_args(Scheme):
        raise ValueError(f"unknown scheme {scheme!r}; choose one of {', '.join(get_args(Scheme))}")
    if not 0 < val_share < 1:
        raise UserError(
            f"val_share is {val_share:g}; it must be greater than 0 and less than 1: other shares leave too little to "
            "train, or none to validate"
        )
    table = cohort.table
    if scheme == "file":
        split = _from_file(cohort, file, allow_missing=allow_missing, val_share=val_share, seed=seed)
    elif cohort.task is None:
        raise UserError("a cohort without labels can only be split by a file")
    elif table.patient_id.nunique() == 1:
        raise UserError(f"all slides are of one patient, {table.patient_id.iloc[0]}, who cannot be in three parts")
    elif scheme == "paper":
        split = holdout_split(table, seed)
    elif scheme == "holdout":
        split = _of_patients(table, draw_shares(table, val_share, test_share, seed), f"holdout seed {seed}")
    elif scheme == "centre":
        split = _leave_one_out(table, fold, centre, val_share, seed)
    else:
        groups = "patient_id" if scheme == "kfold" else "site"
        parts = draw_folds(table, groups, folds, fold, val_share, seed)
        split = _of_slides(parts, f"{scheme} {fold} of {folds} seed {seed}")
    audit_split(split, cohort)
    return _with_used_share(split, table, val_share) if scheme in ("holdout", "kfold", "site") else split


def holdout_split(table: pd.DataFrame, seed: int, *, rule: Rule = "auto") -> Split:
    """Return the seed hold-out of the publication.

    Args:
        table: One row per slide: slide_id, patient_id, and label, or time and event.
        seed: 42 to 46 in the publication.
        rule: "survival": patients by event and quartile of time. "stratified": slides by label (Camelyon16, KGH).
            "grouped": patients, all classes balanced (BRACS). "centre": patients by centre (Camelyon17). "provider":
            slides by centre and label in table order (PANDA). "auto": the first for survival; of the others
            "stratified" if every patient has one slide, otherwise "grouped".

    Raises:
        UserError: If the rule would part the slides of a patient, or cannot be followed.
    """
    if rule not in get_args(Rule):
        raise ValueError(f"unknown rule {rule!r}; choose one of {', '.join(get_args(Rule))}")
    alone = not table.patient_id.duplicated().any()
    if rule == "auto":
        rule = "survival" if "event" in table else "stratified" if alone else "grouped"
    name = f"paper {rule} seed {seed}"
    if rule in ("stratified", "provider"):
        if not alone:
            raise UserError(f"rule {rule} splits slides, but some patients have several; use rule grouped")
        return _of_slides(stratified_holdout(_slide_groups(table, rule), seed), name)
    if rule == "survival":
        patients = table.drop_duplicates("patient_id").set_index("patient_id")
        parts = survival_holdout(patients["event"].to_dict(), patients["time"].to_dict(), seed)
    elif rule == "centre":
        parts = stratified_holdout(_patients_by_centre(table), seed)
    else:
        parts = grouped_holdout(_class_counts(table), seed)
    return _of_patients(table, parts, name)


def audit_split(split: Split, cohort: Cohort) -> None:
    """Check a split against a cohort.

    Raises:
        UserError: If a name is not in the cohort, a slide or patient is in two parts, or training or validation is
            empty; says who.
    """
    patient_of = dict(zip(cohort.table.slide_id, cohort.table.patient_id, strict=True))
    parts = {part: getattr(split, part) for part in PARTS}
    unknown = [name for names in parts.values() for name in names if name not in patient_of]
    if unknown:
        raise UserError(f"split {split.name}: not in the cohort: {counted(len(unknown), 'slide')}: {listed(unknown)}")
    for kind, owner in (("slide", {name: name for name in patient_of}), ("patient", patient_of)):
        where: dict[str, set[str]] = defaultdict(set)
        for part, names in parts.items():
            for name in names:
                where[owner[name]].add(part)
        shared = [f"{name} ({' and '.join(sorted(places))})" for name, places in where.items() if len(places) > 1]
        if shared:
            raise UserError(f"split {split.name}: in several parts: {counted(len(shared), kind)}: {listed(shared)}")
    for part in ("train", "val"):
        if not parts[part]:
            raise UserError(f"split {split.name}: no slide is in part {part}")


def split_lines(split: Split, cohort: Cohort) -> list[str]:
    """Return how many slides, patients and classes (or events) every part has, and who is in none: PASS or WARN."""
    table = cohort.table.set_index("slide_id")
    lines, warnings = [], []
    for part in PARTS:
        rows = table.loc[list(getattr(split, part))]
        line = f"PASS {part}: {counted(len(rows), 'slide')} of {counted(rows.patient_id.nunique(), 'patient')}"
        counts: dict[str, int] = {}
        if cohort.task == "classification":
            counts = {name: int((rows.label == name).sum()) for name in cohort.classes}
            line += "; " + ", ".join(f"{name} {count}" for name, count in counts.items())
        elif cohort.task == "survival":
            counts = {"an event": int(rows.drop_duplicates("patient_id").event.sum())}
            line += f"; {counted(counts['an event'], 'event')}"
        lines.append(line)
        absent = [name for name, count in counts.items() if not count]
        if absent and len(rows) and part != "train":  # a training part without them is refused
            warnings.append(f"WARN {part} has no slide with {_what_absence_means(absent, cohort)}")
    if split.note:
        warnings.append(f"WARN {split.note}")
    unused = sorted(set(table.index) - set(split.train) - set(split.val) - set(split.test))
    if unused:
        warnings.append(f"WARN in no part: {counted(len(unused), 'slide')}: {listed(unused)}")
    return lines + warnings


def _what_absence_means(absent: Sequence[str], cohort: Cohort) -> str:
    if cohort.task == "survival":
        return "an event: what is measured by events is undefined there"
    counts, its = ("it counts", "its") if len(absent) == 1 else ("they count", "their")
    return (
        f"label {listed(absent)}: in means over classes of recall, precision and F1 {counts} 0 there; {its} AUC and "
        "average precision, and so their means, are undefined"
    )


def write_split(path: str | Path, split: Split, cohort: Cohort) -> None:
    """Write a split as CSV: slide_id, patient_id, part."""
    patient_of = dict(zip(cohort.table.slide_id, cohort.table.patient_id, strict=True))
    rows = [(name, patient_of[name], part) for part in PARTS for name in getattr(split, part)]
    frame = pd.DataFrame(rows, columns=["slide_id", "patient_id", "part"])
    write_csv(Path(path), frame)


def read_split(path: str | Path) -> Split:
    """Read what `write_split` wrote; names that look like numbers stay text.

    Raises:
        UserError: If it is no such file.
    """
    table = read_table(path, ["slide_id", "part"])
    if not {"slide_id", "part"} <= set(table.columns) or not set(table.part) <= set(PARTS):
        raise UserError(f"{path} is no written split: expected columns slide_id, patient_id, part (train, val, test)")
    return _of_slides(Parts(*(list(table.slide_id[table.part == part]) for part in PARTS)), str(path))


def _with_used_share(split: Split, table: pd.DataFrame, val_share: float) -> Split:
    """Note where far more, or far fewer, patients validate than were asked for."""
    validate, patients = (rows.patient_id.nunique() for rows in (table[table.slide_id.isin(split.val)], table))
    if abs(validate - val_share * patients) <= max(1.0, 0.25 * val_share * patients):
        return split
    return split._replace(
        note=f"validation has {validate / patients:.0%} of the patients ({validate} of {patients}), asked for were "
        f"{val_share:.0%}: classes or sites are too small for that share"
    )


def _from_file(cohort: Cohort, file: str | Path | None, *, allow_missing: bool, val_share: float, seed: int) -> Split:
    if file is not None:
        parts, name = parts_of_file(Path(file), cohort.table, allow_missing=allow_missing)
    else:
        parts, name = parts_of_column(cohort.table), "column split"
    if not parts.val and parts.train and cohort.task is not None:
        inside = cohort.table[cohort.table.slide_id.isin(parts.train)]
        drawn = _of_patients(inside, draw_shares(inside, val_share, 0.0, seed), "")
        share = f"{val_share:g} of train validates (seed {seed})"
        note = f"the split has no part val, so {share}: {counted(len(drawn.val), 'slide')}"
        return Split(drawn.train, drawn.val, tuple(parts.test), f"{name}, {share}", note)
    return _of_slides(parts, name)


def _leave_one_out(table: pd.DataFrame, fold: int, centre: str | None, val_share: float, seed: int) -> Split:
    if "centre" not in table:
        raise UserError("scheme centre needs a column with the centre of every slide; name it in the settings")
    centres = class_order(table.centre)
    chosen = centre if centre is not None else centres[fold] if 0 <= fold < len(centres) else None
    if chosen not in centres or len(centres) < 2:
        wanted = centre if centre is not None else f"number {fold}"
        raise UserError(f"no centre {wanted} to leave out; there are {len(centres)}: {listed(centres)}")
    inside, outside = table[table.centre != chosen], table[table.centre == chosen]
    drawn = _of_patients(inside, draw_shares(inside, val_share, 0.0, seed), "")
    return Split(drawn.train, drawn.val, tuple(outside.slide_id), f"centre {chosen} left out, seed {seed}")


def _of_slides(parts: Parts, name: str) -> Split:
    return Split(tuple(parts.train), tuple(parts.val), tuple(parts.test), name)


def _of_patients(table: pd.DataFrame, parts: Parts, name: str) -> Split:
    return _of_slides(Parts(*(list(table.slide_id[table.patient_id.isin(patients)]) for patients in parts)), name)


def _slide_groups(table: pd.DataFrame, rule: str) -> dict[object, list[str]]:
    if rule == "stratified":
        ordered = table.sort_values("slide_id")
        return {label: list(ordered.slide_id[ordered.label == label]) for label in sorted(set(ordered.label))}
    key = pd.Series(list(zip(_place(table), table.label, strict=True)), index=table.index)
    return {pair: list(table.slide_id[key == pair]) for pair in sorted(set(key))}


def _patients_by_centre(table: pd.DataFrame) -> dict[object, list[str]]:
    centre = pd.Series(_place(table).to_numpy(), index=table.patient_id)
    centre = centre[~centre.index.duplicated()].sort_index()
    return {name: list(centre.index[centre == name]) for name in sorted(set(centre))}


def _place(table: pd.DataFrame) -> pd.Series:
    for name in ("centre", "site"):
        if name in table:
            return table[name]
    raise UserError("this rule needs a column with the centre of every slide; name it in the settings")


def _class_counts(table: pd.DataFrame) -> dict[str, NDArray[np.int64]]:
    classes = class_order(table.label)
    counts = pd.crosstab(table.patient_id, table.label).reindex(columns=classes, fill_value=0)
    return {str(patient): row.to_numpy(np.int64) for patient, row in counts.iterrows()}
