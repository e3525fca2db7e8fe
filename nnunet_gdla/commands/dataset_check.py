"""The raw dataset, checked before hours are lost: what nnU-Net would refuse late, misread or never look at."""

import os
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from nnunetv2.imageio.base_reader_writer import BaseReaderWriter
from tqdm import tqdm

from nnunet_gdla.commands.case_check import CaseReport, check_case
from nnunet_gdla.commands.dataset_files import (
    Case,
    check_files,
    check_files_to_predict,
    list_cases,
    list_training_cases,
)
from nnunet_gdla.commands.dataset_json import Description, check_description, describe, read_json
from nnunet_gdla.commands.findings import Finding, Level, collapse, failed, passed, run_check, warned
from nnunet_gdla.commands.reading import find_reader, quiet_readers
from nnunet_gdla.words import counted

__all__ = ["RawDataset", "check_dataset", "find_dataset"]

FOLDERS = ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results")


@dataclass(frozen=True)
class RawDataset:
    """A raw dataset that has been read.

    Args:
        folder: Its folder in nnUNet_raw.
        description: What dataset.json promises.
        reader: nnU-Net's reader class for it.
        cases: The training cases by name.
        reports: What each of them holds.
        to_predict: What each case in imagesTs holds.
    """

    folder: Path
    description: Description
    reader: type[BaseReaderWriter]
    cases: Mapping[str, Case]
    reports: Mapping[str, CaseReport]
    to_predict: Sequence[CaseReport]


def find_dataset(dataset: str) -> Path | Finding:
    """Return the raw folder of a dataset given by number or name, or the finding that says why there is none.

    Args:
        dataset: A number, e.g. "4", or a name, e.g. "Dataset004_Hippocampus".
    """
    raw = os.environ.get(FOLDERS[0])
    if not raw or not Path(raw).is_dir():
        state = f"is {raw}, which does not exist" if raw else "is not set"
        return failed("dataset", f"nnUNet_raw {state}", "export nnUNet_raw=/path/to/nnUNet_raw")
    present = sorted(path.name for path in Path(raw).glob("Dataset*_*") if path.is_dir())
    if dataset in present:
        return Path(raw) / dataset
    names = {
        name for name in _names_everywhere() if dataset.isdigit() and name.startswith(f"Dataset{int(dataset):03d}")
    }
    if len(names) > 1:
        fix = "nnU-Net refuses a number with two names: rename one of the folders in " + ", ".join(FOLDERS)
        return failed("dataset", f"the number {dataset} belongs to {', '.join(sorted(names))}", fix)
    if names & set(present):
        return Path(raw) / names.pop()
    there = ", ".join(present[:10]) + (" ..." if len(present) > 10 else "") if present else "no dataset at all"
    return failed(
        "dataset",
        f"{dataset or 'an empty name'} is not in {raw}",
        f"give the number or the full name of what is there: {there}",
    )


def check_dataset(folder: Path, *, num_threads: int) -> Generator[Finding, None, RawDataset | None]:
    """Yield the findings on one raw dataset, in a fixed order.

    Args:
        folder: The dataset's folder in nnUNet_raw.
        num_threads: How many cases are read side by side.

    Returns:
        What was read, None where dataset.json promises nothing or no reader fits.
    """
    content = read_json(folder / "dataset.json")
    if isinstance(content, Finding):
        yield content
        return None
    findings = list(check_description(content))
    yield from findings
    if any(finding.level is Level.FAIL for finding in findings):
        return None  # without these promises there is nothing to compare the files with
    description = describe(content)
    cases = list_training_cases(folder, description)
    yield from check_files(folder, description, cases)
    reader = _find_reader(description, cases)
    if isinstance(reader, Finding):
        yield reader
        return None
    reports = _read_all(cases, description, reader, num_threads, "reading training cases")
    problems = collapse(finding for report in reports for finding in report.findings)
    yield from problems
    complete = sum(all(path is None or path.is_file() for path in (*case.images, case.label)) for case in cases)
    if complete and not problems:
        yield passed(
            "images and masks", f"{counted(complete, 'complete case')} readable, shapes, channels and label values fit"
        )
    yield from run_check("labels", lambda: _check_classes(reports, description))
    yield from _sizes(reports)
    to_predict = yield from _check_images_to_predict(folder, description, reader, num_threads)
    by_name = {case.name: case for case in cases}
    return RawDataset(folder, description, reader, by_name, {report.name: report for report in reports}, to_predict)


