"""Writes masks in every format, and folders of cases."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import numpy.typing as npt
import SimpleITK as sitk
import tifffile
from PIL import Image

__all__ = ["blob", "write_cases", "write_mask", "write_scheme"]

Labels = npt.NDArray[Any]
SPACING = (3.0, 0.5, 0.75)


def write_mask(path: Path, labels: Labels, spacing: tuple[float, ...] = SPACING) -> None:
    """Write a mask of (slices, rows, columns) or (rows, columns) in the format of the ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ending = path.name.lower()
    if ending.endswith((".nii", ".nii.gz")):
        sizes = spacing[-labels.ndim :][::-1]
        image = nibabel.Nifti1Image(labels.T, np.diag([*sizes, *[1.0] * (3 - len(sizes)), 1.0]))
        image.header.set_xyzt_units("mm")
        nibabel.save(image, path)
    elif ending.endswith((".png", ".bmp")):
        Image.fromarray(labels).save(path)
    elif ending.endswith((".tif", ".tiff")):
        tifffile.imwrite(path, labels, compression="zlib", photometric="minisblack")
        if labels.ndim == 3:
            path.with_suffix(".json").write_text(json.dumps({"spacing": list(spacing)}))
    else:
        image = sitk.GetImageFromArray(labels)
        image.SetSpacing(spacing[-labels.ndim :][::-1])
        sitk.WriteImage(image, str(path))


def write_cases(folder: Path, cases: Mapping[str, Labels], ending: str = ".nii.gz") -> Path:
    for name, labels in cases.items():
        write_mask(folder / f"{name}{ending}", labels)
    return folder


def write_scheme(path: Path, labels: dict[str, Any], **more: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"labels": labels, "file_ending": ".nii.gz"} | more))
    return path


def blob(shape: tuple[int, ...], shift: int = 0, value: int = 1) -> npt.NDArray[np.uint8]:
    """A box in the middle, some voxels further along the last axis."""
    labels = np.zeros(shape, dtype=np.uint8)
    box = [slice(size // 4, size // 4 + max(1, size // 2)) for size in shape]
    box[-1] = slice(box[-1].start + shift, box[-1].stop + shift)
    labels[tuple(box)] = value
    return labels
