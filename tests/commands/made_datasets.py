"""Small nnU-Net datasets as users store them, whole or with one thing wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import SimpleITK
from skimage import io

Pixels = npt.NDArray[Any]
# Makes the image files of a case from its mask: one array a file.
Maker = Callable[[np.random.Generator, Pixels], list[Pixels]]

SIZE = (40, 48)
NUM_CASES = 6


def save(path: Path, pixels: Pixels) -> None:
    """Write pixels in the format of the path's ending."""
    if path.suffix in {".png", ".tif", ".bmp", ".jpg"}:
        io.imsave(str(path), pixels, check_contrast=False)
        return
    image = SimpleITK.GetImageFromArray(pixels)
    image.SetSpacing([0.7] * image.GetDimension())
    SimpleITK.WriteImage(image, str(path))


def planes(number: int, dtype: type, high: float) -> Maker:
    """Return a maker of single-channel files."""

    def make(generator: np.random.Generator, mask: Pixels) -> list[Pixels]:
        pixels = generator.normal(0.4 * high, 0.1 * high, (number, *mask.shape)) + 0.2 * high * mask
        return list(np.clip(pixels, 0, high).astype(dtype))

    return make


def colours(number: int) -> Maker:
    """Return a maker of one file with several channels."""
    return lambda generator, mask: [np.stack(planes(number, np.uint8, 255)(generator, mask), axis=-1)]


def make_dataset(
    raw: Path, maker: Maker, channels: list[str], ending: str, *, size: tuple[int, ...] = SIZE, predict: bool = True
) -> Path:
    """Write a dataset of six cases without any defect and return its folder."""
    folder = raw / f"Dataset801_Made{ending.replace('.', '').title()}"
    generator = np.random.default_rng(0)
    for sub in ("imagesTr", "labelsTr", *(("imagesTs",) if predict else ())):
        (folder / sub).mkdir(parents=True)
    for case in range(NUM_CASES):
        mask = np.zeros(size, np.uint8)
        top, left = generator.integers(2, 20, 2)
        mask[..., top : top + 12, left : left + 15] = 1
        for channel, pixels in enumerate(maker(generator, mask)):
            save(folder / "imagesTr" / f"case_{case}_{channel:04d}{ending}", pixels)
            if predict:
                save(folder / "imagesTs" / f"case_{case}_{channel:04d}{ending}", pixels)
        save(folder / "labelsTr" / f"case_{case}{ending}", mask)
    write_description(
        folder,
        channel_names={str(number): name for number, name in enumerate(channels)},
        labels={"background": 0, "object": 1},
        numTraining=NUM_CASES,
        file_ending=ending,
    )
    return folder


def write_description(folder: Path, **changes: Any) -> None:  # noqa: ANN401 - any JSON
    """Write dataset.json, or change keys of the one that is there; None removes a key."""
    path = folder / "dataset.json"
    content = json.loads(path.read_text()) if path.is_file() else {}
    content |= changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def read(path: Path) -> Pixels:
    """Read what `save` wrote."""
    if path.suffix in {".png", ".tif", ".bmp"}:
        pixels: Pixels = io.imread(str(path))
        return pixels
    return np.array(SimpleITK.GetArrayFromImage(SimpleITK.ReadImage(str(path))))


def change(path: Path, edit: Callable[[Pixels], Pixels]) -> None:
    """Write an edited copy of a picture over it."""
    save(path, edit(read(path)))


def put(value: float, *, dtype: type | None = None) -> Callable[[Pixels], Pixels]:
    """Return an edit that sets a 3x3 block."""

    def edit(pixels: Pixels) -> Pixels:
        copy = pixels.astype(dtype or pixels.dtype)
        copy[..., 5:8, 5:8] = value
        return copy

    return edit
