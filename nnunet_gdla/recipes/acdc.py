"""ACDC: cardiac cine MRI, two labelled frames (end of diastole and of systole) a patient."""

import re
from collections import defaultdict
from pathlib import Path

from nnunet_gdla.recipes.layout import (
    Case,
    Found,
    Options,
    Record,
    Target,
    list_files,
    sort_out,
    unknown_layout,
)
from nnunet_gdla.recipes.volumes import copy_volume, write_labels
from nnunet_gdla.words import counted

__all__ = ["find", "write"]

_FRAME = re.compile(
    r"(?:.*/)?(?P<pool>training|testing)/(?P<patient>patient\d+)/(?P=patient)_frame(?P<frame>\d+)(?P<gt>_gt)?\.nii(\.gz)?"
)
_EXPECTED = "training/patient001/{Info.cfg, patient001_frame01.nii.gz, patient001_frame01_gt.nii.gz}"
_LABELS = {"background": 0, "RV": 1, "MYO": 2, "LV": 3}
_SAME = {value: value for value in _LABELS.values()}
_BESIDE = re.compile(r"(Info\.cfg|MANDATORY_CITATION\.md|patient\d+_4d\.nii(\.gz)?)$")


def find(source: Path, options: Options) -> Found:
    """Find the labelled frames; both of a patient belong together. Volumes keep their voxels and spacing.

    Patients in a folder `testing`, where there is one, stand outside the paper's split of the 100 in `training`: they
    are taken only where a split file names them.

    Raises:
        UserError: If the folder has another layout.
    """
    del options
    files = list_files(source)
    images: dict[tuple[str, str], tuple[Path, str]] = {}
    labels: dict[tuple[str, str], Path] = {}
    doubles: dict[Path, str] = {}
    for path in files:
        match = _FRAME.fullmatch(path.relative_to(source.parent).as_posix())
        if match is None:
            continue
        key = (match["patient"], match["frame"])
        known = labels.get(key) if match["gt"] else images.get(key, (None,))[0]
        if known is not None:
            doubles[path] = f"second file of that name, see {known.relative_to(source)}"
        elif match["gt"]:
            labels[key] = path
        else:
            images[key] = (path, match["pool"])
    if not images or not labels:
        there = f"there are {counted(len(images), 'frame')} and {counted(len(labels), 'label')} of that form"
        raise unknown_layout(source, _EXPECTED, there)
    cases = [
        Case(f"{patient}_frame{frame}", patient, (path, labels[patient, frame]), pool="testing" * (pool == "testing"))
        for (patient, frame), (path, pool) in sorted(images.items())
        if (patient, frame) in labels
    ]
    found = Found(cases, write, {"0": "MRI"}, _LABELS, ".nii.gz", len(files))
    reasons = {images[key][0]: "frame without labels" for key in images.keys() - labels.keys()} | doubles
    reasons |= {labels[key]: "labels without their frame" for key in labels.keys() - images.keys()}
    told = {path.relative_to(source).as_posix(): reason for path, reason in reasons.items()}
    used = [path for case in cases for path in case.sources]
    found.skipped = sort_out(files, used, source, lambda name: told.get(name) or _why(name))
    found.notes = _notes(cases)
    return found


def write(case: Case, target: Target) -> Record:
    """Copy one frame and write its labels."""
    image, label = case.sources
    record = write_labels(image, label, target.label, _SAME)
    copy_volume(image, target.image)
    return record


def _notes(cases: list[Case]) -> list[str]:
    frames = defaultdict(list)
    for case in cases:
        frames[case.group].append(case)
    odd = sorted(patient for patient, own in frames.items() if len(own) != 2)
    notes = [f"{counted(len(frames), 'patient')}; all frames of a patient stay together in a split"]
    if odd:
        notes.append(f"{counted(len(odd), 'patient')} without exactly two labelled frames: {', '.join(odd)}")
    outside = sorted({case.group for case in cases if case.pool})
    if outside:
        notes.append(f"outside the paper's split: {counted(len(outside), 'patient')} in the folder testing")
    return notes


def _why(name: str) -> str | None:
    return "not needed: beside the labelled frames" if _BESIDE.search(name) else None
