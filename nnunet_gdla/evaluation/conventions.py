"""The two ways in which the field counts: what a metric is where a mask is empty, and in which unit.

Both conventions agree where both masks hold something, but for the unit of distances and the percentile of the HD95.
IoU and pixel accuracy are the same in both; ASSD and NSD differ in the unit only.
"""

from collections.abc import Callable
from dataclasses import dataclass

from nnunet_gdla.errors import UserError
from nnunet_gdla.evaluation.overlap import Counts, dice, iou, pixel_accuracy
from nnunet_gdla.evaluation.surface import SurfaceDistances, assd, hd95, hd95_pooled, nsd

__all__ = ["CONVENTIONS", "METRICS", "STANDARD", "Convention", "convention", "score"]

METRICS = ("dice", "iou", "hd95", "assd", "nsd", "pixel_accuracy")

STANDARD = "standard"
_NAN = float("nan")


@dataclass(frozen=True)
class Convention:
    """Rules of counting.

    Args:
        name: Its name.
        in_voxels: Distances in voxels, whatever their size; otherwise in mm.
        hd95: From distances to HD95.
        dice_without_truth: Dice of a prediction where there is nothing to find; NaN leaves the formula's value.
        dice_of_nothing: Dice where both masks are empty.
        hd95_undefined: HD95 where a mask is empty.
        rules: The same in words, for the files of results.
    """

    name: str
    in_voxels: bool
    hd95: Callable[[SurfaceDistances], float]
    dice_without_truth: float
    dice_of_nothing: float
    hd95_undefined: float
    rules: str


_ASSD = (
    "ASSD is the mean over all surface voxels of both masks pooled, not the mean of two directed means. NSD is the "
    "share of these voxels that lie within the tolerance."
)

CONVENTIONS = {
    each.name: each
    for each in (
        Convention(
            name=STANDARD,
            in_voxels=False,
            hd95=hd95,
            dice_without_truth=0.0,
            dice_of_nothing=_NAN,
            hd95_undefined=_NAN,
            rules="Dice and IoU are undefined where prediction and truth are both empty, HD95 and ASSD where either "
            "is, NSD where both are; undefined values are left out of means and counted. Distances in mm with the "
            "files' voxel sizes (in pixels where the files have none). HD95 is the greater of the two directed 95th "
            "percentiles. " + _ASSD,
        ),
        # The published evaluation: its last branch, Dice 0 and HD95 0, also takes the cases in which both are empty.
        Convention(
            name="transunet",
            in_voxels=True,
            hd95=hd95_pooled,
            dice_without_truth=1.0,
            dice_of_nothing=0.0,
            hd95_undefined=0.0,
            rules="A prediction without truth scores Dice 1 and HD95 0, truth without prediction Dice 0 and HD95 0, "
            "neither Dice 0 and HD95 0: every case counts in the means of these two. IoU is undefined where both are "
            "empty, ASSD where either is, NSD where both are, as in 'standard'; undefined values are left out of means "
            "and counted. Distances in voxels. HD95 is the 95th percentile of the distances of both directions pooled. "
            f"{_ASSD} For comparison with published tables only.",
        ),
    )
}


def convention(name: str) -> Convention:
    """Return a convention by its name.

    Raises:
        UserError: If there is none of this name.
    """
    if name not in CONVENTIONS:
        raise UserError(f"unknown convention {name!r}; choose one of {', '.join(CONVENTIONS)}")
    return CONVENTIONS[name]


def score(
    counts: Counts, distances: SurfaceDistances | None, rules: Convention, *, tolerance: int | float
) -> dict[str, float]:
    """Return every metric of one class of one case.

    Args:
        counts: Its pixels.
        distances: Its surface distances, in the convention's unit; None where a mask is empty.
        rules: The convention.
        tolerance: Greatest distance that NSD accepts, in the convention's unit.

    Returns:
        A number for each of `METRICS`, NaN where it is undefined.
    """
    values = {"dice": dice(counts), "iou": iou(counts), "pixel_accuracy": pixel_accuracy(counts)}
    if distances is None:
        if not counts.truth:
            values["dice"] = rules.dice_without_truth if counts.prediction else rules.dice_of_nothing
        # nothing lies within any distance of an empty mask: the surface that there is has missed
        missed = 0.0 if counts.prediction or counts.truth else _NAN
        values |= {"hd95": rules.hd95_undefined, "assd": _NAN, "nsd": missed}
    else:
        values |= {"hd95": rules.hd95(distances), "assd": assd(distances), "nsd": nsd(distances, tolerance)}
    return {name: values[name] for name in METRICS}
