"""Patch and batch from the median image and the memory there is."""

import math
from collections.abc import Sequence

from nnunet_gdla.networks.encoder import ENCODER_STRIDES
from nnunet_gdla.plans.nnunet_gdla_memory import Device, largest_batch
from nnunet_gdla.plans.nnunet_gdla_sizes import NetworkSize

__all__ = ["MIN_BATCH", "PATCH_MULTIPLE", "choose_batch", "choose_patch"]

PATCH_MULTIPLE = ENCODER_STRIDES[-1]
MIN_BATCH = 2
# Pixels per step on a CPU, two images of 256 x 256: some seconds with the default encoder on a few cores, where the
# batch that fits the memory would take minutes.
_CPU_PIXELS = 2 * 256 * 256


def choose_patch(size: NetworkSize, median_shape: Sequence[float], budget_bytes: int, device: Device) -> list[int]:
    """Edges that cover the median image, or the largest ones of about its shape of which two fit the budget.

    Args:
        size: The network.
        median_shape: Height and width of the median image after resampling.
        budget_bytes: Memory for the training step.
        device: "cuda" or "cpu".

    Returns:
        Height and width, multiples of 32; 32 x 32 where nothing fits.
    """
    shape = [max(1.0, float(edge)) for edge in median_shape]
    patch = [math.ceil(edge / PATCH_MULTIPLE) * PATCH_MULTIPLE for edge in shape]
    while largest_batch(size, patch, budget_bytes, device) < MIN_BATCH and max(patch) > PATCH_MULTIPLE:
        shrinkable = [axis for axis in range(len(patch)) if patch[axis] > PATCH_MULTIPLE]
        # The axis that shows most of its image, as stock planning does: the patch keeps the image's shape.
        widest = max(shrinkable, key=lambda axis: (patch[axis] / shape[axis], patch[axis]))
        patch[widest] -= PATCH_MULTIPLE
    return patch


def choose_batch(
    size: NetworkSize, patch_size: Sequence[int], budget_bytes: int, device: Device, largest_share: int
) -> int:
    """Images per step: what fits, no more than `largest_share`, at least 2; on a CPU few.

    Args:
        size: The network.
        patch_size: Height and width in pixels.
        budget_bytes: Memory for the training step.
        device: "cuda" or "cpu".
        largest_share: Images that show 5 % of the data.
    """
    batch = min(largest_batch(size, patch_size, budget_bytes, device), largest_share)
    if device == "cpu":
        batch = min(batch, _CPU_PIXELS // math.prod(patch_size))
    return max(batch, MIN_BATCH)
