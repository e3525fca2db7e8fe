"""Masks from files of every kind that nnU-Net reads, with their label values as they were written.

nnU-Net's own readers turn everything into float32 and take a colour image for a mask of three channels; here whole
numbers stay whole, and what is no mask is refused by name.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import SimpleITK as sitk
import tifffile
from jaxtyping import Shaped, UInt
from PIL import Image

from nnunet_gdla.cut_short import why_cut_short
from nnunet_gdla.damage import reason
from nnunet_gdla.errors import UserError
from nnunet_gdla.image_errors import IMAGE_DAMAGE
from nnunet_gdla.words import counted

__all__ = ["ENDINGS", "Mask", "check_same_grid", "list_masks", "read_mask"]

ENDINGS = (".nii.gz", ".nii", ".nrrd", ".mha", ".gipl", ".png", ".bmp", ".tif", ".tiff")

_HIGHEST = 65535
_MILLIMETRES = {"meter": 1000.0, "micron": 0.001}


@dataclass(frozen=True)
class Mask:
    """One mask.

    Args:
        labels: Label values; (slices, rows, columns), two-dimensional images have one slice.
        spacing: Size of a voxel along these axes in mm; None where the file does not say.
        frame: Origin and directions as the file's format has them; comparable between files of one format.
        path: The file.
    """

    labels: UInt[np.ndarray, "slices rows columns"]
    spacing: tuple[float, float, float] | None
    frame: tuple[float, ...] | None
    path: Path


def is_mask_file(path: Path) -> bool:
    """Whether a path is a visible file with one of nnU-Net's endings."""
    return path.name.lower().endswith(ENDINGS) and not path.name.startswith(".") and path.is_file()


