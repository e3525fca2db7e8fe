"""The whole PVT-GDLA in the order of operations of the released code, filled with the weights of one of ours."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.released_layers import Gate, ReleasedBlock, ReleasedStem, boundary_dou
from nnunet_gdla.networks import PVTGDLA

__all__ = ["Features", "ReleasedDecoder", "ReleasedPVTGDLA", "released_losses", "weights_for_released"]

_STEM = "encoder.patch_embed.proj.weight"
Features = Sequence[Tensor]


class _Heads(NamedTuple):
    """What the heads read: the coarsest map and the three decoder maps, coarse to fine."""

    deepest: Tensor
    coarse: Tensor
    middle: Tensor
    fine: Tensor


class ReleasedDecoder(nn.Module):
    """Three stages, the image's own features added at full resolution, and the heads."""

    def __init__(self, channels: Sequence[int], num_heads: Sequence[int], num_classes: int, gate: Gate) -> None:
        super().__init__()
        fine, middle, coarse, deepest = channels
        self.upsamples = nn.ModuleList(
            nn.ConvTranspose2d(source, target, 3, stride=2, padding=1, output_padding=1, bias=False)
            for source, target in ((deepest, coarse), (coarse, middle), (middle, fine))
        )
        self.blocks = nn.ModuleList(ReleasedBlock(channels[level], num_heads[level], gate) for level in (2, 1, 0))
        self.seg_layers = nn.ModuleList(nn.Conv2d(c, num_classes, 1) for c in (fine, middle, coarse, deepest))

    def stages(self, features: Features) -> _Heads:
        """Run the three stages."""
        maps = [features[-1]]
        for upsample, block, skip in zip(self.upsamples, self.blocks, reversed(features[:-1]), strict=True):
            maps.append(block(upsample(maps[-1]) + skip))
        return _Heads(*maps)

    def prediction(self, finest: Tensor, stem: Tensor) -> Tensor:
        """Logits at full size: all channels are upsampled first."""
        return self.seg_layers[0](_upsampled(finest, 4) + stem)

    def auxiliary(self, maps: _Heads) -> list[Tensor]:
        """Logits of the three coarser maps at full size, fine to coarse."""
        heads = zip(self.seg_layers[1:], (maps.middle, maps.coarse, maps.deepest), (8, 16, 32), strict=True)
        return [_upsampled(head(feature), stride) for head, feature, stride in heads]


def _upsampled(x: Tensor, factor: int) -> Tensor:
    return F.interpolate(x, scale_factor=factor, mode="bilinear", align_corners=False)


class ReleasedPVTGDLA(nn.Module):
    """PVTv2 as timm has it, the decoder in the released order; for sizes that are multiples of 32.

    Args:
        ours: The network whose weights are copied; its encoder, gate and heads are taken over, and it must have the
            decoder "gdla" with everything else at its default.

    A one-channel image is repeated three times for an encoder of three channels, each with a third of our filters.
    """

    def __init__(self, ours: PVTGDLA) -> None:
        super().__init__()
        mixers: list[Any] = [block.attention for block in ours.decoder.blocks]
        self.input_channels = ours.input_channels
        self.encoder: Any = timm.create_model(
            ours.encoder_name, pretrained=False, features_only=True, in_chans=self.encoder_input_channels
        )
        self.stem = ReleasedStem(ours.input_channels, ours.encoder_channels[0])
        heads = [mixer.num_heads for mixer in reversed(mixers)]
        self.decoder = ReleasedDecoder(ours.encoder_channels, heads, ours.decoder.num_classes, mixers[0].gate)
        self.to(ours.stem.conv1.weight.dtype)  # before a third is taken of anything
        self.load_state_dict(weights_for_released(ours.state_dict(), self.state_dict()))
        self.train(ours.training)

    @property
    def encoder_input_channels(self) -> int:
        """Channels that the encoder sees."""
        return 3 if self.input_channels == 1 else self.input_channels

    def encode(self, x: Tensor) -> list[Tensor]:
        """The four feature maps of an image batch."""
        return self.encoder(x.repeat(1, 3, 1, 1) if self.input_channels == 1 else x)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of an image batch."""
        return self.decoder.prediction(self.decoder.stages(self.encode(x)).fine, self.stem(x))

    def supervised(self, x: Tensor) -> list[Tensor]:
        """All four logits at full size, the prediction first."""
        maps = self.decoder.stages(self.encode(x))
        return [self.decoder.prediction(maps.fine, self.stem(x)), *self.decoder.auxiliary(maps)]


def released_losses(outputs: Sequence[Tensor], labels: Tensor) -> Tensor:
    """Sum of the losses of all outputs against (B, H, W) labels."""
    return torch.stack([boundary_dou(logits, labels) for logits in outputs]).sum()


def weights_for_released(ours: dict[str, Tensor], released: dict[str, Tensor]) -> dict[str, Tensor]:
    """Give our tensors the shapes of the released network's."""
    shaped = {}
    for name, tensor in ours.items():
        if name == _STEM and tensor.shape != released[name].shape:
            shaped[name] = (tensor / 3).repeat(1, 3, 1, 1)
        else:
            shaped[name] = tensor.reshape(released[name].shape)
    return shaped
