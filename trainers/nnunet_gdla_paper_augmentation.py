# ruff: noqa: NPY002 - nnU-Net draws from NumPy's one random state, and so the loader can set it for both
"""The augmentation of the paper's training, for slices of volumes and for photographs.

Draws from NumPy's random state, which the loader sets before every batch. Shape legend (this file): C channels, H and W
pixels.
"""

import functools
from typing import Any

import numpy as np
import torch
from batchgeneratorsv2.transforms.base.basic_transform import BasicTransform
from jaxtyping import Float, Shaped
from scipy.ndimage import gaussian_filter1d
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

__all__ = ["PhotographAugmentation", "SliceAugmentation"]

_NEAREST, _BILINEAR = InterpolationMode.NEAREST, InterpolationMode.BILINEAR


class SliceAugmentation(BasicTransform):
    """Half of the time quarter turns and a flip, else half of the time a rotation by whole degrees in [-20, 20).

    The rotation takes the nearest pixel, for the image as well, and fills with 0. Patches that are no squares are
    turned by 0 or 180 degrees only.
    """

    def get_parameters(self, **data_dict: Tensor) -> dict[str, Any]:
        """Draw what happens to one slice."""
        height, width = data_dict["image"].shape[-2:]
        if np.random.random() < 0.5:
            turns = np.random.randint(4) if height == width else 2 * np.random.randint(2)
            return {"turns": turns, "flip": -1 - np.random.randint(2), "degrees": None}
        return {"turns": 0, "flip": None, "degrees": np.random.randint(-20, 20) if np.random.random() < 0.5 else None}

    def _apply_to_image(
        self, img: Shaped[Tensor, "C H W"], turns: int, flip: int | None, degrees: int | None
    ) -> Shaped[Tensor, "C H W"]:
        if degrees is not None:
            return functional.rotate(img, degrees, _NEAREST)
        img = torch.rot90(img, turns, (-2, -1))
        return img if flip is None else img.flip(flip)

    def _apply_to_segmentation(
        self, segmentation: Shaped[Tensor, "C H W"], turns: int, flip: int | None, degrees: int | None
    ) -> Shaped[Tensor, "C H W"]:
        return self._apply_to_image(segmentation, turns, flip, degrees)


class PhotographAugmentation(BasicTransform):
    """Rotation up to 30 degrees and flips (each half of the time), brightness and contrast (.2), blur, elastic (.3).

    The values of an image keep the range that they had: where it was scaled to 0..1, as recipes do, it is scaled to
    0..1 after these changes, over all channels together. Pixels from beyond the edge are mirrored.
    """

    def get_parameters(self, **data_dict: Tensor) -> dict[str, Any]:
        """Draw what happens to one photograph."""

        def happens(probability: float) -> bool:
            return bool(np.random.random() < probability)

        return {
            "degrees": np.random.uniform(-30, 30) if happens(0.5) else None,
            "flips": [axis for axis in (-1, -2) if happens(0.5)],
            "tone": np.random.uniform((0.8, -0.2), (1.2, 0.2)).tolist() if happens(0.2) else None,
            "kernel": int(np.random.choice((3, 5, 7))) if happens(0.3) else None,
            "displacement": _displacement(*data_dict["image"].shape[-2:]) if happens(0.3) else None,
        }

    def _apply_to_image(self, img: Float[Tensor, "C H W"], **drawn: Any) -> Float[Tensor, "C H W"]:  # noqa: ANN401
        low, high = img.min(), img.max()
        if high == low:
            return img
        img = _moved((img - low) / (high - low), drawn["degrees"], drawn["flips"], _BILINEAR)
        if drawn["tone"] is not None:
            contrast, brightness = drawn["tone"]
            img = (contrast * img + brightness).clamp(0, 1)
        if drawn["kernel"] is not None:
            img = functional.gaussian_blur(img, [drawn["kernel"]] * 2)  # its sigma follows from the kernel
        if drawn["displacement"] is not None:
            img = functional.elastic(img, drawn["displacement"], _BILINEAR)
        found = img.max() - img.min()
        img = (img - img.min()) / found if found > 0 else torch.zeros_like(img)
        return low + img * (high - low)

    def _apply_to_segmentation(
        self,
        segmentation: Shaped[Tensor, "C H W"],
        **drawn: Any,  # noqa: ANN401
    ) -> Shaped[Tensor, "C H W"]:
        segmentation = _moved(segmentation, drawn["degrees"], drawn["flips"], _NEAREST)
        if drawn["displacement"] is not None:
            segmentation = functional.elastic(segmentation, drawn["displacement"], _NEAREST)
        return segmentation


def _moved(
    img: Shaped[Tensor, "C H W"], degrees: float | None, flips: list[int], interpolation: InterpolationMode
) -> Shaped[Tensor, "C H W"]:
    height, width = img.shape[-2:]
    if degrees is not None:
        # Enough for 30 degrees; reflection needs less than the edge itself.
        rows, columns = (min(max(height, width) // 4 + 1, edge - 1) for edge in (height, width))
        # Reflection knows no 16-bit numbers; float32 holds them exactly.
        padded = functional.pad(img.float(), [columns, rows, columns, rows], padding_mode="reflect")
        img = functional.center_crop(functional.rotate(padded, degrees, interpolation), [height, width]).to(img.dtype)
    return img.flip(flips) if flips else img


def _displacement(height: int, width: int) -> Float[Tensor, "1 H W 2"]:
    """Smoothed uniform noise of one pixel (alpha 1, sigma 50), in the units of a sampling grid."""
    noises = np.random.uniform(-1, 1, (2, height, width))
    shifts = [_smoothing(height) @ noise @ _smoothing(width).T for noise in noises]
    grid = np.stack([shift * 2 / edge for shift, edge in zip(shifts, (width, height), strict=True)], axis=-1)
    return torch.from_numpy(grid.astype(np.float32))[None]


@functools.lru_cache(maxsize=4)
def _smoothing(length: int) -> Float[np.ndarray, "N N"]:
    """The filter as a matrix: its 401 taps one by one would take longer than everything else together."""
    return gaussian_filter1d(np.eye(length), 50, axis=0)
