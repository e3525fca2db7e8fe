"""What is read from one file.

Shape legend (this file): N patches, D feature width.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jaxtyping import Float, Num
from torch import Tensor

from nnunet_gdla.errors import UserError

__all__ = ["ReadOptions", "Slide", "Unit"]

Unit = Literal["px", "um", "cell"]


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
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReadOptions:
    """What can be said about how slides are read; see `read_slide`."""

    feature_key: str | None = None
    stride: float | int | None = None
    unit: Unit | None = None
    allow_isolated: bool = False
    need_coords: bool = True
    max_patches: int | None = None

    def __post_init__(self) -> None:
        if self.stride is not None and not 0 < self.stride < float("inf"):
            raise UserError(f"stride {self.stride} must be a positive number, the distance of neighbouring patches")
        if self.max_patches is not None and self.max_patches < 1:
            raise UserError(f"max_patches {self.max_patches} keeps nothing; give at least 1, or leave it out")
