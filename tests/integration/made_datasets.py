"""Small two-dimensional datasets in the formats in which users have them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import SimpleITK
from skimage import io

__all__ = ["FORMATS", "Format", "make_dataset", "save", "write_description"]

Pixels = npt.NDArray[Any]
NUM_CASES: Final = 6
SIZE: Final = (64, 80)


@dataclass(frozen=True)
class Format:
    """One way to store images: `planes` files a case, or one file with all of them as its colours."""

    number: int
    name: str
    ending: str
    channels: tuple[str, ...]
    dtype: type = np.uint8
    high: float = 255
    colours: int = 0

    @property
    def folder(self) -> str:
        return f"Dataset{self.number}_{self.name}"


FORMATS: Final = (
    Format(801, "grey", ".png", ("grey",)),
    Format(802, "rgb", ".png", tuple("RGB"), colours=3),
    Format(803, "rgba4", ".png", tuple("RGBA"), colours=4),
    Format(805, "pair", ".png", ("haematoxylin", "eosin")),
    Format(806, "spectral13", ".tif", tuple(f"band{band}" for band in range(13)), np.float32, 1.0),
    Format(807, "u16", ".png", ("ultrasound",), np.uint16, 60_000),
    Format(808, "nii2d", ".nii.gz", ("CT",), np.int16, 2000),
    Format(809, "mha2d", ".mha", ("MR",), np.int16, 2000),
)


def save(path: Path, pixels: Pixels) -> None:
    """Write pixels in the format of the path's ending."""
    if path.suffix in {".png", ".tif"}:
        io.imsave(str(path), pixels, check_contrast=False)
        return
    image = SimpleITK.GetImageFromArray(pixels)
    image.SetSpacing([0.7] * image.GetDimension())
    SimpleITK.WriteImage(image, str(path))


def write_description(folder: Path, channels: tuple[str, ...], labels: dict[str, int], ending: str) -> None:
    """Write dataset.json, and a split whose fold 0 validates one case."""
    cases = sorted(path.name.removesuffix(ending) for path in (folder / "labelsTr").iterdir())
    about = {
        "channel_names": {str(index): name for index, name in enumerate(channels)},
        "labels": labels,
        "numTraining": len(cases),
        "file_ending": ending,
    }
    (folder / "dataset.json").write_text(json.dumps(about))
    (folder / "splits_final.json").write_text(json.dumps([{"train": cases[1:], "val": cases[:1]}]))


def make_dataset(raw: Path, form: Format) -> Path:
    """Write six cases, each with a bright square to be found."""
    generator = np.random.default_rng(form.number)
    folder = raw / form.folder
    for sub in ("imagesTr", "labelsTr", "imagesTs"):
        (folder / sub).mkdir(parents=True)
    for case in range(NUM_CASES):
        mask = np.zeros(SIZE, np.uint8)
        top, left = generator.integers(5, 40, 2)
        mask[top : top + 20, left : left + 20] = 1
        for channel, pixels in enumerate(_files(generator, mask, form)):
            save(folder / "imagesTr" / f"case_{case}_{channel:04d}{form.ending}", pixels)
            if case == 0:
                save(folder / "imagesTs" / f"case_{case}_{channel:04d}{form.ending}", pixels)
        save(folder / "labelsTr" / f"case_{case}{form.ending}", mask)
    write_description(folder, form.channels, {"background": 0, "object": 1}, form.ending)
    return folder


def _files(generator: np.random.Generator, mask: Pixels, form: Format) -> list[Pixels]:
    number = form.colours or len(form.channels)
    noise = generator.normal(0.4 * form.high, 0.1 * form.high, (number, *mask.shape)) + 0.2 * form.high * mask
    planes = list(np.clip(noise, 0, form.high).astype(form.dtype))
    return [np.stack(planes, axis=-1)] if form.colours else planes
