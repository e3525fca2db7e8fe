"""The ways in which the field counts: what a metric is where a mask is empty, and in which unit.

All conventions agree where both masks hold something, but for the unit of distances and the percentile of the HD95.
Pixel accuracy is the same in all.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from nnunet_gdla.errors import UserError
from nnunet_gdla.evaluation.overlap import Counts, dice, iou, pixel_accuracy
from nnunet_gdla.evaluation.surface import SurfaceDistances, assd, hd95, hd95_pooled, nsd

__all__ = ["CONVENTIONS", "LEAVE_OUT", "METRICS", "MISSED", "STANDARD", "WORST", "Convention", "convention", "score"]

METRICS = ("dice", "iou", "hd95", "assd", "nsd", "pixel_accuracy")

STANDARD = "standard"
LEAVE_OUT, WORST = MISSED = ("leave-out", "worst")
_NAN = float("nan")


@dataclass(frozen=True)
class Convention:
    """Rules of counting.

    Args:
        name: Its name.
        in_voxels: Distances in voxels, whatever their size; otherwise in mm.
        hd95: From distances to HD95.
        dice_without_truth: Dice of a prediction where there is nothing to find.
        dice_of_nothing: Dice where both masks are empty.
        hd95_undefined: HD95 where a mask is empty.
        rules: The same in words, for the files of results.
        needs_truth: Where there is nothing to find every metric but pixel accuracy is undefined.
        missed: "leave-out", or "worst": where one of the two masks is empty, distances are the image's diagonal.
    """

    name: str
    in_voxels: bool
    hd95: Callable[[SurfaceDistances], float]
    dice_without_truth: float
    dice_of_nothing: float
    hd95_undefined: float
    rules: str
    needs_truth: bool = False
    missed: str = LEAVE_OUT


_ASSD = (
    "ASSD is the mean over all surface voxels of both masks pooled, not the mean of two directed means. NSD is the "
    "share of these voxels that lie within the tolerance."
)

_WORST_RULE = (
    "Unlike that, HD95 and ASSD of a missed object, and of a prediction where there is nothing to find, are the "
    "image's diagonal (--missed worst)."
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
        Convention(
            name="monai",
            in_voxels=False,
            hd95=hd95,
            dice_without_truth=_NAN,
            dice_of_nothing=_NAN,
            hd95_undefined=_NAN,
            needs_truth=True,
            rules="Images whose truth is empty are left out and counted, whatever is predicted there: false positives "
            "on them change nothing but pixel accuracy. Truth without prediction has Dice, IoU and NSD 0; its HD95 and "
            "ASSD are undefined: undefined values are left out of means and counted. Distances in mm with the files' "
            "voxel sizes (in pixels where the files have none). HD95 is the greater of the two directed 95th "
            "percentiles. " + _ASSD,
        ),
    )
}


def convention(name: str, missed: str = LEAVE_OUT) -> Convention:
    """Return a convention by its name.

    Args:
        name: One of `CONVENTIONS`.
        missed: What becomes of distances to an empty mask, one of `MISSED`.

    Raises:
        UserError: If there is none of this name.
    """
    if name not in CONVENTIONS:
        raise UserError(f"unknown convention {name!r}; choose one of {', '.join(CONVENTIONS)}")
    if missed not in MISSED:
        raise UserError(f"unknown way to count missed objects {missed!r}; choose one of {', '.join(MISSED)}")
    found = CONVENTIONS[name]
    return found if missed == LEAVE_OUT else replace(found, missed=missed, rules=f"{found.rules} {_WORST_RULE}")


def score(
    counts: Counts,
    distances: SurfaceDistances | None,
    rules: Convention,
    *,
    tolerance: int | float,
    diagonal: float = _NAN,
) -> dict[str, float]:
    """Return every metric of one class of one case.

    Args:
        counts: Its pixels.
        distances: Its surface distances, in the convention's unit; None where a mask is empty.
        rules: The convention.
        tolerance: Greatest distance that NSD accepts, in the convention's unit.
        diagonal: Of the image, in the convention's unit; used by conventions that count missed objects.

    Returns:
        A number for each of `METRICS`, NaN where it is undefined.
    """
    values = {"dice": dice(counts), "iou": iou(counts), "pixel_accuracy": pixel_accuracy(counts)}
    if distances is None:
        if not counts.truth:
            values["dice"] = rules.dice_without_truth if counts.prediction else rules.dice_of_nothing
        # nothing lies within any distance of an empty mask: the surface that there is has missed
        one_is_empty = bool(counts.prediction or counts.truth)
        values |= {"hd95": rules.hd95_undefined, "assd": _NAN, "nsd": 0.0 if one_is_empty else _NAN}
        if one_is_empty and rules.missed == WORST:
            values |= {"hd95": diagonal, "assd": diagonal}
    else:
        values |= {"hd95": rules.hd95(distances), "assd": assd(distances), "nsd": nsd(distances, tolerance)}
    if rules.needs_truth and not counts.truth:
        values = dict.fromkeys(METRICS, _NAN) | {"pixel_accuracy": values["pixel_accuracy"]}
    return {name: values[name] for name in METRICS}
