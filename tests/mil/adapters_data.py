"""What the recipes of `../shared/bugs/inputs` on slide files and lattices call."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nnunet_gdla.mil.slides import infer_stride, read_slide
from nnunet_gdla.mil.slides.lattice import snap_to_lattice
from nnunet_gdla.ops.neighbours import grid_neighbours

__all__ = ["GRAPH", "LOADER", "STRIDE"]


def LOADER(path: Path, **options: Any) -> tuple[NDArray[Any], NDArray[Any], float | None]:  # noqa: N802, ANN401
    """Features, coordinates and stride of a slide; float32, as the recipe compares them."""
    slide = read_slide(path, **options)
    assert slide.coords is not None
    return slide.features.float().numpy(), slide.coords.numpy(), slide.stride


def STRIDE(xy: NDArray[Any]) -> float:  # noqa: N802
    """Stride seen in coordinates."""
    return infer_stride(xy)


def GRAPH(xy: NDArray[Any], stride: float) -> tuple[NDArray[Any], NDArray[Any]]:  # noqa: N802
    """Neighbours after the reader's snapping."""
    pixels = np.rint(xy).astype(np.float64)
    snapped = snap_to_lattice(pixels, float(stride), whole_pixels=True)
    graph = grid_neighbours(torch.from_numpy(snapped.coords.astype(np.int64)), snapped.stride)
    return graph.index.numpy(), graph.mask.numpy()
