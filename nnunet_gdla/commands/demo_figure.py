"""The demo's picture: a row a held-out case with image, truth and prediction.

Shape legend (this file): H rows, W columns.
"""

from pathlib import Path

import numpy as np
from jaxtyping import Float32, UInt8
from PIL import Image

from nnunet_gdla.commands.phantom import CLASSES
from nnunet_gdla.files import replaced

__all__ = ["draw"]

# Okabe and Ito: told apart with any kind of colour vision, and on grey.
_COLOURS = ("#F0E442", "#56B4E9", "#D55E00", "#009E73")
_OPACITY = 0.75


def draw(target: Path, images: Path, labels: Path, masks: Path, dice: dict[str, list[float]]) -> None:
    """Draw the picture.

    Args:
        target: PNG to write; it appears whole or not at all.
        images: Folder of `NAME_0000.png`.
        labels: Folder of the true `NAME.png`.
        masks: Folder of the predicted `NAME.png`.
        dice: Dice of each class, for each case.
    """
    from matplotlib import style

    # nnU-Net's progress plot changes matplotlib's settings for the whole process.
    with style.context("default"):
        _draw(target, images, labels, masks, dice)


def _draw(target: Path, images: Path, labels: Path, masks: Path, dice: dict[str, list[float]]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    per_class = np.mean(list(dice.values()), axis=0)
    figure = Figure(figsize=(8.4, 2.75 * len(dice) + 1.3), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(
        f"PVT-GDLA in nnU-Net: held-out images, mean Dice {np.mean(per_class):.2f}", fontsize=15, fontweight="bold"
    )
    axes = figure.subplots(len(dice), 3, squeeze=False)
    for row, (name, values) in zip(axes, dice.items(), strict=True):
        grey = _read(images / f"{name}_0000.png")
        pictures = (
            _coloured(grey, np.zeros_like(grey)),
            _coloured(grey, _read(labels / f"{name}.png")),
            _coloured(grey, _read(masks / f"{name}.png")),
        )
        captions = (
            f"{name}, {grey.shape[1]} x {grey.shape[0]} px",
            "truth",
            f"prediction, Dice {np.mean(values):.2f}",
        )
        for axis, picture, caption in zip(row, pictures, captions, strict=True):
            axis.imshow(picture, interpolation="nearest")
            axis.set_title(caption, fontsize=10)
            axis.set_axis_off()
    patches = [
        Patch(color=colour, label=f"{name}  {value:.2f}")
        for colour, name, value in zip(_COLOURS, CLASSES, per_class, strict=True)
    ]
    figure.legend(
        handles=patches,
        loc="outside lower center",
        ncols=len(CLASSES),
        frameon=False,
        fontsize=11,
        title="mean Dice of each class",
    )
    replaced(target, lambda unfinished: figure.savefig(unfinished, format="png", dpi=130))


def _read(path: Path) -> UInt8[np.ndarray, "H W"]:
    with Image.open(path) as image:
        return np.asarray(image)


def _coloured(grey: UInt8[np.ndarray, "H W"], label: UInt8[np.ndarray, "H W"]) -> Float32[np.ndarray, "H W 3"]:
    """Stretch the grey values to black and white and lay the classes' colours over them."""
    from matplotlib.colors import to_rgb

    low, high = np.percentile(grey, (0.5, 99.5))
    stretched = np.clip((grey - low) / max(high - low, 1.0), 0.0, 1.0)
    picture = np.repeat(stretched[:, :, None], 3, axis=2).astype(np.float32)
    for value, colour in enumerate(_COLOURS, start=1):
        where = label == value
        picture[where] = (1 - _OPACITY) * picture[where] + _OPACITY * np.array(to_rgb(colour), dtype=np.float32)
    return picture
