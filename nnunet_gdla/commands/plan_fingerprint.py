"""Planning's first steps: is the raw dataset fit, and is the fingerprint that of today's raw files?"""

import contextlib
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nnunetv2.experiment_planning.dataset_fingerprint import fingerprint_extractor
from nnunetv2.imageio.base_reader_writer import BaseReaderWriter
from nnunetv2.utilities.utils import get_filenames_of_train_images_and_targets

from nnunet_gdla.commands.dataset_json import check_description, read_json
from nnunet_gdla.commands.findings import Finding, Level, one_line
from nnunet_gdla.commands.reading import UNREADABLE, find_reader, quiet_readers, why_unreadable
from nnunet_gdla.cut_short import why_cut_short
from nnunet_gdla.errors import UserError
from nnunet_gdla.plans.nnunet_gdla_reuse import RawCases, changed_cases, named, spread
from nnunet_gdla.words import counted
from nnunet_gdla.write_errors import write_error

__all__ = ["ensure_fingerprint", "foreign_errors"]

Size = tuple[list[int], list[float]]  # shape after cropping, spacing
_LOST_PROCESS = "background worker"  # nnU-Net's word for one that was killed, as where memory runs out
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
    promised = description["numTraining"]
    if promised != len(dataset):  # nnU-Net's own planning does not mind either
        print(
            f"NOTE: {raw / 'dataset.json'} says numTraining {promised}, there are "
            f"{counted(len(dataset), 'training case')}; the batch is limited by what it says",
            flush=True,
        )
    path = Path(os.environ["nnUNet_preprocessed"]) / name / "dataset_fingerprint.json"
    seen = _look_at_some(name, description, dataset)
    if path.is_file():
        why = _why_stale(path, dataset, description, seen)
        if not why:
            return
        print(f"the fingerprint of {name} is out of date ({why}) and is taken anew", flush=True)
    else:
        print(f"taking the fingerprint of {name}", flush=True)
    _refuse_cut(dataset.values())
    reader = _reader(description, dataset)
    _refuse_other_sizes((case for case in dataset.values() if _headers_differ(case)), reader)
    with foreign_errors(name), contextlib.redirect_stdout(io.StringIO()):  # the progress bar is on stderr
        fingerprint_extractor.DatasetFingerprintExtractor(name, processes).run(overwrite_existing=True)


@contextlib.contextmanager
def foreign_errors(name: str) -> Iterator[None]:
    """What nnU-Net's processes died of, in one sentence, with the raw file where it is one that cannot be read.

    Raises:
        UserError: Instead of what was raised.
    """
    try:
        yield
    except UserError:
        raise
    except UNREADABLE as error:
        folder = Path(os.environ["nnUNet_preprocessed"]) / name
        failed = write_error(error, folder, unfinished=folder)
        if failed is not None:
            raise failed from error
        if _LOST_PROCESS not in str(error):
            raw = Path(os.environ["nnUNet_raw"]) / name
            description = _description(raw)
            dataset = _cases(raw, description)
            reader = _reader(description, dataset)
            _refuse_unreadable(dataset.values(), reader)
            _refuse_other_sizes(dataset.values(), reader)
            _refuse_without_foreground(raw, dataset, reader)
        raise _unfit(name, str(error).strip().split("\n", 1)[0].strip() or type(error).__name__) from error


def _unfit(name: str, reason: str) -> UserError:
    return UserError(
        f"nnU-Net could not read the images of {name} ({reason}): `nnunet-gdla doctor -d {int(name[7:10])}` says what "
        "is wrong; where memory ran out, take fewer processes with -np 1."
    )


def _refuse_unreadable(cases: Iterable[Mapping[str, Any]], reader: type[BaseReaderWriter]) -> None:
    """Name the first file that cannot be read, if there is one."""
    for path, is_label in _files(cases):
        _refuse(path, why_unreadable(path, reader, is_label=is_label))


