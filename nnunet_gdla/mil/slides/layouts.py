"""Which tool wrote a file, and where in it features and coordinates are."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np

from nnunet_gdla.errors import UserError

__all__ = ["WHERE", "Layout", "contents", "find_layout", "number", "readable", "text"]

# Where a user can set what a file says wrong; commands with a trained model read as its training did.
WHERE: Final = "(settings: data; with a trained model: correct the attributes of the file)"

FLAT_NAMES: Final = ("features", "feats")
LISTED: Final = 20


@dataclass(frozen=True)
class Layout:
    """The parts of one open file.

    Attributes:
        name: "atlaspatch", "trident", "clam", "stamp", "wsinfer", or "other" where a key had to be given.
        features: (N, D) or (1, N, D).
        feature_key: Name of the features.
        coords: (N, 2 or more) or (1, N, 2 or more); None where the file has none.
        attributes: Those of the file, overlaid with those of `coords`.
    """

    name: str
    features: h5py.Dataset
    feature_key: str
    coords: h5py.Dataset | None
    attributes: Mapping[str, Any]


def find_layout(file: h5py.File, path: Path, feature_key: str | None = None) -> Layout:
    """Find features, coordinates and attributes.

    Raises:
        UserError: If there are no features, several encoders and no key, or a key that is not there; says what is.
    """
    with readable(path, "its content"):
        encoders = _encoders(file)
        coords = file.get("coords")
        coords = coords if isinstance(coords, h5py.Dataset) else None
        attributes = dict(file.attrs) | (dict(coords.attrs) if coords is not None else {})
    key = _chosen(encoders, feature_key, file, path)
    return Layout(_tool(file, key, coords, attributes), encoders[key], key, coords, attributes)


@contextmanager
def readable(path: Path, name: str) -> Iterator[None]:
    """Turn what a damaged file raises into one sentence; h5py has no error of its own for it."""
    try:
        yield
    except (OSError, RuntimeError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path}: {name} cannot be read ({reason}); extract the slide again") from None


def contents(file: h5py.File) -> str:
    """Return the data sets of a file with their shapes, for messages."""
    with readable(Path(file.filename), "its content"):
        found = [f"{name} {_shape(data)}" for name, data in _datasets(file)]
    more = f" and {len(found) - LISTED} more" if len(found) > LISTED else ""
    return (", ".join(found[:LISTED]) + more) or "nothing"


def number(attributes: Mapping[str, Any], name: str, path: Path) -> float | None:
    """Return an attribute as a number, whether it is stored as a number, an array of equal ones, or a text.

    Raises:
        UserError: If it is none of these.
    """
    if name not in attributes:
        return None
    value = attributes[name]
    entries = [text(entry) for entry in np.asarray(value).ravel().tolist()]
    try:
        numbers = {float(entry) for entry in entries}
    except ValueError:
        numbers = set()
    if len(numbers) != 1:
        raise UserError(
            f"{path}: attribute {name} is {value!r}, expected one number; give stride= {WHERE} to set it aside"
        )
    return numbers.pop()


def text(value: object) -> str:
    """Return an attribute or its entry as text."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.ravel()[0]
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _encoders(file: h5py.File) -> dict[str, h5py.Dataset]:
    group = file.get("features")
    if isinstance(group, h5py.Group):
        return dict(_datasets(group))
    found = {name: file[name] for name in FLAT_NAMES if isinstance(file.get(name), h5py.Dataset)}
    others = {
        name: data
        for name, data in _datasets(file)
        if name not in FLAT_NAMES and not name.startswith("coords") and data.dtype.kind == "f" and data.ndim in (2, 3)
    }
    return found | others


def _chosen(encoders: Mapping[str, h5py.Dataset], wanted: str | None, file: h5py.File, path: Path) -> str:
    if not encoders:
        raise UserError(f"{path} holds no patch features; it holds: {contents(file)}")
    if wanted is not None:
        names = [name for name in (wanted, wanted.removeprefix("features/")) if name in encoders]
        if not names:
            raise UserError(f"{path} has no features called {wanted!r}; feature_key can be: {', '.join(encoders)}")
        return names[0]
    flat = [name for name in FLAT_NAMES if name in encoders]
    grouped = isinstance(file.get("features"), h5py.Group)
    if len(encoders) == 1 and (grouped or flat):
        return next(iter(encoders))
    if len(flat) == 1 and not grouped:
        return flat[0]
    if len(encoders) > 1:
        raise UserError(f"{path} holds several encoders: {', '.join(encoders)}; say which by feature_key")
    raise UserError(
        f"{path} has no data set called features or feats; it holds: {contents(file)}. "
        f"If {next(iter(encoders))} are the features, give feature_key"
    )


def _tool(file: h5py.File, key: str, coords: h5py.Dataset | None, attributes: Mapping[str, Any]) -> str:
    if isinstance(file.get("features"), h5py.Group):
        return "atlaspatch"
    if key == "feats" or "stamp_version" in attributes or "tile_size_um" in attributes:
        return "stamp"
    if key not in FLAT_NAMES:
        return "other"
    if "patch_size_level0" in attributes:
        return "trident"
    return "wsinfer" if coords is not None and (coords.shape or ())[-1:] == (4,) else "clam"


def _datasets(group: h5py.Group) -> Iterator[tuple[str, h5py.Dataset]]:
    found: list[tuple[str, h5py.Dataset]] = []

    def collect(name: str | bytes, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            found.append((text(name), item))

    group.visititems(collect)
    return iter(found)


def _shape(data: h5py.Dataset) -> str:
    return f"({', '.join(map(str, data.shape))})" if data.shape is not None else "(empty)"
