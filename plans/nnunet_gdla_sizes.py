"""Sizes of the networks as numbers, so that planning needs no network: channels, depths, parameters."""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from nnunet_gdla.networks.decoder import DECODERS
from nnunet_gdla.networks.encoder import ENCODER_STRIDES, ENCODERS

__all__ = ["MLP_RATIO_DECODER", "REDUCTIONS", "NetworkSize", "Stage", "count_parameters", "encoder_stages"]

REDUCTIONS = (8, 4, 2, 1)  # edge of the spatial reduction before the keys and values of each encoder stage
MLP_RATIO_DECODER = 4
_WIDE = (64, 128, 320, 512)
_CHANNELS = {"pvt_v2_b0": (32, 64, 160, 256)}
_DEPTHS = {
    "pvt_v2_b0": (2, 2, 2, 2),
    "pvt_v2_b1": (2, 2, 2, 2),
    "pvt_v2_b2": (3, 4, 6, 3),
    "pvt_v2_b3": (3, 4, 18, 3),
    "pvt_v2_b4": (3, 8, 27, 3),
    "pvt_v2_b5": (3, 6, 40, 3),
}
_MLP_RATIOS = {"pvt_v2_b5": (4, 4, 4, 4)}


@dataclass(frozen=True)
class NetworkSize:
    """What decides the size of a PVTGDLA with its default arguments.

    Args:
        encoder: "pvt_v2_b0" to "pvt_v2_b5".
        decoder: "gdla", "linear", "self" or "diff".
        input_channels: Image channels.
        num_classes: Output channels.

    Raises:
        ValueError: If a name is unknown or a number is below 1.
    """

    encoder: str
    decoder: str
    input_channels: int
    num_classes: int

    def __post_init__(self) -> None:
        for what, name, known in (("encoder", self.encoder, ENCODERS), ("decoder", self.decoder, DECODERS)):
            if name not in known:
                raise ValueError(f"unknown {what} {name!r}; choose one of {', '.join(known)}")
        if self.input_channels < 1 or self.num_classes < 1:
            raise ValueError(
                f"input_channels {self.input_channels} and num_classes {self.num_classes} must be at least 1"
            )


class Stage(NamedTuple):
    """One encoder stage.

    Args:
        dim: Channels of its map.
        depth: Blocks.
        heads: Attention heads.
        hidden: Channels within its feed-forward layers.
        reduction: Edge in tokens of the squares that a convolution makes one key and value of; 1 for none.
        stride: Pixels of the image per token, along each axis.
    """

    dim: int
    depth: int
    heads: int
    hidden: int
    reduction: int
    stride: int


def encoder_stages(encoder: str) -> list[Stage]:
    """The four stages of an encoder, finest first.

    Args:
        encoder: "pvt_v2_b0" to "pvt_v2_b5".
    """
    channels = _CHANNELS.get(encoder, _WIDE)
    ratios = _MLP_RATIOS.get(encoder, (8, 8, 4, 4))
    heads = (1, 2, 5, 8)
    return [
        Stage(dim, depth, head, dim * ratio, reduction, stride)
        for dim, depth, head, ratio, reduction, stride in zip(
            channels, _DEPTHS[encoder], heads, ratios, REDUCTIONS, ENCODER_STRIDES, strict=True
        )
    ]


def count_parameters(size: NetworkSize) -> int:
    """Number of parameters of the network, without building it."""
    stages = encoder_stages(size.encoder)
    channels = [stage.dim for stage in stages]
    sources = [size.input_channels, *channels[:-1]]
    count = 0
    for stage, source, kernel in zip(stages, sources, (7, 3, 3, 3), strict=True):
        embedding = kernel**2 * source * stage.dim + 3 * stage.dim
        count += embedding + stage.depth * _encoder_block(stage) + 2 * stage.dim
    finest, num_in = channels[0], size.input_channels
    count += 9 * num_in**2 + 2 * num_in + 10 * num_in * finest + 4 * finest  # stem
    count += sum(9 * deep * flat for flat, deep in pairwise(channels))  # upsampling
    count += sum(_decoder_block(size.decoder, dim) for dim in channels[:-1])
    return count + (sum(channels) + 4) * size.num_classes


def _encoder_block(stage: Stage) -> int:
    dim, hidden = stage.dim, stage.hidden
    attention = 4 * (dim**2 + dim)
    reduction = dim**2 * stage.reduction**2 + 3 * dim if stage.reduction > 1 else 0
    return attention + reduction + (2 * dim * hidden + 11 * hidden + dim) + 4 * dim


def _decoder_block(decoder: str, dim: int) -> int:
    hidden, head = MLP_RATIO_DECODER * dim, dim // (dim // 32)
    norms = 4 * dim
    if decoder == "gdla":
        first = 9 * dim**2 + dim + 4 * (dim**2 + dim)
        local = 10 * 4 * dim + 16 * dim**2 + 4 * dim
        return norms + first + local + 2 * dim + head + 2 * dim**2 + dim + 3 * dim * hidden + 22 * hidden
    attention = 3 * (dim**2 + dim) + dim**2
    if decoder == "diff":
        return norms + attention + 5 * head + 3 * dim * hidden + 2 * hidden + dim
    return norms + attention + dim + 2 * dim * hidden + hidden + dim
