"""The preprocessed data that a training with some plans will read, and what lies beside them."""

import filecmp
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from nnunet_gdla.commands.dataset_check import RawDataset
from nnunet_gdla.commands.dataset_files import Case
from nnunet_gdla.commands.doctor.prepared_case import check_prepared_case, expect
from nnunet_gdla.commands.doctor.storage import Storage, identifiers, storage_of
from nnunet_gdla.commands.findings import Finding, collapse, failed, passed, warned
from nnunet_gdla.commands.plans_check import Planned
from nnunet_gdla.commands.reading import quiet_readers, why_unreadable
from nnunet_gdla.words import counted

__all__ = ["check_beside", "check_prepared", "preprocess_command"]


def preprocess_command(planned: Planned) -> str:
    """Return nnU-Net's command that makes the data of a configuration."""
    number = int(planned.folder.name[7:10])
    return f"nnUNetv2_preprocess -d {number} -plans_name {planned.plans_name} -c {planned.name}"


def check_prepared(planned: Planned, raw: RawDataset, *, full: bool) -> Generator[Finding, None, set[str] | None]:
    """Yield what is wrong with the preprocessed cases of a configuration.

    Args:
        planned: The plans and what belongs to them.
        raw: The raw dataset of today.
        full: Look at every value, not at the first and the last block of each file alone.

    Returns:
        The names of the cases that a training would find; None where there are none.
    """
    folder, fix = planned.folder / str(planned.configuration.data_identifier), preprocess_command(planned)
    title = "preprocessed data"
    if not folder.is_dir():
        state = "is a file, not a folder" if folder.exists() else "does not exist"
        detail = f"{folder} {state}: nothing was preprocessed for -p {planned.plans_name} -c {planned.name}"
        yield failed(title, detail, f"move it away, then {fix}" if folder.exists() else fix)
        return None
    storage, strays = storage_of(folder)
    if storage is None:
        yield failed(title, f"{folder} holds no case for -p {planned.plans_name} -c {planned.name}", fix)
        return None
    yield from collapse(
        failed(f"file among preprocessed data in {folder}", name, "remove it: nnU-Net refuses folders of mixed files")
        for name in strays
    )
    names = identifiers(storage, folder)
    problems = collapse(_check_names(names, raw, fix))
    problems += collapse(_check_cases(planned, storage, folder, names, raw, full=full))
    yield from problems
    newer = _newer_cases(folder, names, raw)
    if newer:
        yield from collapse(
            warned("raw files newer than preprocessed data", each, f"if they changed: {fix}") for each in newer
        )
    if not problems and not strays:
        looked = "every value" if full else "headers, first and last block (--full: every value)"
        yield passed(title, f"{counted(len(names), 'case')} in {folder.name}, as raw; looked at {looked}")
    return names


def _check_names(names: set[str], raw: RawDataset, fix: str) -> Iterator[Finding]:
    for name in sorted(raw.cases.keys() - names):
        yield failed("raw case without preprocessed data", name, fix)
    for name in sorted(names - raw.cases.keys()):
        yield failed("preprocessed case that is not in the raw dataset", name, f"add it there, or {fix}")


def _check_cases(
    planned: Planned, storage: Storage, folder: Path, names: set[str], raw: RawDataset, *, full: bool
) -> Iterator[Finding]:
    expected = expect(planned, preprocess_command(planned))
    for name in tqdm(sorted(names), desc="reading preprocessed cases", leave=False, disable=None):
        label = raw.cases[name].label if name in raw.cases else None
        readable = name in raw.reports and raw.reports[name].labels and label is not None

        def mask(label: Path | None = label) -> npt.NDArray[Any]:
            with quiet_readers():
                pixels: npt.NDArray[Any] = raw.reader().read_seg(str(label))[0]
            return pixels

        yield from check_prepared_case(
            name, storage, folder, expected, raw.reports.get(name), raw_mask=mask if full and readable else None
        )


def _newer_cases(folder: Path, names: set[str], raw: RawDataset) -> list[str]:
    newer = []
    for name in sorted(names & raw.cases.keys()):
        made = folder / f"{name}.pkl"
        if made.is_file() and any(
            path.stat().st_mtime_ns > made.stat().st_mtime_ns for path in _files(raw.cases[name]) if path.is_file()
        ):
            newer.append(name)
    return newer


def _files(case: Case) -> list[Path]:
    return [*case.images, *([case.label] if case.label is not None else [])]


def check_beside(planned: Planned, raw: RawDataset, names: set[str]) -> Iterator[Finding]:
    """Yield what is wrong with dataset.json, the fingerprint and the reference masks in nnUNet_preprocessed."""
    yield from _compare_descriptions(planned, raw)
    fingerprint = planned.folder / "dataset_fingerprint.json"
    if not fingerprint.is_file():
        number = int(planned.folder.name[7:10])
        detail = f"{fingerprint} {'is a folder' if fingerprint.exists() else 'does not exist'}; a training copies it"
        away = "move it away, then " if fingerprint.exists() else ""
        yield failed("dataset_fingerprint.json", detail, f"{away}nnUNetv2_extract_fingerprint -d {number}")
    problems = collapse(_check_references(planned, raw, names))
    yield from problems
    if not problems:
        yield passed("gt_segmentations", f"{counted(len(names), 'mask')} for the final validation")


def _compare_descriptions(planned: Planned, raw: RawDataset) -> Iterator[Finding]:
    theirs, own = planned.dataset_json, raw.description.content
    fix = (
        f"cp '{raw.folder / 'dataset.json'}' '{planned.folder}/', plan again if classes or channels changed, then "
        + preprocess_command(planned)
    )
    for key in ("labels", "regions_class_order", "file_ending"):
        if theirs.get(key) != own.get(key):
            detail = f"{key} is {theirs.get(key)!r} in {planned.folder}, {own.get(key)!r} in the raw dataset"
            yield failed("dataset.json", detail, fix)
    channels = [one.get("channel_names", one.get("modality")) for one in (theirs, own)]
    if channels[0] != channels[1]:
        detail = f"channels are {channels[0]!r} in {planned.folder}, {channels[1]!r} in the raw dataset"
        yield failed("dataset.json", detail, fix)


def _check_references(planned: Planned, raw: RawDataset, names: set[str]) -> Iterator[Finding]:
    """The masks against which nnU-Net scores the final validation, hours later."""
    folder, ending = planned.folder / "gt_segmentations", str(planned.dataset_json.get("file_ending"))
    title = "mask in gt_segmentations"
    for name in sorted(names & raw.cases.keys()):
        path, label = folder / f"{name}{ending}", raw.cases[name].label
        copy = f"copy labelsTr into {folder}; the final validation needs it"
        if not path.is_file():
            yield failed(f"missing {title}", path.name, copy)
        elif label is not None and label.is_file() and not filecmp.cmp(path, label, shallow=False):
            why = why_unreadable(path, planned.plans.image_reader_writer_class, is_label=True)
            if why is not None:
                yield failed(f"unreadable {title}", f"{path.name}: {why}", copy)
            elif raw.reports[name].labels and not _same_pixels(path, label, raw):
                yield failed(f"other {title}", f"{path.name} differs from {label.name} of the raw dataset", copy)


def _same_pixels(one: Path, two: Path, raw: RawDataset) -> bool:
    with quiet_readers():
        return np.array_equal(raw.reader().read_seg(str(one))[0], raw.reader().read_seg(str(two))[0])