def _headers_differ(case: Mapping[str, Any]) -> bool:
    """Whether the headers of a case's files tell different sizes; nothing of the pixels is read."""
    import SimpleITK as sitk

    sizes = set()
    for file in (*case["images"], case["label"]):
        header = sitk.ImageFileReader()
        header.SetFileName(str(file))
        with quiet_readers(), contextlib.suppress(RuntimeError):  # a format that SimpleITK does not know
            header.ReadImageInformation()
            sizes.add(header.GetSize())
    return len(sizes) > 1


def _refuse_other_sizes(cases: Iterable[Mapping[str, Any]], reader: type[BaseReaderWriter]) -> None:
    """Name the first mask, or further channel, that has not the size of its case's image."""
    for case in cases:
        with quiet_readers():
            sizes = {file: reader().read_images((file,))[0].shape[1:] for file in map(str, case["images"])}
            sizes[str(case["label"])] = reader().read_seg(str(case["label"]))[0].shape[1:]
        (first, expected), *rest = sizes.items()
        for file, size in rest:
            if size != expected:
                told = [" x ".join(str(edge) for edge in each) for each in (size, expected)]
                raise UserError(
                    f"{file} is {told[0]}, {first} is {told[1]} (axes as nnU-Net reads them): write the file again in "
                    "the size of the image, or remove all files of the case."
                )


def _refuse_without_foreground(raw: Path, dataset: RawCases, reader: type[BaseReaderWriter]) -> None:
    with quiet_readers():
        if any(bool((reader().read_seg(str(case["label"]))[0] > 0).any()) for case in dataset.values()):
            return
    raise UserError(
        f"the masks of all {counted(len(dataset), 'case')} of {raw.name} are 0 everywhere: planning needs a case with "
        f"foreground, so look what was written to {raw / 'labelsTr'}."
    )


def _refuse_cut(cases: Iterable[Mapping[str, Any]]) -> None:
    for file, _ in _files(cases):
        _refuse(file, why_cut_short(file))


def _refuse(path: Path, why: str | None) -> None:
    if why is not None:
        raise UserError(
            f"{path} cannot be read ({why}): write the file again from its source, or remove all files of the case."
        )


def _files(cases: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Path, bool]]:
    for case in cases:
        yield from ((Path(image), False) for image in case["images"])
        yield Path(case["label"]), True


def _reader(description: Mapping[str, Any], dataset: RawCases) -> type[BaseReaderWriter]:
    reader = find_reader(description, (Path(case["images"][0]) for case in dataset.values()))
    if reader is None:
        raise UserError(f"nnU-Net has no reader for {description['file_ending']}: convert the images, e.g. to .nii.gz.")
    return reader


def _description(raw: Path) -> dict[str, Any]:
    content = read_json(raw / "dataset.json")
    if isinstance(content, Finding):
        raise UserError(f"{content.detail}: {content.fix}.")  # which names the file
    wrong = next((finding for finding in check_description(content) if finding.level is Level.FAIL), None)
    if wrong is not None:
        raise UserError(f"{raw / 'dataset.json'}: {wrong.detail}: {wrong.fix}.")
    return content


def _cases(raw: Path, description: dict[str, Any]) -> RawCases:
    if "dataset" not in description and not (raw / "imagesTr").is_dir():
        raise UserError(f"{raw} has no folder imagesTr: put the training images there.")
    dataset: RawCases = get_filenames_of_train_images_and_targets(str(raw), description)
    if not dataset:
        ending = description["file_ending"]
        raise UserError(f"{raw / 'imagesTr'} has no training cases: put the images there as CASE_0000{ending}.")
    missing = [str(file) for file, _ in _files(dataset.values()) if not file.is_file()]
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
    reader = _reader(description, dataset)
    for case in spread(list(dataset), _LOOKED_AT):
        files = dataset[case]
        _refuse_cut([files])
        try:
            _refuse_other_sizes([files], reader)
            with quiet_readers():
                shape, spacing, seen, *_ = fingerprint_extractor.DatasetFingerprintExtractor.analyze_case(
                    files["images"], files["label"], reader, num_samples=1
                )
        except UserError:
            raise
        except UNREADABLE as error:
            _refuse_unreadable([files], reader)
            raise _unfit(name, f"{case}: {one_line(error)}") from error
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
