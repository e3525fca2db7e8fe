"""Volumes and their labels as NIfTI.

Shape legend (this file): X, Y, Z voxels along the file's axes.
"""

import gzip
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from jaxtyping import Integer, UInt8

from nnunet_gdla.damage import reason
from nnunet_gdla.files import replaced
from nnunet_gdla.image_errors import IMAGE_DAMAGE
from nnunet_gdla.recipes.layout import CaseProblem, Record
from nnunet_gdla.words import counted

__all__ = [
    "copy_volume",
    "count_labels",
    "read_labels",
    "renumber",
    "save_volume",
    "whole_numbers",
    "write_labels",
]


def copy_volume(source: Path, target: Path) -> None:
    """Copy an image byte by byte; a file that is not compressed is compressed without any other change."""

    def write(unfinished: Path) -> None:
        if source.name.endswith(".gz"):
            shutil.copyfile(source, unfinished)
            return
        with source.open("rb") as plain, gzip.open(unfinished, "wb", compresslevel=6) as packed:
            shutil.copyfileobj(plain, packed)

    replaced(target, write)


def read_labels(path: Path) -> tuple[Integer[np.ndarray, "X Y Z"], Any]:
    """Read whole-number labels and the file they came from.

    Raises:
        CaseProblem: If the file is damaged, has not three axes, or other values than whole numbers.
    """
    try:
        image: Any = nib.load(path)
        values = np.asanyarray(image.dataobj)
    except IMAGE_DAMAGE as error:
        raise CaseProblem(f"{path.name} cannot be read: {reason(error, path)}") from error
    if values.ndim != 3:
        raise CaseProblem(f"{path.name} has {counted(values.ndim, 'axis', 'axes')}, not 3")
    return whole_numbers(values, path.name), image


def whole_numbers(values: np.ndarray, name: str) -> Integer[np.ndarray, "..."]:
    """Return labels that were stored as floating-point numbers as whole ones.

    Raises:
        CaseProblem: If they are none.
    """
    if np.issubdtype(values.dtype, np.integer):
        return values
    whole = np.rint(values)
    if not np.array_equal(whole, values):
        raise CaseProblem(f"{name} has labels that are no whole numbers")
    return whole.astype(np.int32)


def count_labels(values: Integer[np.ndarray, "..."]) -> dict[int, int]:
    """Count the voxels of each label."""
    labels, counts = np.unique(values, return_counts=True)
    return {int(label): int(count) for label, count in zip(labels, counts, strict=True)}


def renumber(values: Integer[np.ndarray, "..."], new: Mapping[int, int], name: str) -> UInt8[np.ndarray, "..."]:
    """Replace labels by a table.

    Raises:
        CaseProblem: If a label is not in the table.
    """
    present = [int(label) for label in np.unique(values)]
    unknown = [label for label in present if label not in new]
    if unknown:
        raise CaseProblem(f"{name} has labels that the release does not have: {unknown}")
    renumbered = np.zeros(values.shape, dtype=np.uint8)
    for label in present:
        renumbered[values == label] = new[label]
    return renumbered


def save_volume(target: Path, values: np.ndarray, affine: np.ndarray, header: Any = None) -> None:  # noqa: ANN401
    """Write a volume in one step."""
    volume = nib.Nifti1Image(values, affine, header)  # type: ignore[no-untyped-call]
    replaced(target, lambda unfinished: nib.save(volume, unfinished))


def write_labels(image: Path, label: Path, target: Path, new: Mapping[int, int]) -> Record:
    """Write renumbered labels with the position and spacing of their image, as nnU-Net demands them equal.

    Raises:
        CaseProblem: If a file is damaged or the two differ in size.
    """
    values, own = read_labels(label)
    try:
        reference: Any = nib.load(image)
        reference.get_fdata(dtype=np.float32)  # a truncated file shows only here
    except IMAGE_DAMAGE as error:
        raise CaseProblem(f"{image.name} cannot be read: {reason(error, image)}") from error
    if reference.shape != values.shape:
        raise CaseProblem(f"labels {label.name} are {values.shape}, the image is {reference.shape}")
    moved = not np.allclose(reference.affine, own.affine, atol=1e-3)
    renumbered = renumber(values, new, label.name)
    header = reference.header.copy()
    header.set_data_dtype(np.uint8)
    header.set_slope_inter(1, 0)
    save_volume(target, renumbered, reference.affine, header)
    spacing = tuple(round(float(edge), 4) for edge in reference.header.get_zooms()[:3])
    remarks = ("labels placed where their image is: their own header differs",) if moved else ()
    return Record(values.shape, count_labels(renumbered), spacing, remarks)
