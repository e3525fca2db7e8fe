"""Planning's first steps: is the raw dataset fit, and is the fingerprint that of today's raw files?"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nnunetv2.experiment_planning.dataset_fingerprint import fingerprint_extractor
from nnunetv2.imageio.reader_writer_registry import determine_reader_writer_from_dataset_json
from nnunetv2.utilities.utils import get_filenames_of_train_images_and_targets

from nnunet_gdla.commands.dataset_json import check_description, read_json
from nnunet_gdla.commands.findings import BREAKAGES, Finding, Level, one_line
from nnunet_gdla.errors import UserError
from nnunet_gdla.plans.nnunet_gdla_reuse import RawCases, changed_cases, named, spread
from nnunet_gdla.words import counted

__all__ = ["ensure_fingerprint", "foreign_errors", "made_folder"]

Size = tuple[list[int], list[float]]  # shape after cropping, spacing
_LOOKED_AT = 3  # cases that are read to see whether the fingerprint is theirs


def ensure_fingerprint(name: str, processes: int) -> None:
    """Take the fingerprint, with nnU-Net's progress bar, where there is none or it is that of other raw files.

    Args:
        name: Full name of the dataset.
        processes: How many cases are read side by side.

    Raises:
        UserError: If dataset.json is damaged, there are no cases, or files are missing, unreadable or have other
            channels than dataset.json says.
    """
    raw = Path(os.environ["nnUNet_raw"]) / name
    description = _description(raw)
    dataset = _cases(raw, description)
    path = Path(os.environ["nnUNet_preprocessed"]) / name / "dataset_fingerprint.json"
    seen = _look_at_some(name, description, dataset)
    if path.is_file():
        why = _why_stale(path, dataset, description, seen)
        if not why:
            return
        print(f"the fingerprint of {name} is out of date ({why}) and is taken anew", flush=True)
    else:
        print(f"taking the fingerprint of {name}", flush=True)
    with foreign_errors(name):
        fingerprint_extractor.DatasetFingerprintExtractor(name, processes).run(overwrite_existing=True)


@contextlib.contextmanager
def made_folder(folder: Path) -> Iterator[None]:
    """Make a folder for what follows; where that fails, what is empty of it goes again.

    Raises:
        UserError: If it cannot be made.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{folder} cannot be made ({error.strerror}): set nnUNet_preprocessed to a folder that can be written."
        ) from error
    try:
        yield
    except BaseException:
        for each in missing:
            with contextlib.suppress(OSError):  # it holds something by now
                each.rmdir()
        raise


@contextlib.contextmanager
def foreign_errors(name: str) -> Iterator[None]:
    """What nnU-Net's worker processes died of, in one sentence; their own output stands above it."""
    try:
        yield
    except RuntimeError as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise _unreadable(name, first) from error


def _unreadable(name: str, reason: str) -> UserError:
    return UserError(
        f"nnU-Net could not read the images ({reason}): `nnunet-gdla doctor -d {int(name[7:10])}` names the "
        "file; where memory ran out, take fewer processes with -np 1."
    )


def _description(raw: Path) -> dict[str, Any]:
    content = read_json(raw / "dataset.json")
    findings = [content] if isinstance(content, Finding) else list(check_description(content))
    wrong = next((finding for finding in findings if finding.level is Level.FAIL), None)
    if wrong is not None or isinstance(content, Finding):
        assert wrong is not None  # read_json finds nothing but failures
        raise UserError(f"{raw / 'dataset.json'}: {wrong.detail}: {wrong.fix}.")
    return content


def _cases(raw: Path, description: dict[str, Any]) -> RawCases:
    if "dataset" not in description and not (raw / "imagesTr").is_dir():
        raise UserError(f"{raw} has no folder imagesTr: put the training images there.")
    dataset: RawCases = get_filenames_of_train_images_and_targets(str(raw), description)
    if not dataset:
        ending = description["file_ending"]
        raise UserError(f"{raw / 'imagesTr'} has no training cases: put the images there as CASE_0000{ending}.")
    files = [Path(file) for case in dataset.values() for file in (*case["images"], case["label"])]
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise UserError(
            f"{counted(len(missing), 'raw file')} not there ({named(missing)}): add them or remove all of the case."
        )
    return dataset


def _channels(description: Mapping[str, Any]) -> Mapping[str, Any]:
    channels: Mapping[str, Any] = description["channel_names" if "channel_names" in description else "modality"]
    return channels


def _look_at_some(name: str, description: dict[str, Any], dataset: RawCases) -> dict[str, Size]:
    """Sizes of a few cases as the fingerprint has them; refuses other numbers of channels than dataset.json's."""
    channels = len(_channels(description))
    sizes = {}
    for case in spread(list(dataset), _LOOKED_AT):
        files = dataset[case]
        try:
            reader = determine_reader_writer_from_dataset_json(description, files["images"][0], verbose=False)
            shape, spacing, seen, *_ = fingerprint_extractor.DatasetFingerprintExtractor.analyze_case(
                files["images"], files["label"], reader, num_samples=1
            )
        except BREAKAGES as error:
            raise _unreadable(name, one_line(error)) from error
        if len(seen) != channels:
            raise UserError(
                f"dataset.json of {name} names {counted(channels, 'channel')}, the files of {case} have {len(seen)}: "
                "correct channel_names, or add the missing files."
            )
        sizes[str(case)] = [int(edge) for edge in shape], [float(width) for width in spacing]
    return sizes


def _why_stale(path: Path, dataset: RawCases, description: Mapping[str, Any], seen: Mapping[str, Size]) -> str | None:
    fingerprint = read_json(path)
    if isinstance(fingerprint, Finding):
        return "the file is damaged"
    known = fingerprint.get("shapes_after_crop", [])
    if len(known) != len(dataset):
        return f"it knows {counted(len(known), 'case')}, the dataset has {len(dataset)}"
    if len(fingerprint.get("foreground_intensity_properties_per_channel", ())) != len(_channels(description)):
        return "dataset.json names other channels"
    changed = changed_cases(dataset, dict.fromkeys(dataset, path.stat().st_mtime_ns))
    if changed:
        return f"raw files of {counted(len(changed), 'case')} ({named(changed)}) are newer"
    told = dict(zip(dataset, zip(known, fingerprint.get("spacings", ()), strict=False), strict=False))
    other = [case for case, size in seen.items() if told.get(case) != size]
    return f"{named(other)} of another size or spacing" if other else None
