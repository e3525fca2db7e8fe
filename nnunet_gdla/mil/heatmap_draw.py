"""Draws the scores of a slide: maps over the thumbnail or the bare lattice, the sheet of top tiles, GeoJSON for QuPath.

Shape legend (this file): N patches in file order.
"""

import json
import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Float64
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.figures import canvas, distinct, title
from nnunet_gdla.mil.files import write_text
from nnunet_gdla.mil.heatmap import SlideScores, percentiles
from nnunet_gdla.mil.slides import Slide
from nnunet_gdla.mil.thumbnail import SlideImage
from nnunet_gdla.words import counted

__all__ = ["Places", "draw_maps", "draw_top_tiles", "place_patches", "uncovered_tissue", "write_geojson"]

ATTENTION_COLOURS: Final = "viridis"
BETA_COLOURS: Final = "RdBu_r"
# Micrometres per level-0 pixel of scanners.
USUAL_MPP: Final = (0.1, 2.0)
# Difference of colour channels of stained tissue, and the share of it that patches should at least reach over.
COLOURED: Final = 24
LITTLE_TISSUE: Final = 0.1
_MOST_CELLS: Final = 50_000_000
_TILE_PX: Final = 256

Values = Float64[np.ndarray, " N"]


@dataclass(frozen=True)
class Places:
    """Where the patches lie: upper left corners (N, 2), their side, and whether both are level-0 pixels."""

    corners: Float64[np.ndarray, "N 2"]
    side: float
    in_pixels: bool


def place_patches(slide: Slide, image: SlideImage | None, mpp: float | None = None) -> Places:
    """Find out where the patches lie on the picture, or on their own lattice where there is none.

    Args:
        slide: With coordinates.
        image: The picture.
        mpp: Micrometres per level-0 pixel, instead of what the picture says.

    Raises:
        UserError: If there are no coordinates, or they cannot be brought onto this picture; the message says why.
    """
    if slide.coords is None or slide.stride is None:
        raise UserError(f"{slide.path} holds no coordinates, so its scores cannot be drawn")
    corners, side = slide.coords.numpy().astype(np.float64), float(slide.stride)
    if image is None:
        return Places(corners, side, slide.unit == "px")
    if mpp is not None and slide.unit != "um":
        raise UserError(f"--mpp is for micrometres, the coordinates of {slide.slide_id} are {slide.unit}: leave it out")
    if slide.unit == "um":
        um_per_px = mpp or _stated_mpp(slide, image)
        corners, side = corners / um_per_px, side / um_per_px
    elif slide.unit != "px":
        raise UserError(
            f"the coordinates of {slide.slide_id} are {slide.unit or 'in an unknown unit'}, which have no place on "
            f"{image.path}; leave --slide out and the map is drawn on the lattice"
        )
    reach = corners.max(0) + side
    if (corners.min(0) < -side).any() or (reach > np.array(image.size) + side).any():
        raise UserError(
            f"the patches of {slide.slide_id} reach to x {reach[0]:.0f}, y {reach[1]:.0f}, but {image.path} is only "
            f"{image.size[0]} x {image.size[1]} pixels; is it another slide, or a smaller copy of it"
            + (f", or is {um_per_px:g} um per pixel wrong (--mpp)?" if slide.unit == "um" else "?")
        )
    return Places(corners, side, in_pixels=True)


def _stated_mpp(slide: Slide, image: SlideImage) -> float:
    um_per_px = image.um_per_px
    if um_per_px is None:
        raise UserError(
            f"the coordinates of {slide.slide_id} are in micrometres and {image.path} does not say how many "
            "a pixel has; say it by --mpp, give the original slide instead, or leave --slide out"
        )
    if not USUAL_MPP[0] <= um_per_px <= USUAL_MPP[1]:
        raise UserError(
            f"{image.path} says that a pixel has {um_per_px:g} micrometres; scanners have {USUAL_MPP[0]:g} to "
            f"{USUAL_MPP[1]:g}: say the right number by --mpp (this one too, if it is right)"
        )
    return um_per_px


