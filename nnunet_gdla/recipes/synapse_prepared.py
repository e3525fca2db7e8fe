"""The prepared copies of Synapse: training slices as npz, test volumes as H5, intensities clipped and scaled to 0..1.

Shape legend (this file): Z slices, H rows, W columns.
"""

import re
import zipfile
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Integer

from nnunet_gdla.damage import DAMAGE, reason
from nnunet_gdla.errors import UserError
from nnunet_gdla.recipes.layout import Case, CaseProblem, Found, Record, Skipped, Target, sort_out
from nnunet_gdla.recipes.synapse_labels import LABELS, ORDERS
from nnunet_gdla.recipes.volumes import count_labels, renumber, save_volume, whole_numbers
from nnunet_gdla.words import counted

__all__ = ["find_prepared", "prepared_counts", "write_prepared"]

_SLICE = re.compile(r"case(\d{4})_slice(\d{3,})\.npz")
_VOLUME = re.compile(r"case(\d{4})\.npy\.h5")
_DAMAGED: tuple[type[Exception], ...] = (*DAMAGE, zipfile.BadZipFile)


def find_prepared(folders: list[Path], files: list[Path], source: Path) -> Found:
    """Find the slices of each training case (.npz, H x W each) and the test volumes (.h5, Z x H x W).

    A case whose slices have a gap is left out, and so is a volume of a case that there are slices of.
    """
    slices: dict[str, dict[int, Path]] = defaultdict(dict)
    volumes: dict[str, Path] = {}
    for path in files:
        if path.parent not in folders:
            continue
        if match := _SLICE.fullmatch(path.name):
            slices[match[1]][int(match[2])] = path
        elif match := _VOLUME.fullmatch(path.name):
            volumes[match[1]] = path
    cases: list[Case] = []
    skipped: list[Skipped] = []
    refused: set[Path] = set()
    for number, own in sorted(slices.items()):
        gaps = sorted(set(range(max(own) + 1)) - own.keys())
        if gaps:
            skipped.append(Skipped(f"case{number}", f"slices are missing: {', '.join(map(str, gaps))}"))
            refused.update(own.values())
        else:
            cases.append(_case(number, tuple(own[index] for index in sorted(own))))
    for number, path in sorted(volumes.items()):
        if number in slices:
            skipped.append(Skipped(path.relative_to(source).as_posix(), "its case is there as slices too"))
            refused.add(path)
        else:
            cases.append(_case(number, (path,)))
    used = {path for case in cases for path in case.sources} | refused
    cases.sort(key=lambda case: case.name)
    # "noNorm" is nnU-Net's word for intensities that are to be left alone.
    found = Found(cases, write_prepared, {"0": "noNorm"}, LABELS, ".nii.gz", len(files), skipped)
    found.skipped += sort_out(files, used, source, lambda _name: None)
    found.notes = [
        f"{counted(len(slices), 'case')} as slices, stacked in the order of their numbers; "
        f"{counted(len(volumes), 'volume')}",
        "prepared copies are clipped and scaled to 0..1 already, and stay so (channel noNorm)",
        "prepared copies have no spacing: written as 1 mm, so distances in mm are voxels",
    ]
    return found


def prepared_counts(case: Case) -> dict[int, int]:
    """Count the voxels of each label of one prepared case."""
    total: Counter[int] = Counter()
    if case.sources[0].suffix == ".h5":
        return count_labels(_read_volume(case.sources[0])[1])
    for path in case.sources:
        total.update(count_labels(whole_numbers(_load_slice(path, "label"), path.name)))
    return dict(total)


def write_prepared(case: Case, target: Target, *, order: str = "prepared8") -> Record:
    """Write one volume, from its slices or as it is, with labels in our numbering."""
    image_ZHW, label_ZHW = _read_volume(case.sources[0]) if case.sources[0].suffix == ".h5" else _stack(case.sources)
    renumbered_ZHW = renumber(label_ZHW, ORDERS[order], case.name)
    # NIfTI's axes run the other way round than nnU-Net's arrays.
    save_volume(target.label, renumbered_ZHW.T, np.eye(4))
    save_volume(target.image, image_ZHW.T, np.eye(4))
    outside = float(image_ZHW.min()) < 0 or float(image_ZHW.max()) > 1
    remarks = ("intensities outside 0..1, so not prepared as expected",) if outside else ()
    return Record(renumbered_ZHW.T.shape, count_labels(renumbered_ZHW), (1.0, 1.0, 1.0), remarks)


def _case(number: str, sources: tuple[Path, ...]) -> Case:
    return Case(f"case{number}", f"case{number}", sources, (number,))


def _stack(paths: tuple[Path, ...]) -> tuple[Float32[np.ndarray, "Z H W"], Integer[np.ndarray, "Z H W"]]:
    images = [_load_slice(path, "image") for path in paths]
    labels = [whole_numbers(_load_slice(path, "label"), path.name) for path in paths]
    shapes = {values.shape for values in images + labels}
    if len(shapes) > 1:
        raise CaseProblem(f"slices and labels differ in size: {sorted(shapes)}")
    return np.stack(images).astype(np.float32), np.stack(labels)


def _load_slice(path: Path, key: str) -> np.ndarray:
    try:
        with np.load(path, allow_pickle=False) as archive:
            values = np.asarray(archive[key])
    except _DAMAGED as error:
        raise CaseProblem(f"{path.name} cannot be read: {reason(error, path)}") from error
    if values.ndim != 2:
        raise CaseProblem(f"{key} in {path.name} has {counted(values.ndim, 'axis', 'axes')}, not 2")
    return values


def _read_volume(path: Path) -> tuple[Float32[np.ndarray, "Z H W"], Integer[np.ndarray, "Z H W"]]:
    try:
        import h5py
    except ImportError as error:
        raise UserError(f"reading {path.name} needs h5py: pip install h5py (or nnunet-gdla[mil])") from error
    try:
        with h5py.File(path, "r") as file:
            image, label = np.asarray(file["image"]), np.asarray(file["label"])
    except _DAMAGED as error:
        raise CaseProblem(f"{path.name} cannot be read: {reason(error, path)}") from error
    if image.ndim != 3 or image.shape != label.shape:
        raise CaseProblem(f"{path.name} holds image {image.shape} and label {label.shape}")
    return image.astype(np.float32), whole_numbers(label, path.name)
