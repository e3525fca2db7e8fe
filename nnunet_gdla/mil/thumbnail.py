"""Opens the picture of a slide: through OpenSlide where it can, else as an ordinary image.

Shape legend (this file): no tensors; sizes are (width, height) in pixels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from PIL import Image

from nnunet_gdla.cut_short import why_cut_short
from nnunet_gdla.damage import DAMAGE, reason
from nnunet_gdla.errors import UserError

__all__ = ["SlideImage", "find_image", "open_slide_image"]

SLIDE_SUFFIXES: Final = (".svs", ".ndpi", ".mrxs", ".scn", ".vms", ".vmu", ".bif", ".svslide", ".dcm", ".czi")
IMAGE_SUFFIXES: Final = (".tif", ".tiff", ".png", ".jpg", ".jpeg", ".bmp", ".webp")
_UNREADABLE: Final[tuple[type[Exception], ...]] = (*DAMAGE, Image.DecompressionBombError)
_PIP: Final = "pip install 'nnunet-gdla[wsi]'"


@dataclass(frozen=True)
class SlideImage:
    """A picture whose pixels are the slide's level-0 pixels.

    Attributes:
        path: Where it was read from.
        size: Level-0 width and height.
        um_per_px: Micrometres per level-0 pixel; None where the picture does not say.
        thumbnail: Small RGB copy.
        bounds: Upper left corner of the scanned area, to which QuPath crops the slide.
        read: Reads a level-0 rectangle (x, y, width, height) as RGB.
    """

    path: Path
    size: tuple[int, int]
    um_per_px: float | None
    thumbnail: Image.Image
    read: Callable[[int, int, int, int], Image.Image]
    bounds: tuple[int, int] = (0, 0)


def open_slide_image(path: Path, *, longest_px: int = 1600) -> SlideImage:
    """Open a slide or an image.

    Args:
        path: SVS and whatever else OpenSlide reads, or any image that Pillow reads.
        longest_px: Longest side of the thumbnail.

    Raises:
        UserError: If the file is missing or unreadable, or is a slide and OpenSlide is not installed.
    """
    if not path.is_file():
        raise UserError(f"no slide image {path}")
    openslide = _openslide()
    if openslide is not None and openslide.OpenSlide.detect_format(str(path)) is not None:
        return _from_openslide(openslide, path, longest_px)
    if openslide is None and path.suffix.lower() in SLIDE_SUFFIXES:
        raise UserError(f"{path} needs OpenSlide to be read: {_PIP}")
    return _from_pillow(path, longest_px, hint="" if openslide is not None else f"; if it is a slide: {_PIP}")


def find_image(place: Path, slide_id: str) -> Path | None:
    """Return `place` if it is a file, else the picture in that folder whose name is the slide's; None if there is none.

    Raises:
        UserError: If `place` does not exist.
    """
    if place.is_file():
        return place
    if not place.is_dir():
        raise UserError(f"no slide image or folder of slide images {place}")
    named = [each for each in sorted(place.iterdir()) if each.stem == slide_id]
    return next((each for each in named if each.suffix.lower() in SLIDE_SUFFIXES + IMAGE_SUFFIXES), None)


def _openslide() -> Any:  # noqa: ANN401 - a module without types, or None
    try:
        import openslide
    except (ImportError, OSError):  # OSError: the package is there, its library is not
        return None
    return openslide


def _from_openslide(openslide: Any, path: Path, longest_px: int) -> SlideImage:  # noqa: ANN401
    try:
        slide = openslide.OpenSlide(str(path))
        thumbnail = slide.get_thumbnail((longest_px, longest_px)).convert("RGB")
    except openslide.OpenSlideError as error:
        raise UserError(f"OpenSlide cannot read {path}: {reason(error, path)}") from error

    def read(x: int, y: int, width: int, height: int) -> Image.Image:
        region = slide.read_region((x, y), 0, (width, height))
        white = Image.new("RGB", region.size, "white")  # outside the scanned area a slide is transparent
        white.paste(region, mask=region.getchannel("A"))
        return white

    return SlideImage(
        path, slide.dimensions, _um_per_px(openslide, slide.properties), thumbnail, read, _bounds(slide.properties)
    )


def _bounds(properties: Any) -> tuple[int, int]:  # noqa: ANN401
    """The corner of the scanned area, which MRXS and others state; (0, 0) where a slide does not."""
    try:
        return int(properties["openslide.bounds-x"]), int(properties["openslide.bounds-y"])
    except (KeyError, ValueError):
        return 0, 0


def _um_per_px(openslide: Any, properties: Any) -> float | None:  # noqa: ANN401
    try:
        um = float(properties[openslide.PROPERTY_NAME_MPP_X])
    except (KeyError, ValueError):
        return None
    return um if um > 0 else None


def _from_pillow(path: Path, longest_px: int, *, hint: str) -> SlideImage:
    why = why_cut_short(path)  # Pillow takes the first page of what is left
    if why is not None:
        raise UserError(f"{path} cannot be read as an image: {why}{hint}")
    try:
        with Image.open(path) as opened:
            image = opened.convert("RGB")
    except _UNREADABLE as error:
        raise UserError(f"{path} cannot be read as an image: {reason(error, path)}{hint}") from error
    thumbnail = image.copy()
    thumbnail.thumbnail((longest_px, longest_px))

    def read(x: int, y: int, width: int, height: int) -> Image.Image:
        white = Image.new("RGB", (width, height), "white")
        white.paste(image.crop((x, y, min(x + width, image.width), min(y + height, image.height))))
        return white

    return SlideImage(path, image.size, None, thumbnail, read)
