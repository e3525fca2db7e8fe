"""One preprocessed case: is it whole, fit for these plans, and made of today's raw files?"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from nnunetv2.preprocessing.resampling.default_resampling import compute_new_shape

from nnunet_gdla.commands.case_check import CaseReport
from nnunet_gdla.commands.doctor.storage import STORED_DAMAGE, Array, Storage, blocks, missing_files, read_stored
from nnunet_gdla.commands.findings import Finding, failed, one_line
from nnunet_gdla.commands.plans_check import Planned
from nnunet_gdla.words import counted

__all__ = ["Expected", "check_prepared_case", "expect"]

_NEEDED = ("spacing", "shape_before_cropping", "shape_after_cropping_and_before_resampling", "bbox_used_for_cropping")
# How many places of a class nnU-Net's preprocessing keeps: all up to the first, then a share.
_PLACES, _SHARE = 10_000, 0.01


@dataclass(frozen=True)
class Expected:
    """What all preprocessed cases of these plans have in common.

    Args:
        planned: The plans and what belongs to them.
        channels: Number of image channels.
        labels: The values that masks may hold; -1 marks what was cropped away.
        classes: The keys under which the places of each class are kept.
        fix: The command that makes the data.
    """

    planned: Planned
    channels: int
    labels: frozenset[int]
    classes: frozenset[int | tuple[int, ...]]
    fix: str

    @property
    def transpose(self) -> list[int]:
        """The order of axes."""
        return [int(axis) for axis in self.planned.plans.transpose_forward]


def expect(planned: Planned, fix: str) -> Expected:
    """Return what a training with these plans expects of its cases."""
    from nnunetv2.utilities.label_handling.label_handling import determine_num_input_channels

    manager = planned.plans.get_label_manager(planned.dataset_json)
    wanted = list(manager.foreground_regions if manager.has_regions else manager.foreground_labels)
    labels = {int(label) for label in manager.all_labels}
    if manager.has_ignore_label:
        wanted.append([-1, *manager.all_labels])  # pixels that somebody has looked at
        labels.add(int(manager.ignore_label))
    keys = {tuple(map(int, each)) if isinstance(each, list | tuple) else int(each) for each in wanted}
    channels = determine_num_input_channels(planned.plans, planned.configuration, planned.dataset_json)
    return Expected(planned, channels, frozenset({-1, *labels}), frozenset(keys), fix)


def check_prepared_case(
    case: str,
    storage: Storage,
    folder: Path,
    expected: Expected,
    raw: CaseReport | None,
    *,
    raw_mask: Callable[[], Array] | None,
) -> list[Finding]:
    """Return what is wrong with one case.

    Args:
        case: Its name.
        storage: nnU-Net's class for the folder's format.
        folder: Where it is.
        expected: What the plans and the dataset.json beside them ask for.
        raw: What the raw case holds, None where that is unknown.
        raw_mask: Reads the raw mask: every value is looked at. None: the first and the last block alone.
    """
    missing = missing_files(storage, folder, case)
    if missing:
        return [failed("missing preprocessed file", name, expected.fix) for name in missing]
    stored = read_stored(storage, folder, case)
    if len(stored) == 2:
        return [failed("damaged preprocessed file", f"{stored[0]}: {stored[1]}", expected.fix)]
    image, mask, properties = stored
    lacking = [key for key in (*_NEEDED, "class_locations") if key not in properties]
    if lacking:
        return [failed("damaged preprocessed file", f"{case}.pkl lacks {', '.join(lacking)}", expected.fix)]
    if len(image.shape) != 4 or tuple(mask.shape) != (1, *image.shape[1:]):
        detail = f"{case}: image {tuple(image.shape)}, mask {tuple(mask.shape)}"
        return [failed("shape of preprocessed case", detail, expected.fix)]
    try:
        findings = list(_check_arrays(case, image, mask, expected, full=raw_mask is not None))
        findings += _check_properties(case, properties, tuple(image.shape[1:]), expected)
        findings += _check_places(case, properties["class_locations"], image.shape[1:], expected)
        if raw is not None and not findings:
            findings += _compare_with_raw(case, properties, image, raw, expected)
        if raw_mask is not None and not findings:
            whole = np.asarray(mask[:])[0]
            findings += _check_classes(case, properties["class_locations"], whole, expected)
            findings += _compare_pixels(case, whole, raw_mask(), expected)
    except STORED_DAMAGE as error:
        return [failed("damaged preprocessed file", f"{case}: {one_line(error)}", expected.fix)]
    return findings


def _check_arrays(case: str, image: Any, mask: Any, expected: Expected, *, full: bool) -> Iterator[Finding]:  # noqa: ANN401
    if image.shape[0] != expected.channels:
        detail = f"{case} has {image.shape[0]}, dataset.json beside the plans names {expected.channels}"
        yield failed("channels of preprocessed case", detail, expected.fix)
    if not all(np.isfinite(values).all() for values in blocks(image, whole=full)):
        yield failed("NaN/Inf in preprocessed case", case, "correct the raw image, then: " + expected.fix)
    unknown: set[int] = set()
    for values in blocks(mask, whole=full):
        unknown |= {int(value) for value in np.unique(values)} - expected.labels
    if unknown:
        detail = f"{case} holds {', '.join(map(str, sorted(unknown)[:5]))}"
        yield failed("labels of preprocessed case", f"{detail}, which dataset.json does not declare", expected.fix)


def _check_properties(
    case: str, properties: Mapping[str, Any], shape: tuple[int, ...], expected: Expected
) -> Iterator[Finding]:
    """Compare what the properties say of sizes with the array: the final validation resamples by them."""
    cropped = [int(edge) for edge in properties["shape_after_cropping_and_before_resampling"]]
    spacing = [float(properties["spacing"][axis]) for axis in expected.transpose]
    target = list(map(float, expected.planned.configuration.spacing))
    if len(target) < len(cropped):
        target = [spacing[0], *target]
    wanted = tuple(int(edge) for edge in compute_new_shape(cropped, spacing, target))
    if wanted != tuple(map(int, shape)):
        detail = f"{case} is {_x(shape)}, these plans make {_x(wanted)} of {_x(cropped)}"
        yield failed("shape of preprocessed case", detail, expected.fix)
    box = [int(high) - int(low) for low, high in properties["bbox_used_for_cropping"]]
    if box != cropped:
        yield failed("damaged preprocessed file", f"{case}.pkl: a crop of {_x(box)} for {_x(cropped)}", expected.fix)


def _check_places(case: str, places: Any, shape: tuple[int, ...], expected: Expected) -> Iterator[Finding]:  # noqa: ANN401
    """The places of each class, from which nnU-Net samples foreground."""
    known = set(places) if isinstance(places, dict) else set()
    if known != expected.classes:
        detail = f"{case} was made for {_keys(known)}, dataset.json beside the plans has {_keys(expected.classes)}"
        yield failed("labels of preprocessed case", detail, expected.fix)
        return
    for key, where in places.items():
        if len(where) and (
            np.ndim(where) != 2 or np.shape(where)[1] != 4 or np.min(where) < 0 or (np.max(where, 0)[1:] >= shape).any()
        ):
            detail = f"{case}.pkl: places of class {key} lie outside {_x(shape)}"
            yield failed("damaged preprocessed file", detail, expected.fix)
            return


def _compare_with_raw(
    case: str,
    properties: Mapping[str, Any],
    image: Any,  # noqa: ANN401
    raw: CaseReport,
    expected: Expected,
) -> Iterator[Finding]:
    fix = f"the raw case is another now: {expected.fix}"
    if raw.channels is not None and raw.channels != image.shape[0]:
        detail = f"{case} has {image.shape[0]}, the raw case {raw.channels}"
        yield failed("channels of preprocessed case", detail, fix)
    if raw.shape is None or raw.properties is None:
        return
    before = [int(edge) for edge in properties["shape_before_cropping"]]
    now = [int(raw.shape[axis]) for axis in expected.transpose]
    if before != now:
        yield failed("shape of preprocessed case", f"{case} was made of {_x(before)}, the raw case is {_x(now)}", fix)
        return
    if not np.allclose(properties["spacing"], raw.properties["spacing"]):
        made, there = (_x(f"{float(each):g}" for each in one["spacing"]) for one in (properties, raw.properties))
        detail = f"{case} was made of spacing {made}, the raw case has {there}"
        yield failed("spacing of preprocessed case", detail, fix)
        return
    lost = [key for key in raw.properties if key not in properties]
    if lost:
        yield failed("damaged preprocessed file", f"{case}.pkl lacks {', '.join(lost)}", expected.fix)
    yield from _compare_labels(case, properties, tuple(image.shape[1:]), raw, expected, fix)


def _compare_labels(
    case: str, properties: Mapping[str, Any], shape: tuple[int, ...], raw: CaseReport, expected: Expected, fix: str
) -> Iterator[Finding]:
    """Compare how many pixels each class has, or where masks are resampled or cropped, which classes there are."""
    if not raw.labels or expected.planned.configuration.preprocessor_name != "DefaultPreprocessor":
        return
    before = tuple(int(edge) for edge in properties["shape_before_cropping"])
    exact = (
        before == tuple(map(int, shape)) == tuple(map(int, properties["shape_after_cropping_and_before_resampling"]))
    )
    for key, where in properties["class_locations"].items():
        values = key if isinstance(key, tuple) else (key,)
        pixels = sum(raw.labels.get(value, 0) for value in values)
        wanted = max(min(_PLACES, pixels), int(np.ceil(pixels * _SHARE)))
        if len(where) != wanted if exact else len(where) and not pixels:
            detail = f"{case}: the raw mask has {pixels} pixels of class {key}, the preprocessed one {len(where)}"
            yield failed("labels of preprocessed case", f"{detail}{' or more' if len(where) >= _PLACES else ''}", fix)
            return


def _check_classes(case: str, places: Mapping[Any, Any], mask: Array, expected: Expected) -> Iterator[Finding]:
    for key, where in places.items():
        values = key if isinstance(key, tuple) else (key,)
        if len(where) and not np.isin(mask[tuple(np.asarray(where).T[1:])], values).all():
            detail = f"{case}.pkl: places of class {key} where the mask has another"
            yield failed("damaged preprocessed file", detail, expected.fix)
            return


def _compare_pixels(case: str, made: Array, raw_mask: Array, expected: Expected) -> Iterator[Finding]:
    """Compare a mask pixel by pixel; where the two differ in shape, it was resampled or cropped."""
    there = raw_mask[0].transpose(expected.transpose)
    if made.shape != there.shape:
        return
    different = int(((made != there) & ~((made == -1) & (there == 0))).sum())
    if different:
        detail = f"{case} differs from the raw mask in {counted(different, 'pixel')}"
        yield failed("labels of preprocessed case", detail, f"the raw case is another now: {expected.fix}")


def _keys(keys: object) -> str:
    return ", ".join(sorted(map(str, keys))) if keys else "no classes"  # type: ignore[call-overload]


def _x(edges: Any) -> str:  # noqa: ANN401
    return " x ".join(map(str, edges))
