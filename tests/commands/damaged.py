"""Datasets with one thing wrong, and what must be said about it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import numpy.typing as npt

from nnunet_gdla.commands.findings import Level
from tests.commands.made_datasets import Maker, Pixels, change, colours, planes, put, write_description

FAIL, WARN = Level.FAIL, Level.WARN
IMAGES, MASKS = "imagesTr", "labelsTr"

Kind = tuple[Maker, list[str], str]
# What is done to a good dataset.
Damage = Callable[[Path], object]


def copy_as(old: str, new: str) -> Damage:
    return lambda folder: (folder / new).write_bytes((folder / old).read_bytes())


def rename(old: str, new: str) -> Damage:
    return lambda folder: (folder / old).rename(folder / new)


def edit(name: str, how: Callable[[Any], Any]) -> Damage:
    return lambda folder: change(folder / name, how)


def cut(name: str) -> Damage:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-400])


def every_mask(how: Callable[[Any], Any]) -> Damage:
    def damage(folder: Path) -> None:
        for path in (folder / MASKS).iterdir():
            change(path, how)

    return damage


def keep(number: int) -> Damage:
    def damage(folder: Path) -> None:
        for path in [*folder.glob(f"{IMAGES}/*"), *folder.glob(f"{MASKS}/*")]:
            if int(path.name.split("_")[1][0]) >= number:
                path.unlink()
        write_description(folder, numTraining=number)

    return damage


def describe(**changes: Any) -> Damage:  # noqa: ANN401 - any JSON
    return lambda folder: write_description(folder, **changes)


def remove(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def overwrite(name: str) -> Damage:
    return lambda folder: (folder / name).write_text("404")


def add_alpha(pixels: Pixels) -> Pixels:
    return np.concatenate([pixels, pixels[..., :1]], axis=-1)


def reshape_mask(affine: npt.NDArray[np.float64]) -> Damage:
    """Give one mask another place or another pixel size."""

    def damage(folder: Path) -> None:
        path = folder / MASKS / "case_2.nii.gz"
        image: Any = nibabel.load(path)
        nibabel.save(nibabel.Nifti1Image(np.asanyarray(image.dataobj), affine), path)

    return damage


RGB = (colours(3), ["R", "G", "B"], ".png")
PAIR = (planes(2, np.uint8, 255), ["h", "v"], ".png")
PNG = (planes(1, np.uint8, 255), ["US"], ".png")
TIF = (planes(1, np.float32, 1.0), ["OCT"], ".tif")
MHA = (planes(1, np.float32, 1.0), ["MRI"], ".mha")
NIFTI = (planes(1, np.float32, 1.0), ["MRI"], ".nii.gz")

# Name: the good dataset, what is done to it, and level, title and detail of the finding that must come.
DAMAGED: dict[str, tuple[Kind, Damage, Level, str, str]] = {
    "0/255 mask": (PNG, every_mask(lambda mask: mask * 255), FAIL, "label values", "case_0.png holds 255"),
    "undeclared label": (PNG, edit(f"{MASKS}/case_3.png", put(7)), FAIL, "label values", "case_3.png holds 7"),
    "interpolated mask": (
        MHA, edit(f"{MASKS}/case_3.mha", put(0.5, dtype=np.float32)), FAIL, "label values", "case_3.mha holds 0.5"
    ),
    "all background": (
        PNG, every_mask(np.zeros_like), FAIL, "labels in the masks", "every readable mask is all background"
    ),
    "NaN in tif": (
        TIF, edit(f"{IMAGES}/case_1_0000.tif", put(np.nan)), FAIL, "NaN/Inf in image", "case_1_0000.tif: 9 NaN"
    ),
    "Inf in mha": (
        MHA, edit(f"{IMAGES}/case_1_0000.mha", put(np.inf)), FAIL, "NaN/Inf in image", "case_1_0000.mha: 9 Inf"
    ),
    "NaN in NIfTI, which nnU-Net reads as 0": (
        NIFTI, edit(f"{IMAGES}/case_1_0000.nii.gz", put(np.nan)), FAIL, "NaN/Inf in NIfTI",
        "case_1_0000.nii.gz: 9 NaN",
    ),
    "NaN in an image to predict": (
        TIF, edit("imagesTs/case_4_0000.tif", put(np.nan)), FAIL, "imagesTs, NaN/Inf in image", "case_4_0000.tif"
    ),
    "float64 beyond float32": (
        MHA, edit(f"{IMAGES}/case_1_0000.mha", put(1e300, dtype=np.float64)), FAIL, "NaN/Inf in image",
        "case_1_0000.mha: 9 Inf",
    ),
    "constant image": (
        PNG, edit(f"{IMAGES}/case_5_0000.png", np.zeros_like), WARN, "constant image", "case_5_0000.png is 0 everywhere"
    ),
    "image and mask of different size": (
        PNG, edit(f"{MASKS}/case_2.png", lambda mask: mask[:-3]), FAIL, "shape of image and label",
        "case_2_0000.png is 1x40x48, case_2.png is 1x37x48",
    ),
    "channel files of different size": (
        PAIR, edit(f"{IMAGES}/case_2_0001.png", lambda image: image[:, :-1]), FAIL, "shape of channel files",
        "case_2_0000.png is 1x40x48, case_2_0001.png is 1x40x47",
    ),
    "multi-component mask": (
        PNG, edit(f"{MASKS}/case_2.png", lambda mask: np.stack([mask] * 3, axis=-1)), FAIL, "label components",
        "case_2.png has 3 components of 1x40x48",
    ),
    "one image with alpha": (
        RGB, edit(f"{IMAGES}/case_4_0000.png", add_alpha), FAIL, "alpha channel",
        "case_4_0000.png: 4 channels, declared 3 (R, G, B)",
    ),
    "colour images declared as grey": (
        RGB, describe(channel_names={"0": "US"}), FAIL, "colour image", "case_0_0000.png: 3 channels, declared 1 (US)"
    ),
    "too many channels declared": (
        PNG, describe(channel_names={"0": "a", "1": "b"}), FAIL, "missing channels",
        "case_0_0000.png: 1 channel, declared 2 (a, b)",
    ),
    "missing channel file": (
        PAIR, remove(f"{IMAGES}/case_3_0001.png"), FAIL, "missing image", "case_3_0001.png"
    ),
    "extra channel file": (
        PNG, copy_as(f"{IMAGES}/case_3_0000.png", f"{IMAGES}/case_3_0001.png"), FAIL, "extra channel file",
        "case_3_0001.png",
    ),
    "missing mask": (PNG, remove(f"{MASKS}/case_3.png"), FAIL, "missing label", "case_3.png"),
    "stray mask": (
        PNG, copy_as(f"{MASKS}/case_3.png", f"{MASKS}/case_33.png"), WARN, "label without image", "case_33.png"
    ),
    "image without channel number": (
        PNG, rename(f"{IMAGES}/case_3_0000.png", f"{IMAGES}/case_3.png"), FAIL, "image name", "case_3.png"
    ),
    "other file ending": (
        PNG, copy_as(f"{IMAGES}/case_3_0000.png", f"{IMAGES}/case_7_0000.jpg"), WARN, "ignored file in imagesTr",
        "case_7_0000.jpg",
    ),
    "broken png": (PNG, cut(f"{IMAGES}/case_3_0000.png"), FAIL, "unreadable file", "case_3_0000.png: OSError"),
    "broken first png": (PNG, cut(f"{IMAGES}/case_0_0000.png"), FAIL, "unreadable file", "case_0_0000.png: OSError"),
    "half a NIfTI, which SimpleITK reads": (
        NIFTI, cut(f"{IMAGES}/case_3_0000.nii.gz"), FAIL, "unreadable file", "case_3_0000.nii.gz: EOFError"
    ),
    "text in place of a mask": (MHA, overwrite(f"{MASKS}/case_3.mha"), FAIL, "unreadable file", "case_3.mha"),
    "wrong spacing": (
        NIFTI, reshape_mask(np.diag([0.7, 1.4, 0.7, 1])), FAIL, "spacing of image and label",
        "case_2_0000.nii.gz 699.3 x 0.7 x 0.7, case_2.nii.gz 1398.6 x 1.4 x 0.7",
    ),
    "other origin": (
        NIFTI, reshape_mask(np.array([[-0.7, 0, 0, 5], [0, -0.7, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])), WARN,
        "position of image and label", "case_2_0000.nii.gz and case_2.nii.gz differ in origin",
    ),
    "few cases": (PNG, keep(3), WARN, "training cases", "only 3"),
    "class that never occurs": (
        PNG, describe(labels={"background": 0, "object": 1, "rare": 2}), WARN, "labels in the masks",
        "no training case holds 2 (rare)",
    ),
    "wrong numTraining": (PNG, describe(numTraining=7), FAIL, "numTraining", "says 7, there are 6 training cases"),
}  # fmt: skip
