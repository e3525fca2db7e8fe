"""Photographs and their masks: reading every flavour of the public copies, writing png that nnU-Net reads.

Shape legend (this file): H rows, W columns.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image, UnidentifiedImageError

from nnunet_gdla.cut_short import why_cut_short
from nnunet_gdla.damage import reason
from nnunet_gdla.files import replaced
from nnunet_gdla.image_errors import IMAGE_DAMAGE
from nnunet_gdla.recipes.layout import Case, CaseProblem, Record, Target

__all__ = ["copies", "read_colour", "read_grey", "read_mask", "write_colour_case", "write_grey_case", "write_png"]

_READABLE = ("1", "L", "LA", "P", "PA", "RGB", "RGBA")
_COLOUR_TOLERANCE = 2  # grey images that were stored as jpg once differ by as much between channels


def read_grey(path: Path) -> tuple[UInt8[np.ndarray, "H W"], tuple[str, ...]]:
    """Read an image as grey values and remark on what was not grey in it.

    Equal channels give exactly their value; coloured pixels give ITU-R 601 luminance.

    Raises:
        CaseProblem: If the file is damaged or has more than 8 bits a channel.
    """
    image = _open(path)
    remarks = _remarks(image)
    if image.mode in ("1", "L"):
        return np.asarray(image.convert("L")), remarks
    rgb = image.convert("RGB")
    # uint8 arithmetic would wrap around
    values = np.asarray(rgb).astype(np.int16)
    if int(np.ptp(values, axis=2).max()) > _COLOUR_TOLERANCE:
        remarks += ("coloured pixels, luminance taken",)
    return np.asarray(rgb.convert("L")), remarks


def read_colour(path: Path) -> tuple[UInt8[np.ndarray, "H W 3"], tuple[str, ...]]:
    """Read an image as RGB and remark on what was no RGB in it; grey images get three equal channels.

    Raises:
        CaseProblem: If the file is damaged or has more than 8 bits a channel.
    """
    image = _open(path)
    return np.asarray(image.convert("RGB")), _remarks(image)


def read_mask(path: Path) -> tuple[UInt8[np.ndarray, "H W"], tuple[str, ...]]:
    """Read a binary mask, 0/1, from 0/255, 0/1 or smoothed values, and remark on the latter.

    Values between black and white, as smoothing leaves them, are foreground from half of white on. Transparency is
    not looked at.

    Raises:
        CaseProblem: If the file is damaged or has more than 8 bits a channel.
    """
    image = _open(path)
    grey = np.asarray(image.convert("L") if image.mode in ("1", "L") else image.convert("RGB").convert("L"))
    if grey.max(initial=0) <= 1:
        return grey.astype(np.uint8), ()
    between = int(np.count_nonzero((grey > 0) & (grey < 255)))
    remarks = ("mask with values between 0 and 255, foreground from 128 on",) if between else ()
    return (grey >= 128).astype(np.uint8), remarks


def write_grey_case(case: Case, target: Target) -> Record:
    """Write one grey image and the union of its masks; `case.sources` is the image, then its masks."""
    image, remarks = read_grey(case.sources[0])
    return _write_case(case, target, Image.fromarray(image), remarks)


def write_colour_case(case: Case, target: Target) -> Record:
    """Write one RGB image and the union of its masks; `case.sources` is the image, then its masks."""
    image, remarks = read_colour(case.sources[0])
    return _write_case(case, target, Image.fromarray(image), remarks)


def write_png(path: Path, image: Image.Image) -> None:
    """Write a png in one step."""
    replaced(path, lambda unfinished: image.save(unfinished, format="PNG"))


def copies(paths: Sequence[Path]) -> dict[Path, Path]:
    """Return, for every file with exactly the bytes of an earlier one, that earlier one."""
    sizes = Counter(path.stat().st_size for path in paths)
    first: dict[bytes, Path] = {}
    found: dict[Path, Path] = {}
    for path in paths:
        # Most files differ in size already, and need not be read.
        if sizes[path.stat().st_size] > 1:
            original = first.setdefault(hashlib.sha256(path.read_bytes()).digest(), path)
            if original != path:
                found[path] = original
    return found


def _write_case(case: Case, target: Target, image: Image.Image, remarks: tuple[str, ...]) -> Record:
    masks = case.sources[1:]
    union = np.zeros((image.height, image.width), dtype=np.uint8)
    counted = Counter(remarks)
    for path in masks:
        mask, mask_remarks = read_mask(path)
        if mask.shape != union.shape:
            raise CaseProblem(f"mask {path.name} is {_size(mask.shape)}, the image is {_size(union.shape)}")
        union |= mask
        counted.update(mask_remarks)
    if len(masks) > 1:
        counted["several masks, joined"] += 1
    label = Image.fromarray(union)
    if target.options.size is not None:
        square = (target.options.size, target.options.size)
        image = image.resize(square, Image.Resampling.BILINEAR)
        label = label.resize(square, Image.Resampling.NEAREST)
    write_png(target.label, label)
    write_png(target.image, image)
    voxels: defaultdict[int, int] = defaultdict(int)
    for value, count in zip(*np.unique(np.asarray(label), return_counts=True), strict=True):
        voxels[int(value)] = int(count)
    if voxels[1] == 0:
        counted["no foreground"] += 1
    return Record((label.height, label.width), dict(voxels), remarks=tuple(sorted(counted)))


def _open(path: Path) -> Image.Image:
    why = why_cut_short(path)
    if why is not None:
        raise CaseProblem(f"{path.name} cannot be read: {why}")
    try:
        with Image.open(path) as image:
            image.load()
            opened, pages = image.copy(), getattr(image, "n_frames", 1) if image.format == "TIFF" else 1
    except UnidentifiedImageError as error:
        raise CaseProblem(f"{path.name} is no image") from error
    except IMAGE_DAMAGE as error:
        raise CaseProblem(f"{path.name} cannot be read: {reason(error, path)}") from error
    if pages > 1:
        raise CaseProblem(f"{path.name} holds {pages} images, not one")
    if opened.mode not in _READABLE:
        raise CaseProblem(f"{path.name} has pixels of kind {opened.mode}, not 8 bits a channel")
    return opened


def _remarks(image: Image.Image) -> tuple[str, ...]:
    if image.mode == "L":
        return ()
    return (f"image stored as {image.mode}",)


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[0]}x{shape[1]}"
