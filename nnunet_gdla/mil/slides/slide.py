"""What is read from one file.

Shape legend (this file): N patches, D feature width.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from jaxtyping import Float, Int64, Num
from torch import Tensor

from nnunet_gdla.errors import UserError

__all__ = ["ReadOptions", "Slide", "SortRows", "Unit"]

Unit = Literal["px", "um", "cell"]
SortRows = Literal["lattice"]


@dataclass(frozen=True, eq=False)
class Slide:
    """The patches of one slide, in the order of the file.

    Attributes:
        slide_id: File name without its last known extension.
        features: As stored: float16 or float32 (float64 is read as float32).
        coords: x and y of the upper left corners: int64 level-0 pixels or grid indices, float32 micrometres. None: the
            file has none. Where patches lie beside their lattice, these are the lattice's points (see `notes`).
        stride: Distance of neighbouring patches in the unit of `coords`.
        unit: "px", "um", or "cell" for row and column numbers.
        path: Where it was read from.
        feature_key: Name of the data set inside the file.
        encoder: What made the features, where the file says so.
        layout: Which tool's layout was recognised.
        lattices: Number of each patch's lattice where several overlap, whose patches are no neighbours; None otherwise.
        notes: How the stride was found, and what was changed.
        warnings: What looks wrong but does not stop the reading.
    """

    slide_id: str
    features: Float[Tensor, "N D"]
    coords: Num[Tensor, "N 2"] | None
    stride: float | None
    unit: Unit | None
    path: Path
    feature_key: str
    encoder: str | None = None
    layout: str = ""
    lattices: Int64[Tensor, " N"] | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def take(self, rows: Int64[Tensor, " M"]) -> "Slide":
        """Return the slide with these patches, in this order."""
        coords, lattices = (None if part is None else part[rows] for part in (self.coords, self.lattices))
        return replace(self, features=self.features[rows], coords=coords, lattices=lattices)

    def __post_init__(self) -> None:
        _check_tensor(self.slide_id, "features", self.features, ("patches", "width"))
        if not self.features.is_floating_point():
            raise UserError(
                f"slide {self.slide_id}: features {tuple(self.features.shape)} are {self.features.dtype}, needed are "
                "floating point numbers (float16 or float32)"
            )
        if self.coords is None:
            return
        _check_tensor(self.slide_id, "coords", self.coords, ("patches", "2"))
        if self.coords.shape != (len(self.features), 2):
            raise UserError(
                f"slide {self.slide_id}: coords {tuple(self.coords.shape)} are no x and y for each row of features "
                f"{tuple(self.features.shape)}"
            )


def _check_tensor(slide_id: str, name: str, value: object, axes: tuple[str, str]) -> None:
    """Raise unless it is a tensor with these axes; what is often handed over instead is named."""
    wanted = f"needed is a torch tensor ({', '.join(axes)})"
    if not isinstance(value, Tensor):
        shape = getattr(value, "shape", None)
        what = f"{type(value).__module__}.{type(value).__qualname__}" + ("" if shape is None else f" {tuple(shape)}")
        raise UserError(f"slide {slide_id}: {name} are a {what}, {wanted}: torch.from_numpy makes one of an array")
    if value.ndim != 2 or 0 in value.shape:
        raise UserError(f"slide {slide_id}: {name} have shape {tuple(value.shape)}, {wanted}")


@dataclass(frozen=True)
class ReadOptions:
    """What can be said about how slides are read; see `read_slide`."""

    feature_key: str | None = None
    stride: float | int | None = None
    unit: Unit | None = None
    allow_isolated: bool = False
    need_coords: bool = True
    max_patches: int | None = None
    sort_rows: SortRows | None = None

    def __post_init__(self) -> None:
        if self.stride is not None and not 0 < self.stride < float("inf"):
            raise UserError(f"stride {self.stride} must be a positive number, the distance of neighbouring patches")
        if self.max_patches is not None and self.max_patches < 1:
            raise UserError(f"max_patches {self.max_patches} keeps nothing; give at least 1, or leave it out")
