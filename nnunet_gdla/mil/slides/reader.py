"""Reading the patches of one slide.

Shape legend (this file): N patches, D feature width.
"""

import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.slides.encoders import encoder_of
from nnunet_gdla.mil.slides.layouts import Layout, contents, find_layout, readable
from nnunet_gdla.mil.slides.names import slide_id_of
from nnunet_gdla.mil.slides.placing import Placing, place
from nnunet_gdla.mil.slides.slide import ReadOptions, Slide, SortRows, Unit

__all__ = [
    "feature_chunks",
    "feature_shape",
    "open_file",
    "place_slide",
    "read_open",
    "read_slide",
]

# Rows that are read and checked at once.
ROWS_AT_ONCE: Final = 8192
NAMED_ROWS: Final = 5
# Whole numbers are refused and not converted: they are quantised features whose scale is elsewhere, or no features.
NEEDED_TYPE: Final = "features are floating point numbers: store them as float16 or float32"


def read_slide(
    path: str | Path,
    *,
    feature_key: str | None = None,
    stride: float | int | None = None,
    unit: Unit | None = None,
    allow_isolated: bool = False,
    need_coords: bool = True,
    max_patches: int | None = None,
    sort_rows: SortRows | None = None,
) -> Slide:
    """Read features and coordinates of a slide as AtlasPatch, TRIDENT, CLAM, STAMP and wsinfer write them.

    Args:
        path: An `.h5` or `.hdf5` file, or a `.pt` tensor.
        feature_key: Name of the encoder, where a file holds several.
        stride: Distance of neighbouring patches. None: from the attributes, checked against the coordinates, or from
            the coordinates.
        unit: Unit of the coordinates, where the file does not say.
        allow_isolated: Take slides in which hardly any patch has a neighbour.
        need_coords: False also takes files without coordinates, and does not refuse slides for their coordinates.
        max_patches: Keep at most so many, in coordinate order (`cap_rows`).
        sort_rows: "lattice" sorts patches line by line along their lattice. None: as in the file.

    Raises:
        UserError: If the file cannot be used; says what is in it and what to give.
    """
    options = ReadOptions(feature_key, stride, unit, allow_isolated, need_coords, max_patches, sort_rows)
    path = Path(path)
    if path.suffix.lower() == ".pt":
        slide = _read_tensor_file(path, options)
    else:
        with open_file(path) as file:
            slide, _ = read_open(file, path, options)
    for warning in slide.warnings:
        warnings.warn(f"{path}: {warning}", stacklevel=2)
    return slide


def open_file(path: Path) -> h5py.File:
    """Open a file for reading.

    Raises:
        UserError: If it is not there, not HDF5, or cut short.
    """
    if not path.is_file():
        raise UserError(f"{path} is a folder, not a file" if path.is_dir() else f"no such file: {path}")
    try:
        return h5py.File(path, "r")
    except OSError as error:
        size = path.stat().st_size
        raise UserError(
            f"{path} ({size} bytes) is no readable HDF5 file: truncated, still being written, or of another kind "
            f"({str(error).splitlines()[0]}); extract its features again"
        ) from None


def read_open(
    file: h5py.File, path: Path, options: ReadOptions, placing: Placing | None = None
) -> tuple[Slide, Placing]:
    """As `read_slide`, from an open file; `placing` is what an earlier reading of the same file found."""
    layout = find_layout(file, path, options.feature_key)
    shape = feature_shape(layout, path)
    if placing is None:
        placing = place_slide(file, layout, shape[0], path, options)
    features = read_features(layout, path, placing.rows)
    return _slide(path, features, placing, layout), placing


def place_slide(file: h5py.File, layout: Layout, rows: int, path: Path, options: ReadOptions) -> Placing:
    """Find coordinates, stride and the rows to read.

    Raises:
        UserError: If coordinates are needed and missing, or do not fit.
    """
    if layout.coords is None:
        if options.need_coords:
            raise UserError(
                f"{path} has no coordinates (no data set coords; it holds: {contents(file)}); without them only "
                "models that know no neighbours can be used (correction: none)"
            )
        return _without_coords(rows, path, options)
    xy = _coordinates(layout.coords, path)
    if len(xy) != rows:
        raise UserError(
            f"{path}: {layout.feature_key} {layout.features.shape} and coords {layout.coords.shape} differ in their "
            f"number of patches, {rows} and {len(xy)}"
        )
    return place(xy, layout, path, options)


def read_features(layout: Layout, path: Path, rows: Tensor | None = None) -> Tensor:
    """Return the features (N, D) of the given rows as float16 or float32.

    Raises:
        UserError: If there are NaN or infinite values; names the rows.
    """
    features: Tensor | None = None
    for start, chunk in feature_chunks(layout, path):
        if features is None:
            features = torch.empty(feature_shape(layout, path), dtype=chunk.dtype)
        features[start : start + len(chunk)] = chunk
    assert features is not None
    return features if rows is None else features[rows]


def feature_chunks(layout: Layout, path: Path) -> Iterator[tuple[int, Tensor]]:
    """Yield the features by thousands of rows, with the number of the first row.

    Raises:
        UserError: As for `read_features`.
    """
    count, width = feature_shape(layout, path)
    data = layout.features
    for start in range(0, count, ROWS_AT_ONCE):
        part = slice(start, min(count, start + ROWS_AT_ONCE))
        with readable(path, layout.feature_key):
            chunk = data[0, part] if data.ndim == 3 else data[part]
        features = as_features(chunk.reshape(-1, width))
        refuse_not_finite(features, path, start)
        yield start, features


