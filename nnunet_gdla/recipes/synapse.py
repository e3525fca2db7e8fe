"""Synapse (BTCV, abdominal CT): the release, or the copies that TransUNet's authors prepared."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from nnunet_gdla.errors import UserError
from nnunet_gdla.recipes.layout import (
    Case,
    CaseProblem,
    Found,
    Options,
    Record,
    Skipped,
    Target,
    list_files,
    locate,
    sort_out,
    unknown_layout,
)
from nnunet_gdla.recipes.parallel import each
from nnunet_gdla.recipes.synapse_labels import LABELS, ORDERS, choose_order
from nnunet_gdla.recipes.synapse_prepared import find_prepared, prepared_counts, write_prepared
from nnunet_gdla.recipes.volumes import copy_volume, count_labels, read_labels, write_labels

__all__ = ["find"]

_IMAGE = re.compile(r"img(\d{4})\.nii(\.gz)?")
_LABEL = re.compile(r"label(\d{4})\.nii(\.gz)?")
_EXPECTED = (
    "RawData/Training/img/img0001.nii.gz with RawData/Training/label/label0001.nii.gz, or "
    "train_npz/case0005_slice000.npz and test_vol_h5/case0001.npy.h5"
)
_ORDER_NAMES = {
    "btcv13": "the release's 13 labels",
    "btcv8": "eight organs in the release's order (6 is the liver)",
    "prepared8": "eight organs in the order of prepared copies (5 is the liver)",
}


def find(source: Path, options: Options, processes: int = 1) -> Found:
    """Find the volumes, or the slices that make up volumes, and tell the numbering of the organs by their sizes.

    Written is always one numbering, `synapse_labels.LABELS`. The release keeps its Hounsfield units and spacing;
    prepared copies are clipped, scaled to 0..1 and have no spacing.

    Raises:
        UserError: If the folder has another layout, or the numbering is in doubt.
    """
    files = list_files(source)
    raw = [folder for folder in locate(source, "Training") if (folder / "img").is_dir() and (folder / "label").is_dir()]
    if not raw:
        raw = [folder.parent for folder in locate(source, "img") if (folder.parent / "label").is_dir()]
    prepared = locate(source, "train_npz") + locate(source, "test_vol_h5")
    if not raw and not prepared:
        raise unknown_layout(source, _EXPECTED, "there is neither a pair of folders img and label, nor train_npz")
    if (raw and prepared) or len(raw) > 1 or len({folder.parent for folder in prepared}) > 1:
        places = ", ".join(str(folder) for folder in raw + prepared)
        raise UserError(f"several copies of Synapse in one folder, name one of them: {places}")
    if raw:
        found, counting = _find_release(raw[0], files, source), release_counts
    else:
        found, counting = find_prepared(prepared, files, source), prepared_counts
    order = _order(found, counting, options, processes)
    found.notes.append(f"numbering found: {_ORDER_NAMES[order]}; written: " + _words())
    if raw and order == "btcv8":
        found.notes.append("labels 9 to 13 do not occur, so label 5 is taken for the pancreas, not the oesophagus")
    found.write = partial(write_release if raw else write_prepared, order=order)
    return found


def release_counts(case: Case) -> dict[int, int]:
    """Count the voxels of each label of one case of the release."""
    return count_labels(read_labels(case.sources[1])[0])


def write_release(case: Case, target: Target, *, order: str = "btcv13") -> Record:
    """Copy one volume and write its labels in our numbering."""
    image, label = case.sources
    record = write_labels(image, label, target.label, ORDERS[order])
    copy_volume(image, target.image)
    return record


def _order(found: Found, counting: Callable[[Case], dict[int, int]], options: Options, processes: int) -> str:
    counts: dict[str, dict[int, int]] = {}
    damaged: dict[str, str] = {}
    for case, result in each(counting, found.cases, processes=processes, title="sizes of organs"):
        if isinstance(result, CaseProblem):
            damaged[case.name] = str(result)
        else:
            counts[case.name] = result
    found.skipped += [Skipped(name, reason) for name, reason in sorted(damaged.items())]
    found.cases = [case for case in found.cases if case.name not in damaged]
    return choose_order(dict(sorted(counts.items())), options.label_order)


def _find_release(folder: Path, files: list[Path], source: Path) -> Found:
    images = {m[1]: path for path in files if path.parent == folder / "img" and (m := _IMAGE.fullmatch(path.name))}
    labels = {m[1]: path for path in files if path.parent == folder / "label" and (m := _LABEL.fullmatch(path.name))}
    both = sorted(images.keys() & labels.keys())
    if not both:
        raise unknown_layout(source, _EXPECTED, f"{folder} has no img0001.nii.gz with its label0001.nii.gz")
    cases = [
        Case(f"case{number}", f"case{number}", (images[number], labels[number]), (number, f"img{number}"))
        for number in both
    ]
    found = Found(cases, write_release, {"0": "CT"}, LABELS, ".nii.gz", len(files))
    alone = {images[number]: "image without labels" for number in images.keys() - labels.keys()}
    alone |= {labels[number]: "labels without their image" for number in labels.keys() - images.keys()}
    reasons = {path.relative_to(source).as_posix(): reason for path, reason in alone.items()}
    used = [path for case in cases for path in case.sources]
    found.skipped = sort_out(files, used, source, lambda name: reasons.get(name) or _why(name))
    return found


def _why(name: str) -> str | None:
    return "not needed: the release has no labels for its test images" if "Testing/" in name else None


def _words() -> str:
    return ", ".join(f"{value} {name}" for name, value in LABELS.items() if value)