def _names_everywhere() -> set[str]:
    folders = [Path(os.environ[name]) for name in FOLDERS if os.environ.get(name)]
    return {path.name for folder in folders for path in folder.glob("Dataset*") if path.is_dir()}


def _find_reader(description: Description, cases: Sequence[Case]) -> type[BaseReaderWriter] | Finding:
    reader = find_reader(description.content, (case.images[0] for case in cases if case.images))
    if reader is not None:
        return reader
    return failed(
        "reader", f"nnU-Net has no reader for {description.ending}", "convert the images, e.g. to .png or .nii.gz"
    )


def _read_all(
    cases: Sequence[Case], description: Description, reader: type[BaseReaderWriter], num_threads: int, title: str
) -> list[CaseReport]:
    pool = ThreadPoolExecutor(max_workers=num_threads)
    try:
        with quiet_readers():
            results = pool.map(lambda case: check_case(case, description, reader), cases)
            return list(tqdm(results, desc=title, total=len(cases), leave=False, disable=None))
    finally:
        pool.shutdown(cancel_futures=True)  # Ctrl-C must not wait for the cases that are still in the queue


def _check_classes(reports: Sequence[CaseReport], description: Description) -> Iterator[Finding]:
    masks = Counter(value for report in reports for value in report.labels)
    ignore = description.content["labels"].get("ignore")
    classes = {value: name for value, name in description.labels.items() if value not in (0, ignore)}
    absent = [f"{value} ({name})" for value, name in sorted(classes.items()) if not masks[value]]
    if not masks:
        return  # no mask could be read; that has been reported already
    if set(masks) <= {0, ignore}:
        fix = "nnU-Net needs at least one foreground pixel in the dataset; check how the masks were written"
        yield failed("labels in the masks", "every readable mask is all background", fix)
    elif absent:
        fix = "check how the masks were written, or remove the class from dataset.json"
        yield warned("labels in the masks", f"no training case holds {', '.join(absent)}", fix)
    else:
        counts = ", ".join(f"{value} ({name}) in {masks[value]}" for value, name in sorted(classes.items()))
        yield passed("labels in the masks", f"{counts} of {counted(len(reports), 'case')}")


def _sizes(reports: Sequence[CaseReport]) -> Iterator[Finding]:
    shapes = [report.shape for report in reports if report.shape is not None]
    if not shapes:
        return
    low, high = (" x ".join(str(pick(sides)) for sides in zip(*shapes, strict=True)) for pick in (min, max))
    small = sum(min(shape[-2:]) < 32 for shape in shapes)
    note = f"; {small} with a side below 32 px, which nnU-Net and the network pad with zeros" if small else ""
    span = low if low == high else f"{low} to {high}"
    yield passed("image sizes", f"{span} (slices x height x width){note}")
    yield from _check_pages(reports)


def _check_pages(reports: Sequence[CaseReport]) -> Iterator[Finding]:
    """A TIFF of several pages is a volume to nnU-Net; among pictures it holds something else, previews for instance."""
    pages = {report.name: report.pages for report in reports if report.pages is not None}
    several = [f"{name} has {number}" for name, number in pages.items() if number > 1]
    flat = any(report.shape is not None and report.shape[0] == 1 for report in reports)
    if several and flat:
        fix = "write each picture as a TIFF of one page: nnU-Net reads the first page alone, or the pages as slices"
        yield from collapse(warned("pages in TIFF images", each, fix) for each in several)


def _check_images_to_predict(
    folder: Path, description: Description, reader: type[BaseReaderWriter], num_threads: int
) -> Generator[Finding, None, list[CaseReport]]:
    cases = list_cases(folder / "imagesTs", None, description.ending)
    problems = check_files_to_predict(folder / "imagesTs", description)
    reports = _read_all(cases, description, reader, num_threads, "reading images to predict") if cases else []
    problems += collapse(finding for report in reports for finding in report.findings)
    for problem in problems:
        title = problem.title if "imagesTs" in problem.title else f"imagesTs, {problem.title}"
        yield Finding(problem.level, title, problem.detail, problem.fix)
    if cases and not problems:
        channels = counted(len(description.channels), "channel")
        yield passed("imagesTs", f"{counted(len(cases), 'case')} to predict, readable, {channels} each")
    return reports