def as_features(array: NDArray[Any]) -> Tensor:
    """Return float16 and float32 as they are, wider ones as float32 (infinite where that holds no such number)."""
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    with np.errstate(over="ignore"):
        return torch.from_numpy(native if native.dtype in (np.float16, np.float32) else native.astype(np.float32))


def refuse_not_finite(features: Tensor, path: Path, start: int = 0) -> None:
    """Raise for NaN or infinite features, with the numbers of their rows."""
    lowest, highest = torch.aminmax(features)  # NaN passes through, and nothing is faster in float16
    if torch.isfinite(lowest) and torch.isfinite(highest):
        return
    rows = (~torch.isfinite(features)).any(1).nonzero().ravel() + start
    named = ", ".join(map(str, rows[:NAMED_ROWS].tolist())) + (", ..." if len(rows) > NAMED_ROWS else "")
    raise UserError(f"{path}: NaN or infinite features in row {named}; extract the slide again")


def feature_shape(layout: Layout, path: Path) -> tuple[int, int]:
    """Return patches and width of the features of a file.

    Raises:
        UserError: If they are no floating point numbers, or of another shape than (N, D) or (1, N, D).
    """
    data = layout.features
    if data.dtype.kind != "f":
        kind = "text, or rows of unequal length" if data.dtype.kind in "OSU" else str(data.dtype)
        raise UserError(
            f"{path}: {layout.feature_key} {data.shape} is {kind}; {NEEDED_TYPE}, or name the data set that "
            "holds them by feature_key"
        )
    return bag_shape(data.shape, layout.feature_key, path)


def bag_shape(shape: tuple[int, ...] | None, name: str, path: Path) -> tuple[int, int]:
    """Return patches and width of features (N, D) or (1, N, D).

    Raises:
        UserError: For any other shape, and for an empty bag.
    """
    if shape is None:  # HDF5 can store a data set without a shape
        raise UserError(f"{path}: {name} is empty; extract the slide again")
    if len(shape) == 1:
        raise UserError(f"{path}: {name} {shape} is one vector for the slide; needed is one per patch, (N, D)")
    if len(shape) == 3 and shape[0] == 1:
        shape = shape[1:]
    if len(shape) != 2:
        raise UserError(f"{path}: {name} has shape {shape}; needed is (N, D) or (1, N, D)")
    if 0 in shape:
        raise UserError(f"{path}: {name} {shape} holds no patches; leave the slide out or extract it again")
    return shape[0], shape[1]


def _coordinates(data: h5py.Dataset, path: Path) -> NDArray[np.generic]:
    shape: tuple[int, ...] = data.shape or ()  # None: a data set without values
    shape = shape[1:] if len(shape) == 3 and shape[0] == 1 else shape
    if len(shape) != 2 or shape[1] < 2 or data.dtype.kind not in "iuf":
        raise UserError(f"{path}: coords {data.shape or ()} {data.dtype} are no (N, 2 or more) numbers")
    with readable(path, "coords"):
        array: NDArray[Any] = data[()]
    return array.reshape(shape)


def _without_coords(rows: int, path: Path, options: ReadOptions) -> Placing:
    if options.sort_rows is not None:
        raise UserError(f"{path} has no coordinates by which rows could be sorted; leave sort_rows out")
    cap = options.max_patches
    kept = None if cap is None or rows <= cap else torch.from_numpy(np.linspace(0, rows - 1, cap).astype(np.int64))
    return Placing(None, None, None, kept)


def _slide(path: Path, features: Tensor, placing: Placing, layout: Layout) -> Slide:
    return Slide(
        slide_id=slide_id_of(path),
        features=features,
        coords=placing.coords,
        stride=placing.stride,
        unit=placing.unit,
        path=path,
        feature_key=layout.feature_key,
        encoder=encoder_of(layout),
        layout=layout.name,
        lattices=placing.lattices,
        notes=placing.notes,
        warnings=placing.warnings,
    )


def _read_tensor_file(path: Path, options: ReadOptions) -> Slide:
    if not path.is_file():
        raise UserError(f"{path} is a folder, not a file" if path.is_dir() else f"no such file: {path}")
    if options.need_coords:
        raise UserError(
            f"{path} has no coordinates; give the .h5 file of the slide (CLAM: folder h5_files), or a model that "
            "knows no neighbours (correction: none)"
        )
    try:
        tensor = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, pickle.UnpicklingError) as error:
        what = str(error).splitlines()[0] if str(error) else type(error).__name__
        if "weights only load" in what.lower():  # a page of advice about trust
            what = "it holds something else than tensors, or is damaged"
        raise UserError(f"{path} is no readable tensor file: {what}") from None
    if not isinstance(tensor, Tensor):
        raise UserError(f"{path} holds a {type(tensor).__name__}, expected a floating point tensor (N, D)")
    if not tensor.is_floating_point() or tensor.layout != torch.strided or tensor.is_meta:
        kind = str(tensor.dtype).removeprefix("torch.") + ("" if tensor.layout == torch.strided else " and sparse")
        kind = f"{kind} without values" if tensor.is_meta else kind
        raise UserError(f"{path}: the tensor {tuple(tensor.shape)} is {kind}; {NEEDED_TYPE}, in a dense tensor")
    rows, width = bag_shape(tuple(tensor.shape), "the tensor", path)
    features = tensor.detach().reshape(rows, width)
    features = features if features.dtype in (torch.float16, torch.float32) else features.float()
    refuse_not_finite(features, path)
    placing = _without_coords(rows, path, options)
    kept = features if placing.rows is None else features[placing.rows]
    return Slide(slide_id_of(path), kept, None, None, None, path, "tensor", layout="pt")
