"""Preprocessed data that are there already: are they what new plans would make?"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nnunet_gdla.errors import UserError

__all__ = ["STOCK_PLANS", "choose_data", "is_complete", "labels_unchanged", "same_preprocessing"]

STOCK_PLANS = "nnUNetPlans"
_OF_THE_PLANS = (
    "image_reader_writer",
    "transpose_forward",
    "foreground_intensity_properties_per_channel",
    "label_manager",
)
_OF_THE_CONFIGURATION = (
    "preprocessor_name",
    "spacing",
    "normalization_schemes",
    "use_mask_for_norm",
    "resampling_fn_data",
    "resampling_fn_data_kwargs",
    "resampling_fn_seg",
    "resampling_fn_seg_kwargs",
)


def choose_data(
    folder: Path, plans: dict[str, Any], cases: Sequence[str], *, same_labels: bool, replace: bool
) -> tuple[str, bool]:
    """Which preprocessed data new 2d plans should name.

    The plans' own folder where an earlier plan of that name made it in the same way, else the stock plans' where these
    preprocess in the same way, else the plans' own, which then has to be made.

    Args:
        folder: The dataset's folder of preprocessed data.
        plans: The new plans, not saved yet.
        cases: Names of all training cases.
        same_labels: dataset.json still says what it said when the data there were made.
        replace: Data made with other settings may be made anew.

    Returns:
        The data identifier, and whether its data are there and complete.

    Raises:
        UserError: If the plans' own data were made with other settings, unless `replace`.
    """
    own = plans["configurations"]["2d"]["data_identifier"]
    for name, identifier in ((plans["plans_name"], own), (STOCK_PLANS, f"{STOCK_PLANS}_2d")):
        earlier = _read(folder / f"{name}.json")
        if same_labels and _made_alike(earlier, plans, identifier) and is_complete(folder / identifier, cases):
            return identifier, True
    earlier = _read(folder / f"{plans['plans_name']}.json")
    if (folder / own).exists() and not replace and not (same_labels and _made_alike(earlier, plans, own)):
        raise UserError(
            f"the data in {folder / own} were made with other settings than these plans have; add --preprocess to make "
            "them anew, or choose another name with --plans-name."
        )
    return own, False


def same_preprocessing(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether the 2d configurations of two plans make the same data of the same images."""
    return _settings(one) == _settings(other)


def labels_unchanged(earlier: Path, now: Path) -> bool:
    """Whether two dataset.json agree in what preprocessing reads; true where there is no earlier one."""
    before = _read(earlier)
    if before is None:
        return True
    after = _read(now) or {}
    return all(before.get(key) == after.get(key) for key in ("labels", "regions_class_order", "channel_names"))


def is_complete(folder: Path, cases: Sequence[str]) -> bool:
    """Whether every case has its image and its properties there (nnU-Net writes the properties last)."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    formats = ((".b2nd", "_seg.b2nd", ".pkl"), (".npz", ".pkl"))
    return bool(cases) and all(any({case + end for end in ends} <= names for ends in formats) for case in cases)


def _made_alike(earlier: dict[str, Any] | None, plans: dict[str, Any], identifier: str) -> bool:
    if earlier is None or "2d" not in earlier.get("configurations", {}):
        return False
    named = earlier["configurations"]["2d"].get("data_identifier")
    return bool(named == identifier and same_preprocessing(earlier, plans))


def _settings(plans: dict[str, Any]) -> str:
    configuration = plans["configurations"]["2d"]
    settings = [plans.get(key) for key in _OF_THE_PLANS] + [configuration.get(key) for key in _OF_THE_CONFIGURATION]
    # As text, because that is how plans are kept, and because NaN (a class without pixels) equals itself there.
    return json.dumps(settings, sort_keys=True, default=_plain)


def _plain(value: Any) -> Any:  # noqa: ANN401 - numpy's arrays and numbers both have it
    return value.tolist()


def _read(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise UserError(f"{path} is not readable as JSON ({error}): mend it or move it away.") from error
    return content
