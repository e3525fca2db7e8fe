"""Which classes are evaluated: labels or regions of a dataset.json, or the label values that the masks hold."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnunet_gdla.errors import UserError
from nnunet_gdla.evaluation.files import read_json_object

__all__ = ["LabelScheme", "MaskClass", "classes_of_values", "find_dataset_json", "read_scheme"]

_EXAMPLE = '"labels": {"background": 0, "tumour": 1}'


@dataclass(frozen=True)
class MaskClass:
    """One class or region.

    Args:
        name: Its name.
        values: The label values that belong to it.
    """

    name: str
    values: tuple[int, ...]


@dataclass(frozen=True)
class LabelScheme:
    """What a dataset.json says about masks.

    Args:
        classes: What is evaluated, in the file's order; without background and ignore label.
        known: Every value that a mask may hold.
        ignore: Pixels where the truth has this value are left out.
        source: The file.
    """

    classes: tuple[MaskClass, ...]
    known: frozenset[int]
    ignore: int | None
    source: Path


def find_dataset_json(predictions: Path, truth: Path) -> Path | None:
    """Look for a dataset.json where nnU-Net has it: with the truth, above it, or among the predictions."""
    candidates = (folder / "dataset.json" for folder in (truth, truth.absolute().parent, predictions))
    return next((path for path in candidates if path.is_file()), None)


def read_scheme(path: Path) -> LabelScheme:
    """Read the labels of a dataset.json.

    Raises:
        UserError: If the file cannot be read or its labels make no sense.
    """
    labels = read_json_object(path).get("labels")
    if not isinstance(labels, dict) or not labels:
        raise UserError(f"{path} has no labels object; add {_EXAMPLE}")
    if all(str(name).isdigit() for name in labels):
        raise UserError(f"{path}: names and values of the labels are the wrong way round; write {_EXAMPLE}")
    values = {name: _values(name, value, path) for name, value in labels.items()}
    if len(values.get("ignore", (0,))) != 1:
        raise UserError(f"{path}: the ignore label is {labels['ignore']}; it must be one whole number")
    classes = tuple(MaskClass(name, many) for name, many in values.items() if name != "ignore" and set(many) != {0})
    if any(0 in each.values for each in classes):
        raise UserError(f"{path}: a region holds the background 0; leave it out of the lists of labels")
    if not classes:
        raise UserError(f"{path} names no class besides background; declare the classes, as in {_EXAMPLE}")
    known = frozenset(value for many in values.values() for value in many) | {0}
    return LabelScheme(classes, known, values["ignore"][0] if "ignore" in values else None, path)


def classes_of_values(values: Collection[int]) -> tuple[MaskClass, ...]:
    """Make a class of every label value but 0."""
    return tuple(MaskClass(str(value), (value,)) for value in sorted(values) if value)


def _values(name: str, value: Any, path: Path) -> tuple[int, ...]:  # noqa: ANN401 - JSON
    many = value if isinstance(value, list) else [value]
    if not many or not all(_is_whole(one) for one in many):
        raise UserError(f"{path}: label {name!r} is {value!r}; write a whole number, or a list of them for a region")
    return tuple(int(one) for one in many)


def _is_whole(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and float(value).is_integer()
