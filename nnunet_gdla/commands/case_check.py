"""The pixels of one case, read with nnU-Net's own reader: shapes, channels, label values, NaN and Inf."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import numpy.typing as npt
from nnunetv2.imageio.base_reader_writer import BaseReaderWriter
from PIL.Image import DecompressionBombError

from nnunet_gdla.commands.dataset_files import Case
from nnunet_gdla.commands.dataset_json import Description
from nnunet_gdla.commands.findings import SHOWN, Finding, failed, one_line, warned
from nnunet_gdla.commands.reading import UNREADABLE
from nnunet_gdla.cut_short import why_cut_short
from nnunet_gdla.tiff_pages import check_tiff, is_tiff
from nnunet_gdla.words import counted

__all__ = ["CaseReport", "check_case"]

Array = npt.NDArray[np.floating[Any]]


@dataclass
class CaseReport:
    """What one case holds and what is wrong with it.

    Args:
        name: The case's identifier.
        findings: Its problems; details begin with the file's name.
        labels: The label values in its mask, and how many pixels hold each.
        shape: (slices, height, width) of its image, None where it cannot be read.
        channels: How many its images have together; None where one cannot be read.
        properties: What nnU-Net's reader says of its first image, spacing and geometry; None where it cannot be read.
        pages: Whole pages of its first image, where that is a TIFF.
    """

    name: str
    findings: list[Finding] = field(default_factory=list)
    labels: dict[int, int] = field(default_factory=dict)
    shape: tuple[int, ...] | None = None
    channels: int | None = None
    properties: dict[str, Any] | None = None
    pages: int | None = None


@dataclass(frozen=True)
class _Picture:
    """One file as nnU-Net sees it: (channels, slices, height, width) and the reader's properties."""

    path: Path
    pixels: Array
    properties: dict[str, Any]

    @property
    def shape(self) -> str:
        return "x".join(map(str, self.pixels.shape[1:]))


def check_case(case: Case, description: Description, reader: type[BaseReaderWriter]) -> CaseReport:
    """Read all files of one case and compare them with each other and with dataset.json.

    Args:
        case: The case; files that do not exist are left out, `check_files` reports them.
        description: What dataset.json promises.
        reader: nnU-Net's reader class for this dataset.

    Returns:
        The case's problems, the label values it holds and its size.
    """
    report = CaseReport(case.name)
    images = [_read(path, reader, report) for path in case.images if path.is_file()]
    pictures = [image for image in images if image is not None]
    for picture in pictures:
        _check_intensities(picture, report)
    if pictures:
        report.shape = pictures[0].pixels.shape[1:]
        report.properties = pictures[0].properties
        if is_tiff(pictures[0].path):
            report.pages = check_tiff(pictures[0].path)
        _check_grid(pictures, report)
    if len(pictures) == len(case.images):
        report.channels = sum(len(picture.pixels) for picture in pictures)
        _check_channels(pictures, description, report)
    if case.label is not None and case.label.is_file():
        label = _read(case.label, reader, report, is_label=True)
        if label is not None:
            _check_label(label, pictures, description, report)
    return report


def _read(path: Path, reader: type[BaseReaderWriter], report: CaseReport, *, is_label: bool = False) -> _Picture | None:
    fix = "write the file again from its source, or remove all files of the case"
    why = why_cut_short(path)  # first, because readers mention on the screen what they miss
    if why is not None:
        report.findings.append(failed("unreadable file", f"{path.name}: {why}", fix))
        return None
    try:
        with np.errstate(all="ignore"):  # float64 beyond the range of float32 becomes Inf, which is reported below
            pixels, properties = reader().read_seg(str(path)) if is_label else reader().read_images((str(path),))
        if np.isfinite(pixels).all():
            _check_raw_nifti(path, report)
    except (DecompressionBombError, MemoryError) as error:
        fix = "cut the image into tiles, each a case of its own (2048 x 2048 pixels, say): no reader takes it whole"
        report.findings.append(failed("image too large", f"{path.name}: {one_line(error)}", fix))
        return None
    except UNREADABLE as error:
        report.findings.append(failed("unreadable file", f"{path.name}: {one_line(error)}", fix))
        return None
    return _Picture(path, pixels, properties)


def _check_raw_nifti(path: Path, report: CaseReport) -> None:
    """Look at a NIfTI file past nnU-Net's reader, which turns NaN and Inf into 0."""
    if path.name.lower().endswith((".nii", ".nii.gz")):
        image: Any = nibabel.load(path)
        broken = _count_broken(np.asanyarray(image.dataobj))
        if broken:
            fix = "replace them by a value that means something: nnU-Net's NIfTI reader makes them 0 without a word"
            report.findings.append(failed("NaN/Inf in NIfTI", f"{path.name}: {broken}", fix))


def _check_intensities(picture: _Picture, report: CaseReport) -> None:
    broken = _count_broken(picture.pixels)
    if broken:
        fix = "replace them by a value that means something, for example the background's"
        report.findings.append(failed("NaN/Inf in image", f"{picture.path.name}: {broken}", fix))
        return
    for number, channel in enumerate(picture.pixels):
        if channel.min() == channel.max():
            which = f" channel {number}" if len(picture.pixels) > 1 else ""
            detail = f"{picture.path.name}{which} is {channel.flat[0]:g} everywhere"
            fix = "check the export; a constant image trains, but teaches nothing"
            report.findings.append(warned("constant image", detail, fix))