def uncovered_tissue(places: Places, image: SlideImage) -> str | None:
    """Return a remark where the patches cover so little of the tissue that their scale is probably wrong."""
    thumbnail = np.asarray(image.thumbnail, dtype=np.int16)
    tissue = np.argwhere(np.ptp(thumbnail, axis=2) > COLOURED)[:, ::-1]  # x and y of what is neither white nor grey
    if not len(tissue):
        return None
    at = (tissue + 0.5) * (np.array(image.size) / np.array(image.thumbnail.size))
    low, high = places.corners.min(0), places.corners.max(0) + places.side
    share = float(((at >= low) & (at < high)).all(1).mean())
    if share >= LITTLE_TISSUE:
        return None
    return (
        f"the patches reach over {share:.1%} of the tissue on {image.path.name}: is the slide's size of a pixel wrong "
        "(--mpp), are the coordinates of another level, or is it another slide?"
    )


def draw_maps(scores: SlideScores, places: Places, image: SlideImage | None, limit: float = 99.0) -> Figure:
    """Draw attention by its percentile, and the mean coefficient of every active block around 0.

    Args:
        scores: Numbers of the slide.
        places: Of `place_patches`, with the same image.
        image: Picture under the maps.
        limit: Percentile of |beta| at which its colours end, common to all blocks.
    """
    low, high = places.corners.min(0) - places.side, places.corners.max(0) + 2 * places.side
    wide, tall = high - low
    height = float(np.clip(3.7 * tall / wide, 2.0, 8.0))
    betas = {name: values for name, values in scores.columns().items() if name != "attention"}
    count = 1 + len(betas) + (image is not None)
    columns = min(count, 4)
    figure, axes = canvas(math.ceil(count / columns), columns, width=5.0, height=height + 0.8)
    for spare in axes[count:]:
        spare.set_axis_off()
    panels = iter(axes)
    if image is not None:
        patches = counted(len(scores.attention), "patch", "patches")
        title(_ground(next(panels), image, low, high), f"{scores.slide.slide_id}, {patches}")
    _attention_panel(figure, _ground(next(panels), image, low, high), scores, places, alpha=_alpha(image))
    span = _span(list(betas.values()), limit)
    for (name, values), panel in zip(betas.items(), panels, strict=False):
        drawn = _squares(_ground(panel, image, low, high), values, places, BETA_COLOURS, span, _alpha(image))
        figure.colorbar(drawn, ax=panel, shrink=0.8, label="β, mean over heads (blue < 0 < red)")
        title(panel, f"β, block {name.removeprefix('beta_block')}")
    figure.suptitle(textwrap.fill(_answer_text(scores), int(11 * figure.get_figwidth())), fontsize=12)
    return figure


def draw_top_tiles(scores: SlideScores, places: Places, image: SlideImage, count: int) -> Figure:
    """Draw the patches with the highest attention, read from the slide at level 0."""
    order = np.argsort(-np.nan_to_num(scores.attention, nan=-np.inf), kind="stable")
    order = order[: min(count, int(np.isfinite(scores.attention).sum()))]
    columns = min(4, max(1, len(order)))
    figure, axes = canvas(max(1, math.ceil(len(order) / columns)), columns, width=2.5, height=2.8)
    for each in axes:
        each.set_axis_off()
    side = max(1, round(places.side))
    scored = distinct([float(scores.attention[row]) for row in order], least=3)
    for rank, (panel, row, text) in enumerate(zip(axes, order, scored, strict=False), start=1):
        x, y = (int(value) for value in places.corners[row].round())
        panel.imshow(image.read(x, y, side, side).resize((_TILE_PX, _TILE_PX)))
        panel.set_title(f"{rank}. {text}\nx {x}, y {y}", fontsize=9)
    figure.suptitle(f"{scores.slide.slide_id}: highest attention, tiles of {side} px", fontsize=11)
    return figure


