"""A small made-up 2D dataset in nnU-Net's raw format: grey images of discs, rings, polygons and thin vessels.

All shapes have the same range of brightness, so that form, not grey value, tells the classes apart; a smooth bias
field, texture and noise lie over everything. Each case has its own random stream, so case 3 is the same whatever was
drawn before it.

Shape legend (this file): H rows, W columns, P points of a line, E edges of a polygon.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float64, UInt8
from PIL import Image

__all__ = ["CLASSES", "DATASET_ID", "DATASET_NAME", "Case", "make_case", "write_dataset"]

DATASET_ID = 999
DATASET_NAME = f"Dataset{DATASET_ID}_Phantom"
CLASSES = ("disc", "ring", "polygon", "vessel")
"""Foreground classes; label value = position + 1."""

_SMALLEST_SIDE, _LARGEST_SIDE = 90, 128
_RADII = (9.0, 16.0)
_GAP = 4.0
_BACKGROUND = 0.32
_TRIES = 60

_Map = Float64[np.ndarray, "H W"]
_Point = tuple[float, float]
_Draw = Callable[[np.random.Generator, Float64[np.ndarray, "2 H W"], float], Float64[np.ndarray, "H W"]]


@dataclass(frozen=True)
class Case:
    """One image and its truth."""

    image: UInt8[np.ndarray, "H W"]
    label: UInt8[np.ndarray, "H W"]


def write_dataset(raw_folder: Path, seed: int, *, num_training: int, num_test: int) -> Path:
    """Write the dataset: training cases with labels, and held-out cases whose labels nnU-Net never sees.

    Args:
        raw_folder: Folder that `nnUNet_raw` points to; made if it is not there.
        seed: Same seed, same files.
        num_training: Cases in `imagesTr` and `labelsTr`.
        num_test: Cases in `imagesTs` and `labelsTs`.

    Returns:
        Folder of the dataset.
    """
    dataset = raw_folder / DATASET_NAME
    training = {}
    for split, stream, count in (("Tr", 0, num_training), ("Ts", 1, num_test)):
        for kind in ("images", "labels"):
            (dataset / f"{kind}{split}").mkdir(parents=True, exist_ok=True)
        for index in range(count):
            case = make_case(np.random.default_rng([seed, stream, index]))
            name = f"phantom_{split.lower()}{index:02d}"
            image, label = f"images{split}/{name}_0000.png", f"labels{split}/{name}.png"
            Image.fromarray(case.image).save(dataset / image)
            Image.fromarray(case.label).save(dataset / label)
            if split == "Tr":
                training[name] = {"images": [image], "label": label}
    description = {
        "channel_names": {"0": "grey"},
        "labels": {"background": 0, **{name: value for value, name in enumerate(CLASSES, start=1)}},
        "numTraining": num_training,
        "file_ending": ".png",
        "description": f"Made by nnunet-gdla demo, seed {seed}",
        # nnU-Net finds the files by itself as well, but starts twelve processes to do so.
        "dataset": training,
    }
    (dataset / "dataset.json").write_text(json.dumps(description, indent=2) + "\n")
    return dataset


def make_case(rng: np.random.Generator) -> Case:
    """Draw one case; every class is in it, and no side is a multiple of 32.

    Args:
        rng: Source of everything random in it.

    Returns:
        Image in 0..255 and labels 0 (background) and 1..4 (`CLASSES`).
    """
    height, width = _draw_side(rng), _draw_side(rng)
    grid = np.mgrid[0:height, 0:width].astype(np.float64)
    label = np.zeros((height, width), dtype=np.uint8)
    brightness = _BACKGROUND + 0.03 * _smooth_noise(rng, height, width)

    # Vessels first: they run behind the other shapes, as in a projection image.
    layers = [(len(CLASSES), _vessel(rng, grid)) for _ in range(rng.integers(1, 3))]
    layers += [
        (value, draw(rng, grid - np.reshape(centre, (2, 1, 1)), radius))
        for value, draw, centre, radius in _place_shapes(rng, height, width)
    ]
    for value, distance in layers:
        cover = np.clip(0.5 - distance / 1.5, 0.0, 1.0)
        brightness += cover * (_BACKGROUND + rng.uniform(0.2, 0.34) - brightness)
        label[distance < 0] = value
    noise = rng.normal(0.0, rng.uniform(0.02, 0.05), (height, width))
    image = np.clip(brightness * _bias_field(rng, grid) + noise, 0.0, 1.0)
    return Case(image=(255.0 * image).round().astype(np.uint8), label=label)


def _draw_side(rng: np.random.Generator) -> int:
    side = int(rng.integers(_SMALLEST_SIDE, _LARGEST_SIDE))
    return side + 1 if side % 32 == 0 else side


def _smooth_noise(rng: np.random.Generator, height: int, width: int) -> Float64[np.ndarray, "{height} {width}"]:
    """Draw texture with features of about ten pixels, mean 0 and standard deviation 1."""
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :])
    spectrum = np.fft.rfft2(rng.normal(size=(height, width))) * np.exp(-((frequency / 0.06) ** 2))
    spectrum[0, 0] = 0.0
    field: Float64[np.ndarray, "H W"] = np.fft.irfft2(spectrum, s=(height, width))
    field /= field.std()
    return field


def _bias_field(rng: np.random.Generator, grid: Float64[np.ndarray, "2 H W"]) -> _Map:
    angle = rng.uniform(0.0, 2.0 * np.pi)
    rows, columns = grid[0] / grid[0].max() - 0.5, grid[1] / grid[1].max() - 0.5
    along = np.cos(angle) * rows + np.sin(angle) * columns
    field: Float64[np.ndarray, "H W"] = 1.0 + rng.uniform(0.3, 0.7) * along + rng.uniform(-0.4, 0.4) * along**2
    return field


def _place_shapes(rng: np.random.Generator, height: int, width: int) -> list[tuple[int, _Draw, _Point, float]]:
    """Draw label, drawing function, centre and radius of the compact shapes: none touches another or the edge."""
    kinds: list[tuple[int, _Draw]] = [(1, _disc), (2, _ring), (3, _polygon)]
    wanted = [*kinds, *(kinds[i] for i in rng.permutation(3)[: rng.integers(1, 4)])]
    while True:
        placed: list[tuple[int, _Draw, _Point, float]] = []
        for value, draw in wanted:
            for _ in range(_TRIES):
                radius = rng.uniform(*_RADII)
                centre = (rng.uniform(radius + 2, height - radius - 2), rng.uniform(radius + 2, width - radius - 2))
                if all(np.hypot(centre[0] - y, centre[1] - x) > radius + r + _GAP for _, _, (y, x), r in placed):
                    placed.append((value, draw, centre, radius))
                    break
        # The extra ones may find no room; one of each class is a promise, so a layout without it is drawn anew.
        if {value for value, *_ in placed} == {value for value, _ in kinds}:
            return placed


# Each drawing function returns the distance in pixels to the shape's outline, negative inside, for coordinates relative
# to the shape's centre.


def _disc(rng: np.random.Generator, offset: Float64[np.ndarray, "2 H W"], radius: float) -> _Map:
    angle, flattening = rng.uniform(0.0, np.pi), rng.uniform(0.85, 1.0)
    along = np.cos(angle) * offset[0] + np.sin(angle) * offset[1]
    across = np.cos(angle) * offset[1] - np.sin(angle) * offset[0]
    distance: Float64[np.ndarray, "H W"] = np.hypot(along * flattening, across) - radius * flattening
    return distance


def _ring(rng: np.random.Generator, offset: Float64[np.ndarray, "2 H W"], radius: float) -> _Map:
    half_width = rng.uniform(1.8, 2.8)
    distance: Float64[np.ndarray, "H W"] = np.abs(np.hypot(*offset) - (radius - half_width)) - half_width
    return distance


def _polygon(rng: np.random.Generator, offset: Float64[np.ndarray, "2 H W"], radius: float) -> _Map:
    edges = int(rng.integers(3, 5))
    angles_E = rng.uniform(0.0, 2.0 * np.pi) + 2.0 * np.pi * np.arange(edges) / edges
    along_EHW = np.tensordot(np.stack([np.cos(angles_E), np.sin(angles_E)], axis=1), offset, axes=1)
    distance: Float64[np.ndarray, "H W"] = along_EHW.max(axis=0) - radius * np.cos(np.pi / edges)
    return distance


def _vessel(rng: np.random.Generator, grid: Float64[np.ndarray, "2 H W"]) -> _Map:
    """Draw a thin curved tube from one side of the image to the opposite one, thinner towards its end."""
    size = np.array(grid.shape[1:], dtype=np.float64)
    control_42 = rng.uniform(0.1, 0.9, (4, 2)) * size
    lengthwise = int(rng.integers(2))
    control_42[:, lengthwise] = np.linspace(-2.0, size[lengthwise] + 2.0, 4)
    t_P1 = np.linspace(0.0, 1.0, 160)[:, None]
    bezier_P4 = np.concatenate([(1 - t_P1) ** 3, 3 * t_P1 * (1 - t_P1) ** 2, 3 * t_P1**2 * (1 - t_P1), t_P1**3], axis=1)
    points_P2 = bezier_P4 @ control_42
    half_width_P = rng.uniform(1.7, 2.3) * (1.0 - 0.4 * t_P1)
    distance_PHW = np.hypot(*(grid[:, None] - points_P2.T[:, :, None, None])) - half_width_P[:, :, None]
    distance: Float64[np.ndarray, "H W"] = distance_PHW.min(axis=0)
    return distance