def list_masks(folder: Path) -> dict[str, Path]:
    """Return the masks of a folder by case name, which is the file's name without its ending.

    Raises:
        UserError: If there is no such folder, no mask in it, or two masks of one case.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give the folder that holds the masks")
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if not is_mask_file(path):
            continue
        ending = next(ending for ending in ENDINGS if path.name.lower().endswith(ending))
        name = path.name[: -len(ending)]
        if name in found:
            raise UserError(f"{folder} holds {found[name].name} and {path.name}, two masks of one case; remove one")
        found[name] = path
    if not found:
        raise UserError(f"{folder} holds no masks; nnU-Net's endings are {', '.join(ENDINGS)}")
    return found


def read_mask(path: Path) -> Mask:
    """Read one mask.

    Raises:
        UserError: If the file cannot be read, or is no mask: colours, several channels, values that are not whole.
    """
    name = path.name.lower()
    why = why_cut_short(path)
    if why is not None:  # first, because readers mention on the screen what they miss
        raise UserError(f"{path} cannot be read ({why}); write the file again from its source")
    try:
        if name.endswith((".nii", ".nii.gz")):
            pixels, spacing, frame = _read_nifti(path)
        elif name.endswith((".png", ".bmp")):
            pixels, spacing, frame = _read_picture(path), None, None
        elif name.endswith((".tif", ".tiff")):
            pixels, spacing, frame = _read_tiff(path)
        else:
            pixels, spacing, frame = _read_itk(path)
    except UserError:
        raise
    except IMAGE_DAMAGE as error:
        raise UserError(
            f"{path} cannot be read ({reason(error, path)}); write the file again from its source"
        ) from error
    if pixels.ndim == 2:
        pixels = pixels[None]
    if pixels.ndim != 3 or not pixels.size:
        shape = " x ".join(map(str, pixels.shape))
        raise UserError(f"{path} is an array of {shape}; a mask has two or three axes and one label value a voxel")
    if spacing is not None and not all(math.isfinite(size) and size > 0 for size in spacing):
        raise UserError(f"{path} has the voxel size {spacing}; correct its header, or use --convention transunet")
    return Mask(_as_labels(pixels, path), spacing, frame, path)


def check_same_grid(prediction: Mask, truth: Mask) -> str | None:
    """Compare the grids of the two masks of a case.

    Returns:
        A remark where the two lie differently in space, which pixels alone do not show; None if all is well.

    Raises:
        UserError: If shapes or voxel sizes differ.
    """
    shapes = [" x ".join(map(str, mask.labels.shape)) for mask in (prediction, truth)]
    if shapes[0] != shapes[1]:
        raise UserError(
            f"{prediction.path} is {shapes[0]}, but {truth.path} is {shapes[1]} (slices x rows x columns); "
            "bring the prediction onto the truth's grid"
        )
    one, two = prediction.spacing, truth.spacing
    # an axis of a single voxel has no distances, and two-dimensional files make up its size
    axes = [axis for axis, size in enumerate(truth.labels.shape) if size > 1]
    if one and two and not np.allclose([one[axis] for axis in axes], [two[axis] for axis in axes], rtol=1e-3, atol=0):
        sizes = [" x ".join(f"{size:g}" for size in spacing) for spacing in (one, two)]
        raise UserError(
            f"{prediction.path} has voxels of {sizes[0]} mm, but {truth.path} of {sizes[1]} mm; "
            "correct the header of the wrong file"
        )
    frames = [mask.frame for mask in (prediction, truth) if mask.frame]
    comparable = len({mask.path.suffix.lower() for mask in (prediction, truth)}) == 1 and len(frames) == 2
    if comparable and (len(frames[0]) != len(frames[1]) or not np.allclose(frames[0], frames[1], rtol=1e-3, atol=1e-2)):
        return f"{prediction.path.name}: origin or direction is not the truth's; voxels are compared as they are stored"
    return None


def _read_nifti(path: Path) -> tuple[Shaped[np.ndarray, "..."], tuple[float, float, float], tuple[float, ...]]:
    image: Any = nibabel.load(path)  # nibabel has no common type for what load returns
    pixels = np.asanyarray(image.dataobj)
    if pixels.dtype.fields is not None:
        raise UserError(f"{path} is a colour image; save the mask with one label value a voxel")
    while pixels.ndim > 3 and pixels.shape[-1] == 1:
        pixels = pixels[..., 0]
    scale = _MILLIMETRES.get(image.header.get_xyzt_units()[0], 1.0)
    sizes = [float(size) * scale for size in image.header.get_zooms()[:3]]
    sizes += [1.0] * (3 - len(sizes))
    return pixels.T, (sizes[2], sizes[1], sizes[0]), tuple(float(entry) for entry in image.affine[:3].ravel())


def _read_itk(path: Path) -> tuple[Shaped[np.ndarray, "..."], tuple[float, float, float], tuple[float, ...]]:
    shown = sitk.ProcessObject.GetGlobalWarningDisplay()
    sitk.ProcessObject.SetGlobalWarningDisplay(False)  # the exception says it in one line
    try:
        image = sitk.ReadImage(str(path))
    finally:
        sitk.ProcessObject.SetGlobalWarningDisplay(shown)
    if image.GetNumberOfComponentsPerPixel() > 1:
        channels = image.GetNumberOfComponentsPerPixel()
        raise UserError(f"{path} has {channels} values a voxel; save the mask with one label value a voxel")
    sizes = [*image.GetSpacing(), 1.0][:3]
    return sitk.GetArrayFromImage(image), (sizes[2], sizes[1], sizes[0]), (*image.GetOrigin(), *image.GetDirection())


def _read_picture(path: Path) -> Shaped[np.ndarray, "..."]:
    with Image.open(path) as image:
        if image.mode == "P":  # BMP files store grey values as a palette
            colours = np.asarray(image.convert("RGB"))
            if (colours == colours[..., :1]).all():
                return colours[..., 0]
        if len(image.getbands()) > 1 or image.mode == "P":
            raise UserError(f"{path} is a colour image ({image.mode}); save the mask with one label value a pixel")
        return np.asarray(image)


def _read_tiff(path: Path) -> tuple[Shaped[np.ndarray, "..."], tuple[float, float, float] | None, None]:
    with tifffile.TiffFile(path) as file:
        if any(series.keyframe.samplesperpixel > 1 for series in file.series):
            raise UserError(f"{path} is a colour image; save the mask with one label value a pixel")
        parts = [series.asarray() for series in file.series]  # several: pages that nothing says belong together
    if len({part.shape for part in parts}) > 1 or (len(parts) > 1 and parts[0].ndim != 2):
        raise UserError(
            f"{path} holds {counted(len(parts), 'image')} of different kinds; save the mask alone, as one stack"
        )
    pixels = parts[0] if len(parts) == 1 else np.stack(parts)
    beside = path.with_suffix(".json")  # nnU-Net keeps the voxel size of a three-dimensional TIFF there
    if pixels.ndim != 3 or not beside.is_file():
        return pixels, None, None
    described = json.loads(beside.read_text(encoding="utf-8"))
    spacing = described.get("spacing") if isinstance(described, dict) else None
    if not isinstance(spacing, list) or len(spacing) != 3:
        raise UserError(f'{beside} has no "spacing" of three numbers; correct or remove it')
    return pixels, (float(spacing[0]), float(spacing[1]), float(spacing[2])), None


def _as_labels(
    pixels: Shaped[np.ndarray, "slices rows columns"], path: Path
) -> UInt[np.ndarray, "slices rows columns"]:
    kind = pixels.dtype.kind
    if kind not in "buif":
        raise UserError(f"{path} holds values of type {pixels.dtype}; a mask holds whole label values")
    if kind == "f" and not (np.isfinite(pixels).all() and (pixels == np.floor(pixels)).all()):
        example = next(value for value in np.unique(pixels) if not float(value).is_integer())
        raise UserError(
            f"{path} holds {example:g}, but a mask holds whole label values; "
            "give masks instead of probabilities or images, resampled with nearest neighbour"
        )
    low, high = pixels.min(), pixels.max()
    if low < 0 or high > _HIGHEST:
        raise UserError(f"{path} holds values from {low:g} to {high:g}; label values are 0 to {_HIGHEST}")
    return np.ascontiguousarray(pixels, dtype=np.uint8 if high < 256 else np.uint16)