def write_geojson(path: Path, scores: SlideScores, places: Places, bounds: tuple[int, int] = (0, 0)) -> None:
    """Write one square per patch in level-0 pixels, with its scores as measurements, coloured by attention.

    QuPath: File > Import objects from file; then Measure > Show measurement maps. It crops a slide to its `bounds`,
    the upper left corner of the scanned area, so pixels count from there.

    Raises:
        UserError: If the places are no level-0 pixels.
    """
    if not places.in_pixels:
        raise UserError(
            f"{scores.slide.slide_id}: --geojson needs level-0 pixels and the coordinates are in "
            f"{scores.slide.unit or 'an unknown unit'}; with micrometres, name the slide too (--slide)"
        )
    place = percentiles(scores.attention)
    columns = scores.columns() | {"attention percentile": place}
    colours = (colormaps[ATTENTION_COLOURS](np.nan_to_num(place) / 100)[:, :3] * 255).round().astype(int).tolist()
    seen = np.flatnonzero(np.isfinite(scores.attention))
    cropped = Places(places.corners - np.array(bounds), places.side, places.in_pixels)
    objects = [
        _square(row, cropped, {k: float(v[row]) for k, v in columns.items()}, colours[row]) for row in seen.tolist()
    ]
    write_text(path, json.dumps({"type": "FeatureCollection", "features": objects}, allow_nan=False))


def _square(row: int, places: Places, measurements: Mapping[str, float], colour: list[int]) -> dict[str, Any]:
    left, top = places.corners[row].tolist()
    right, bottom = left + places.side, top + places.side
    ring = [[left, top], [right, top], [right, bottom], [left, bottom], [left, top]]
    properties = {"objectType": "detection", "name": f"patch {row}", "color": colour, "measurements": measurements}
    return {"type": "Feature", "geometry": {"type": "Polygon", "coordinates": [ring]}, "properties": properties}


def _ground(axes: Axes, image: SlideImage | None, low: Values, high: Values) -> Axes:
    if image is None:
        axes.set_facecolor("#F2F2F2")
    else:
        axes.imshow(image.thumbnail, extent=(0, image.size[0], image.size[1], 0))
    axes.set(xlim=(low[0], high[0]), ylim=(high[1], low[1]), aspect="equal", xticks=[], yticks=[])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    return axes


def _attention_panel(figure: Figure, axes: Axes, scores: SlideScores, places: Places, alpha: float) -> None:
    drawn = _squares(axes, percentiles(scores.attention), places, ATTENTION_COLOURS, (0.0, 100.0), alpha)
    figure.colorbar(drawn, ax=axes, shrink=0.8, label="percentile within the slide")
    seen = scores.attention[np.isfinite(scores.attention)]
    title(axes, _attention_title(seen))


def _attention_title(seen: Values) -> str:
    low, high, even = float(seen.min()), float(seen.max()), 1 / len(seen)
    if low == high:
        return f"Attention: {low:.2g} everywhere, even is {even:.2g}"
    low_text, high_text = distinct([low, high])
    digits = max(len(text.replace(".", "").strip("-0").split("e")[0]) for text in (low_text, high_text))
    return f"Attention: {low_text} to {high_text}, even is {even:.{max(2, digits)}g}"


def _squares(axes: Axes, values: Values, places: Places, colours: str, span: tuple[float, float], alpha: float) -> Any:  # noqa: ANN401 - matplotlib's image
    """Colour the patches; one image on the lattice, however many there are."""
    origin = places.corners.min(0)
    cells = np.round((places.corners - origin) / places.side).astype(np.int64)
    across, down = cells.max(0) + 1
    if across * down > _MOST_CELLS:
        raise UserError(
            f"the patches spread over {across} x {down} cells of side {places.side:g}: "
            "the stride or a coordinate is wrong"
        )
    lattice = np.full((down, across), np.nan)
    lattice[cells[::-1, 1], cells[::-1, 0]] = values[::-1]  # the first patch of a cell stays
    right, bottom = origin + np.array([across, down]) * places.side
    norm, extent = Normalize(*span), (origin[0], right, bottom, origin[1])
    return axes.imshow(lattice, extent=extent, cmap=colours, norm=norm, alpha=alpha, interpolation="nearest")


def _alpha(image: SlideImage | None) -> float:
    return 1.0 if image is None else 0.65


def _span(betas: list[Values], limit: float) -> tuple[float, float]:
    known = np.concatenate([np.abs(each[np.isfinite(each)]) for each in betas] or [np.zeros(1)])
    end = max(float(np.percentile(known, limit)) if known.size else 0.0, 1e-3)
    return -end, end


def _answer_text(scores: SlideScores) -> str:
    shown = {k: v for k, v in scores.answer.items() if k.startswith("prob_")} or {"risk": scores.answer["risk"]}
    return f"{scores.slide.slide_id}: " + ", ".join(f"{k.removeprefix('prob_')} {v:.3f}" for k, v in shown.items())