def _check_grid(pictures: list[_Picture], report: CaseReport) -> None:
    first = pictures[0]
    for other in pictures[1:]:
        _compare_grids(first, other, "channel files", report)


def _compare_grids(one: _Picture, two: _Picture, what: str, report: CaseReport) -> None:
    """Report different shapes or spacings as errors, as nnU-Net does, and other geometry as a warning."""
    if one.pixels.shape[1:] != two.pixels.shape[1:]:
        detail = f"{one.path.name} is {one.shape}, {two.path.name} is {two.shape}"
        fix = f"bring the {what} of a case onto one pixel grid (slices x height x width)"
        report.findings.append(failed(f"shape of {what}", detail, fix))
    elif not np.allclose(one.properties["spacing"], two.properties["spacing"]):
        spacings = [" x ".join(f"{size:g}" for size in picture.properties["spacing"]) for picture in (one, two)]
        detail = f"{one.path.name} {spacings[0]}, {two.path.name} {spacings[1]}"
        report.findings.append(failed(f"spacing of {what}", detail, "correct the header of the wrong file"))
    else:
        stuff, other = (picture.properties.get("sitk_stuff", {}) for picture in (one, two))
        different = [key for key in ("origin", "direction") if not np.allclose(stuff.get(key, 0), other.get(key, 0))]
        if different:
            detail = f"{one.path.name} and {two.path.name} differ in {' and '.join(different)}"
            fix = "look at them with nnUNetv2_plot_overlay_pngs; nnU-Net goes by pixels and ignores this"
            report.findings.append(warned(f"position of {what}", detail, fix))


def _check_channels(pictures: list[_Picture], description: Description, report: CaseReport) -> None:
    found, declared = sum(len(picture.pixels) for picture in pictures), len(description.channels)
    if found == declared:
        return
    files = ", ".join(picture.path.name for picture in pictures[:SHOWN])
    detail = f"{files}: {counted(found, 'channel')}, declared {declared} ({', '.join(description.channels)})"
    single = len(pictures) == 1
    if single and found == declared + 1 and found in {2, 4}:
        title, fix = "alpha channel", "save the files without transparency, or declare one channel name more"
    elif single and found in {3, 4} and declared == 1:
        title, fix = "colour image", "save the files in grey, or declare the channels, e.g. R, G, B, in channel_names"
    elif found < declared:
        title = "missing channels"
        fix = f"add the files up to CASE_{declared - 1:04d}{description.ending}, or declare the channels there are"
    else:
        title, fix = "too many channels", "remove the surplus channels, or declare them in channel_names"
    report.findings.append(failed(title, detail, fix))


def _check_label(label: _Picture, images: list[_Picture], description: Description, report: CaseReport) -> None:
    name = label.path.name
    if len(label.pixels) != 1:
        against = f", the image is {images[0].shape}" if images else ""
        detail = f"{name} has {counted(len(label.pixels), 'component')} of {label.shape}{against}"
        report.findings.append(
            failed("label components", detail, "save each mask with a single channel of label values")
        )
        return
    if images:
        _compare_grids(images[0], label, "image and label", report)
    found, counts = np.unique(label.pixels, return_counts=True)
    values = [float(value) for value in found]  # NaN is a value of its own, an unknown one
    unknown = [value for value in values if value not in description.labels]
    report.labels = {
        int(value): int(count) for value, count in zip(values, counts, strict=True) if value in description.labels
    }
    if unknown:
        known = ", ".join(map(str, sorted(description.labels)))
        shown = ", ".join(f"{value:g}" for value in unknown[:SHOWN]) + (", ..." if len(unknown) > SHOWN else "")
        detail = f"{name} holds {shown}"
        report.findings.append(
            failed("label values", f"{detail} (declared: {known})", _label_fix(unknown, description))
        )


def _label_fix(unknown: list[float], description: Description) -> str:
    if unknown == [255.0] and 1 in description.labels:
        return "divide the masks by 255: nnU-Net wants label values (0, 1, 2 ...), not grey levels"
    if any(not value.is_integer() for value in unknown):
        return "resample masks with nearest neighbour and save them as whole numbers, without scaling in the header"
    return "map the values to the declared ones, or declare them in dataset.json (consecutive, ignore highest)"


def _count_broken(pixels: npt.NDArray[Any]) -> str:
    """Return in words how many values are NaN and Inf and where the first one is; nothing if all are finite."""
    broken = ~np.isfinite(pixels)
    if not broken.any():
        return ""
    nan = int(np.isnan(pixels).sum())
    counts = [f"{count} {kind}" for count, kind in ((nan, "NaN"), (int(broken.sum()) - nan, "Inf")) if count]
    first = tuple(map(int, np.argwhere(broken)[0]))
    return f"{' and '.join(counts)}, the first at index {first}"
