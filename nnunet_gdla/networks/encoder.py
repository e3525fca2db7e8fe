"""The PVTv2 encoder: timm's modules, parameters and names."""

from typing import Any

import timm
from torch import Tensor, nn
from torch.nn import functional as F

from nnunet_gdla.networks.encoder_blocks import use_our_forward

__all__ = ["ENCODERS", "ENCODER_STRIDES", "build_encoder", "pad_to_multiple"]

ENCODERS = ("pvt_v2_b0", "pvt_v2_b1", "pvt_v2_b2", "pvt_v2_b3", "pvt_v2_b4", "pvt_v2_b5")
ENCODER_STRIDES = (4, 8, 16, 32)


def build_encoder(name: str, input_channels: int, drop_path_rate: float) -> tuple[nn.Module, list[int]]:
    """Make a PVTv2 with random weights that returns its four feature maps.

    Args:
        name: One of `ENCODERS`.
        input_channels: Channels of the image.
        drop_path_rate: Stochastic depth of the last block; earlier ones grow linearly from 0.

    Returns:
        The module (B, C, H, W) -> four maps at strides 4, 8, 16, 32 (H and W multiples of 32), and their channels.

    Raises:
        ValueError: If the name is unknown or there is no input channel.
    """
    if name not in ENCODERS:
        raise ValueError(f"unknown encoder {name!r}; choose one of {', '.join(ENCODERS)}")
    if input_channels < 1:
        raise ValueError(f"input_channels must be at least 1, got {input_channels}")
    encoder: Any = timm.create_model(
        name, pretrained=False, features_only=True, in_chans=input_channels, drop_path_rate=drop_path_rate
    )
    use_our_forward(encoder)
    # timm starts with biases of 0: a blank image would then be 0 in every layer, and each normalisation of zeros makes
    # the gradient up to a thousand times larger until it overflows.
    bound = encoder.patch_embed.proj.weight[0].numel() ** -0.5
    nn.init.uniform_(encoder.patch_embed.proj.bias, -bound, bound)
    return encoder, list(encoder.feature_info.channels())


def pad_to_multiple(x: Tensor, multiple: int) -> Tensor:
    """Zero-pad (B, C, H, W) at the bottom and right so that H and W become multiples."""
    height, width = x.shape[-2:]
    # PVTv2's spatial reductions drop border columns, or fail, on sizes that they do not divide.
    return F.pad(x, (0, _round_up(width, multiple) - width, 0, _round_up(height, multiple) - height))


def _round_up(size: int, multiple: int) -> int:
    # Not with %, which torch.compile cannot do on a size that it has made symbolic.
    return (size + multiple - 1) // multiple * multiple
