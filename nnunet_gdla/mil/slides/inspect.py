"""What a slide's file holds, found without keeping its features."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.slides.encoders import encoder_of
from nnunet_gdla.mil.slides.lattice import has_neighbour
from nnunet_gdla.mil.slides.layouts import find_layout
from nnunet_gdla.mil.slides.names import slide_id_of
from nnunet_gdla.mil.slides.placing import Placing
from nnunet_gdla.mil.slides.reader import feature_chunks, feature_shape, open_file, place_slide, read_slide
from nnunet_gdla.mil.slides.slide import ReadOptions
from nnunet_gdla.mil.slides.stride import estimate_stride

__all__ = ["SlideFacts", "inspect_slide", "named_encoder"]


@dataclass(frozen=True)
class SlideFacts:
    """One file: shapes, lattice, remarks; `error` says why it cannot be used, the rest is then empty.

    `share` of the patches have a neighbour; those that have none lie `other_stride` apart.
    """

    slide_id: str
    path: Path
    error: str = ""
    patches: int = 0
    width: int = 0
    dtype: str = ""
    feature_key: str = ""
    encoder: str | None = None
    layout: str = ""
    stride: float | None = None
    unit: str | None = None
    share: float = 0.0
    other_stride: float | None = None
    duplicates: int = 0
    zeros: int = 0
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def inspect_slide(path: Path, options: ReadOptions) -> SlideFacts:
    """Read a file as a training would, by thousands of rows; what would stop it is returned, not raised."""
    try:
        return _tensor_facts(path, options) if path.suffix.lower() == ".pt" else _facts(path, options)
    except UserError as error:
        return SlideFacts(slide_id_of(path), path, error=str(error))


def named_encoder(paths: Iterable[Path], feature_key: str | None) -> str | None:
    """Return the encoder that the first file names that names one, without reading any features."""
    for path in paths:
        if path.suffix.lower() != ".pt":
            with open_file(path) as file:
                encoder = encoder_of(find_layout(file, path, feature_key))
            if encoder is not None:
                return encoder
    return None


def _facts(path: Path, options: ReadOptions) -> SlideFacts:
    with open_file(path) as file:
        layout = find_layout(file, path, options.feature_key)
        rows, width = feature_shape(layout, path)
        placing = place_slide(file, layout, rows, path, options)
        zeros = sum(_zero_rows(chunk) for _, chunk in feature_chunks(layout, path))
        return SlideFacts(
            slide_id=slide_id_of(path),
            path=path,
            patches=rows,
            width=width,
            dtype=str(layout.features.dtype),
            feature_key=layout.feature_key,
            encoder=encoder_of(layout),
            layout=layout.name,
            stride=placing.stride,
            unit=placing.unit,
            share=placing.share,
            other_stride=_other_stride(placing),
            duplicates=_duplicates(placing),
            zeros=zeros,
            notes=placing.notes,
            warnings=placing.warnings,
        )


def _tensor_facts(path: Path, options: ReadOptions) -> SlideFacts:
    slide = read_slide(path, need_coords=options.need_coords)
    rows, width = slide.features.shape
    zeros = _zero_rows(slide.features)
    dtype = str(slide.features.dtype).removeprefix("torch.")
    return SlideFacts(slide.slide_id, path, "", rows, width, dtype, slide.feature_key, None, slide.layout, zeros=zeros)


def _zero_rows(features: Tensor) -> int:
    suspects = features[features[:, 0] == 0]
    return int((~suspects.any(1)).sum())


def _other_stride(placing: Placing) -> float | None:
    """The stride that the patches without a neighbour show among themselves."""
    if placing.coords is None or placing.stride is None:
        return None
    xy = placing.coords.numpy().astype(np.float64)
    seen = estimate_stride(xy[~has_neighbour(xy, placing.stride)]) if placing.share < 1 else None
    return seen.stride if seen is not None and seen.votes else None


def _duplicates(placing: Placing) -> int:
    return 0 if placing.coords is None else len(placing.coords) - len(np.unique(placing.coords.numpy(), axis=0))
