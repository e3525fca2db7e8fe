"""Where the patches of one slide lie: unit, stride, lattice, and which of them are kept.

Shape legend (this file): N patches.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64, Num
from numpy.typing import NDArray
from torch import Tensor

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.slides.lattice import LARGEST_RESIDUAL, Snapped, share_with_neighbour
from nnunet_gdla.mil.slides.layouts import WHERE, Layout, number, text
from nnunet_gdla.mil.slides.overlap import lattice_order, separate_lattices, snap_to_lattices
from nnunet_gdla.mil.slides.slide import ReadOptions, Unit
from nnunet_gdla.mil.slides.stride import StrideEstimate, estimate_stride
from nnunet_gdla.mil.slides.subsample import cap_rows

__all__ = ["Placing", "place"]

# A stated stride may differ by this much (relative) from the one seen in the coordinates.
TOLERANCE: Final = 0.02
# No slide is wider, in whatever unit; beyond 2^53 float64 tells neighbouring pixels apart no longer.
LARGEST_COORDINATE: Final = 1e12
# Pairs that must speak for another stride before a stated one is doubted.
ENOUGH_EVIDENCE: Final = 5
# Slides of so many patches must have this share of them beside another one.
JUDGED_FROM: Final = 20
SMALLEST_SHARE: Final = 0.1

UNITS: Final[dict[str, Unit]] = {
    "um": "um", "µm": "um", "μm": "um", "micron": "um", "microns": "um", "micrometer": "um", "micrometers": "um",
    "px": "px", "pixel": "px", "pixels": "px", "cell": "cell",
}  # fmt: skip


@dataclass(frozen=True)
class Placing:
    """Coordinates of the kept patches, their stride and unit, which rows are kept (None: all), and remarks.

    `lattices` numbers the lattice of each kept patch where several overlap.
    """

    coords: Num[Tensor, "N 2"] | None
    stride: float | None
    unit: Unit | None
    rows: Int64[Tensor, " N"] | None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    share: float = 0.0
    lattices: Int64[Tensor, " N"] | None = None


class _Stated(NamedTuple):
    value: float
    words: str


class _Remarks:
    """Collects notes and warnings; a contradiction is an error unless coordinates are not needed."""

    def __init__(self, path: Path, strict: bool) -> None:
        self.path = path
        self.strict = strict
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def contradict(self, message: str) -> None:
        if self.strict:
            raise UserError(f"{self.path}: {message}")
        self.warnings.append(message)


def place(array: NDArray[np.generic], layout: Layout, path: Path, options: ReadOptions) -> Placing:
    """Find unit and stride of coordinates as they are in the file, move jittered ones to their lattice, apply the cap.

    Raises:
        UserError: If coordinates are not finite, attributes contradict them, or hardly any patch has a neighbour.
    """
    xy = array[:, :2].astype(np.float64)
    usable = (np.abs(xy) <= LARGEST_COORDINATE).all(1)  # False for NaN
    if not usable.all():
        row = int(np.flatnonzero(~usable)[0])
        raise UserError(
            f"{path}: coords of row {row} are {xy[row].tolist()}, expected finite numbers (up to "
            f"{LARGEST_COORDINATE:.0e}); extract the slide again"
        )
    remarks = _Remarks(path, strict=options.need_coords)
    seen = estimate_stride(xy)
    unit = _unit(layout, seen, path, options)
    xy = xy if unit == "um" else np.rint(xy)
    stride = _stride(array, xy, layout, unit, seen, options, remarks)
    if unit == "px" and stride == 1:
        unit = "cell"
        remarks.notes.append("coordinates are row and column numbers")
    looks_right = _close(stride, seen.stride)
    separate = separate_lattices(xy, stride) if looks_right and unit != "cell" else None
    snapped = Snapped(xy, stride, 0.0)
    if looks_right:
        snapped = snap_to_lattices(xy, stride, None if separate is None else separate.labels, whole_pixels=unit != "um")
    if snapped.residual:
        remarks.notes.append(
            f"patches lie up to {snapped.residual:.2f} strides beside a lattice of {snapped.stride:.6g}; moved onto it"
        )
    if separate is not None:
        remarks.notes.append(
            f"{separate.overlapping} patches overlap those of another lattice ({separate.count} lattices): each "
            "lattice keeps its neighbours to itself"
        )
    labels = None if separate is None else separate.labels
    rows = _kept_rows(xy, snapped.coords, snapped.stride, labels, options)
    kept = snapped.coords if rows is None else snapped.coords[rows.numpy()]
    lattices = None if labels is None else torch.from_numpy(labels if rows is None else labels[rows.numpy()])
    share = share_with_neighbour(kept, snapped.stride)
    _judge(share, len(kept), snapped.stride, unit, seen, options, remarks)
    coords = torch.from_numpy(kept.astype(np.float32 if unit == "um" else np.int64))
    return Placing(coords, snapped.stride, unit, rows, tuple(remarks.notes), tuple(remarks.warnings), share, lattices)


def _kept_rows(
    xy: NDArray[np.float64],
    snapped: NDArray[np.float64],
    stride: float,
    labels: NDArray[np.int64] | None,
    options: ReadOptions,
) -> Tensor | None:
    """The rows to read, in the order in which they are wanted; None for all as they are in the file."""
    capped = options.max_patches is not None and options.max_patches < len(xy)
    if not capped and options.sort_rows is None:
        return None
    rows = cap_rows(xy, options.max_patches or len(xy))
    if options.sort_rows is None:
        return rows
    kept = rows.numpy()
    return rows[torch.from_numpy(lattice_order(snapped[kept], stride, None if labels is None else labels[kept]))]


def _unit(layout: Layout, seen: StrideEstimate, path: Path, options: ReadOptions) -> Unit:
    if "unit" in layout.attributes:
        word = text(layout.attributes["unit"]).strip().lower()
        if word not in UNITS:
            raise UserError(
                f"{path}: coordinates are in {word!r}; known units: {', '.join(sorted(set(UNITS.values())))}"
            )
        return UNITS[word]
    if options.unit is not None:
        return options.unit
    tile_um = number(layout.attributes, "tile_size_um", path)
    if tile_um is None:
        return "px"
    tile_px = number(layout.attributes, "tile_size_px", path)
    fits_um = seen.votes > 0 and _close(seen.stride, tile_um)
    if fits_um and (tile_px is None or not _close(seen.stride, tile_px)):
        return "um"
    if seen.votes > 0 and not fits_um:
        return "px"
    raise UserError(
        f"{path}: tiles are {tile_um:g} um wide, but the file does not say the unit of coords; give unit= {WHERE}"
    )


def _stated(layout: Layout, unit: Unit, path: Path) -> _Stated | None:
    """The stride that attributes state, less the overlap: that is counted in pixels of the patch as it was read."""
    name = "tile_size_um" if unit == "um" else "patch_size_level0"
    size = number(layout.attributes, name, path)
    if size is None:
        return None
    words = f"attribute {name} {size:g}"
    overlap = 0.0 if unit == "um" else number(layout.attributes, "overlap", path) or 0.0
    if overlap:
        patch = number(layout.attributes, "patch_size", path)
        if patch is None:
            return None
        words += f" less overlap {overlap:g} of {patch:g}"
        size = size * (1 - overlap / patch) if patch else 0.0
    if not 0 < size < float("inf"):
        raise UserError(f"{path}: {words} is no distance; give stride= {WHERE} to set it aside")
    return _Stated(size, words)


def _hint(array: NDArray[Any], layout: Layout, path: Path) -> float | None:
    """A patch width, where nothing else tells the stride."""
    if layout.name == "wsinfer" or (array.shape[1] == 5 and not array[:, 4].any()):
        width = float(np.median(array[:, 2]))
        return width if width > 0 else None
    size = number(layout.attributes, "patch_size", path)
    level = number(layout.attributes, "patch_level", path)
    down = 1.0 if level == 0 else number(layout.attributes, "downsample", path) if level else None
    return size * down if size and down and 0 < size * down < float("inf") else None


def _stride(
    array: NDArray[Any],
    xy: NDArray[np.float64],
    layout: Layout,
    unit: Unit,
    seen: StrideEstimate,
    options: ReadOptions,
    remarks: _Remarks,
) -> float:
    if options.stride is not None:
        given = float(options.stride)
        if seen.votes >= ENOUGH_EVIDENCE and not _close(given, seen.stride):
            remarks.warnings.append(
                f"stride {given:g} was given, the coordinates look like {seen.stride:.6g}; taken as given"
            )
        return given
    stated = None if unit == "cell" else _stated(layout, unit, remarks.path)
    if stated is not None:
        return _checked(stated, xy, seen, options, remarks)
    if unit == "cell":
        return 1.0
    if seen.votes:
        remarks.notes.append(f"stride {seen.stride:.6g} {unit} is inferred from the coordinates")
        return seen.stride
    if (hint := _hint(array, layout, remarks.path)) is not None:
        remarks.notes.append(f"stride {hint:g} {unit} is the width of a patch")
        return hint
    remarks.warnings.append(
        f"no stride can be seen in the coordinates, so no patch has a neighbour; give stride= {WHERE}"
    )
    return 1.0


def _checked(
    stated: _Stated, xy: NDArray[np.float64], seen: StrideEstimate, options: ReadOptions, remarks: _Remarks
) -> float:
    """The stated stride, unless the coordinates speak clearly for another one."""
    if seen.votes < ENOUGH_EVIDENCE:
        return stated.value
    if _close(stated.value, seen.stride):
        drift = abs(stated.value - seen.stride) * np.ptp(xy, axis=0).max() / stated.value
        if drift <= LARGEST_RESIDUAL * stated.value:
            return stated.value
        remarks.notes.append(f"{stated.words}, but patches are {seen.stride:.6g} apart; taken from the coordinates")
        return seen.stride
    thinned = _close(seen.stride / stated.value, max(2.0, float(round(seen.stride / stated.value))))
    if thinned and (options.allow_isolated or len(xy) < JUDGED_FROM):
        return stated.value
    if thinned and share_with_neighbour(xy, stated.value) >= SMALLEST_SHARE:
        return stated.value
    remarks.contradict(
        f"{stated.words} makes the stride {stated.value:.6g}, but neighbouring patches are {seen.stride:.6g} apart; "
        f"give stride={seen.stride:.6g} {WHERE} if the coordinates are right"
    )
    return seen.stride


def _judge(
    share: float,
    patches: int,
    stride: float,
    unit: Unit,
    seen: StrideEstimate,
    options: ReadOptions,
    remarks: _Remarks,
) -> None:
    """Refuse a slide whose patches hardly have neighbours: the correction would do nothing, without a word."""
    if share >= SMALLEST_SHARE or patches == 1:
        return
    message = f"{share:.0%} of {patches} patches have a neighbour at stride {stride:.6g} {unit}"
    if patches < JUDGED_FROM or options.allow_isolated:
        remarks.warnings.append(message)
        return
    looks = f"; the coordinates look like {seen.stride:.6g}" if seen.votes and not _close(seen.stride, stride) else ""
    cap = f"; max_patches {options.max_patches} may thin it out too much" if options.max_patches == patches else ""
    remarks.contradict(f"only {message}{looks}{cap}. Give the right stride=, or allow_isolated if that is meant")


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= TOLERANCE * b
