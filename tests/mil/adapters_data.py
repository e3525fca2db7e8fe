"""What the recipes of `../shared/bugs/inputs` on slide files and lattices call."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nnunet_gdla.mil.neighbours import lattice_graph
from nnunet_gdla.mil.slides import infer_stride, read_slide
from nnunet_gdla.mil.slides.overlap import separate_lattices, snap_to_lattices

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
    """Neighbours after the reader's snapping, of each lattice by itself."""
    pixels = np.rint(xy).astype(np.float64)
    separate = separate_lattices(pixels, float(stride))
    labels = None if separate is None else separate.labels
    snapped = snap_to_lattices(pixels, float(stride), labels, whole_pixels=True)
    lattices = None if labels is None else torch.from_numpy(labels)
    graph = lattice_graph(torch.from_numpy(snapped.coords.astype(np.int64)), snapped.stride, lattices)
    return graph.index[0].numpy(), graph.mask[0].numpy()
