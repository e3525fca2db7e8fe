"""Patches that are all but lines, and images that are far larger than the others."""

import math
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np

from nnunet_gdla.commands.case_check import CaseReport
from nnunet_gdla.commands.dataset_check import RawDataset
from nnunet_gdla.commands.findings import Finding, collapse, warned
from nnunet_gdla.commands.plans_check import Planned
from nnunet_gdla.words import counted

__all__ = ["check_outliers", "check_patch"]

_THIN, _SMALL = 16, 32  # px; our encoder halves five times
_MIRRORED = 4  # a 2D prediction is made with each of two axes mirrored or not
_LARGER, _MANY_TILES = 25, 200  # times the median area, tiles


def check_patch(planned: Planned | None, raw: RawDataset) -> Iterator[Finding]:
    """Warn of a patch with a tiny side: of these plans, or where there are none of what stock planning would make."""
    number = int(raw.folder.name[7:10])
    if planned is not None:
        patch = [int(edge) for edge in planned.configuration.patch_size]
        slices = (planned.plans.plans.get("original_median_shape_after_transp") or [1])[0]
        subject = f"{planned.plans.plans_name} cut {counted(int(slices), 'slice')} into patches of {_x(patch)}"
    else:
        shapes = [(report.shape, report.properties) for report in raw.reports.values() if report.shape is not None]
        if not shapes:
            return
        spacing = np.median([properties["spacing"] for _, properties in shapes if properties is not None], 0)
        size = np.median([shape for shape, _ in shapes], 0)
        first = int(np.argmax(spacing))  # as nnU-Net's planner takes it
        patch = [int(edge) for axis, edge in enumerate(size) if axis != first]
        slices = int(size[first])
        subject = f"nnU-Net's planner would take {counted(slices, 'slice')} of {_x(patch)}"
    if min(patch) < _THIN or (min(patch) < _SMALL and slices > min(patch)):
        reason = "the slices are cut along the wrong axis, or the images are tiny"
        fix = (
            f"`nnunet-gdla plan -d {number} --preprocess` takes an axis of a single slice as the slice axis; of more "
            "slices write their true spacing into the images, which is what the planner goes by"
        )
        yield warned("patch size", f"{subject}, a side of {min(patch)} px: {reason}", fix)


def check_outliers(planned: Planned | None, raw: RawDataset) -> Iterator[Finding]:
    """Warn of images of which a prediction takes very much longer than of the others."""
    reports = [report for report in raw.reports.values() if report.shape is not None]
    if not reports:
        return
    usual = median(_area(report, None) for report in reports)
    sizes = np.median([_plane(report, None)[1:] for report in reports], 0)
    patch = (
        list(planned.configuration.patch_size) if planned is not None else [max(_SMALL, round(edge)) for edge in sizes]
    )
    details = []
    for report in (*reports, *(report for report in raw.to_predict if report.shape is not None)):
        slices, *plane = _plane(report, planned)
        tiles = round(slices) * math.prod(_steps(edge, side) for edge, side in zip(plane, patch, strict=True))
        if _area(report, None) >= _LARGER * usual and tiles >= _MANY_TILES:
            shape = _x(report.shape or ())
            details.append(
                f"{report.name} is {shape}, {tiles:,} tiles of {_x(patch)}, {_MIRRORED} times with mirroring"
            )
    fix = (
        f"cut such images into tiles of the size of the others ({_x(round(edge) for edge in sizes)} px), each a case "
        "of its own: a prediction of one takes as long as that of all its tiles"
    )
    yield from collapse(warned("image far larger than the others", each, fix) for each in details)


def _plane(report: CaseReport, planned: Planned | None) -> list[float]:
    """Slices, height and width as they are predicted, or of the raw image without plans."""
    assert report.shape is not None
    if planned is None or report.properties is None:
        return [float(edge) for edge in report.shape]
    axes = [int(axis) for axis in planned.plans.transpose_forward]
    edges = [float(report.shape[axis]) for axis in axes]
    spacing = [float(report.properties["spacing"][axis]) for axis in axes]
    target = [float(each) for each in planned.configuration.spacing]
    return [edges[0], *(edge * own / new for edge, own, new in zip(edges[1:], spacing[1:], target, strict=True))]


def _area(report: CaseReport, planned: Planned | None) -> float:
    return math.prod(_plane(report, planned)[1:])


def _steps(edge: float, side: int) -> int:
    """Positions of a window that moves by half its side, as nnU-Net's prediction counts them."""
    return math.ceil(max(0.0, round(edge) - side) / (side / 2)) + 1


def _x(edges: Sequence[Any] | Iterator[Any]) -> str:
    return " x ".join(map(str, edges))
