"""PVT-GDLA: PVTv2 encoder, GDLA decoder, full-resolution stem."""

import math
from collections.abc import Sequence
from typing import Any, cast

from torch import Tensor, nn

from nnunet_gdla.layers.blocks import FeedForward
from nnunet_gdla.layers.gdla import Gate, LocalMixing
from nnunet_gdla.layers.untouched import is_untouched
from nnunet_gdla.networks.arguments import check_flags, check_heads, check_numbers, check_strides
from nnunet_gdla.networks.decoder import Decoder, DecoderKind, build_block, output_size
from nnunet_gdla.networks.encoder import ENCODER_STRIDES, build_encoder, pad_to_multiple
from nnunet_gdla.networks.stem import ResidualStem

__all__ = ["OUTPUT_STRIDES", "PLAN_STRIDES", "PVTGDLA"]

OUTPUT_STRIDES = (1, 8, 16, 32)
# nnU-Net's form of the above: the running product, less its last entry, gives the strides of the outputs.
PLAN_STRIDES = [[1, 1], [8, 8], [2, 2], [2, 2], [2, 2]]


class PVTGDLA(nn.Module):
    """PVTv2 encoder with a decoder of gated differential linear attention, for 2D images of any size.

    Args:
        input_channels: Image channels, at least 1.
        num_classes: Output channels, at least 1.
        encoder: "pvt_v2_b0" to "pvt_v2_b5".
        decoder: "gdla", or the paper's comparators "linear", "self" (softmax) and "diff" (softmax differential).
        gate: "silu" (paper), "sigmoid" (released checkpoints) or None.
        ffn: "mix", "swiglu" or "mlp"; None: mix for gdla, swiglu for diff, mlp for self and linear.
        num_heads: Heads at strides 4, 8, 16; None: channels / 32.
        differential: GDLA's second branch.
        local_mixing: GDLA's local branch: "joint", "separate" or None.
        pre_conv: 3x3 convolution before the GDLA mixer.
        rope: Rotary positions of the comparators; None: on for diff and self, off for linear.
        qkv_bias: Bias of the attention's first projection.
        mlp_ratio: Hidden width of the feed-forward layers over their channels, at least 1/16.
        upsample_kernel: Edge of the transposed convolutions, 3 or 5 in the paper.
        local_kernel: Edge of the local branch's depthwise convolution, 3 or 5 in the paper.
        drop_path_rate: Stochastic depth of the encoder.
        deep_supervision: Return auxiliary outputs; `network.decoder.deep_supervision` switches it later.
        strides: nnU-Net's stock trainer reads them from the plans to scale its targets; ours or None.

    Raises:
        ValueError: If a choice is unknown (the message lists the known ones), or a number or size does not fit.

    Numerics: the encoder sees the image zero-padded at the bottom and right to multiples of 32, outputs are cropped;
    the stem runs at the true size.
    Reference: GDLA paper, section 3 (arXiv:2603.02727); released code where it says more, see the layers.
    """

    def __init__(
        self,
        input_channels: int,
        num_classes: int,
        *,
        encoder: str = "pvt_v2_b2",
        decoder: DecoderKind = "gdla",
        gate: Gate = "silu",
        ffn: FeedForward | None = None,
        num_heads: Sequence[int] | None = None,
        differential: bool = True,
        local_mixing: LocalMixing = "joint",
        pre_conv: bool = True,
        rope: bool | None = None,
        qkv_bias: bool = True,
        mlp_ratio: float = 4.0,
        upsample_kernel: int = 3,
        local_kernel: int = 3,
        drop_path_rate: float = 0.1,
        deep_supervision: bool = False,
        strides: Sequence[Sequence[int]] | None = None,
    ) -> None:
        super().__init__()
        check_strides(strides, PLAN_STRIDES)
        check_numbers(
            input_channels=input_channels,
            num_classes=num_classes,
            mlp_ratio=mlp_ratio,
            upsample_kernel=upsample_kernel,
            local_kernel=local_kernel,
            drop_path_rate=drop_path_rate,
        )
        flags = {"differential": differential, "pre_conv": pre_conv, "qkv_bias": qkv_bias}
        check_flags(flags | {"deep_supervision": deep_supervision, "rope": False if rope is None else rope})
        self.encoder, channels = build_encoder(encoder, input_channels, drop_path_rate)
        self.input_channels, self.encoder_name, self.encoder_channels = input_channels, encoder, channels
        heads = check_heads(num_heads, channels)
        blocks = [
            build_block(
                decoder,
                channels[level],
                heads[level],
                depth=level + 1,
                ffn=ffn,
                rope=rope,
                gate=gate,
                differential=differential,
                local_mixing=local_mixing,
                local_kernel=local_kernel,
                pre_conv=pre_conv,
                qkv_bias=qkv_bias,
                mlp_ratio=mlp_ratio,
            )
            for level in (2, 1, 0)
        ]
        self.stem = ResidualStem(input_channels, channels[0])
        self.decoder = Decoder(
            channels, blocks, num_classes, upsample_kernel=upsample_kernel, deep_supervision=deep_supervision
        )

    def forward(self, x: Tensor) -> Tensor | list[Tensor]:
        """(B, input_channels, H, W), any H, W >= 1 -> logits (B, num_classes, H, W).

        With deep supervision a list of logits, largest first, at 1, 1/8, 1/16 and 1/32 of the size, rounded as nnU-Net
        rounds its targets.

        Raises:
            ValueError: If `x` is not (B, input_channels, H, W), has an axis of length 0 or is not floating point.
        """
        if x.ndim != 4 or x.shape[1] != self.input_channels or x.numel() == 0 or not x.is_floating_point():
            raise ValueError(
                f"expected an image batch (B, channels, H, W) in floating point, with {self.input_channels} channels "
                f"and B, H and W of at least 1, got {tuple(x.shape)} {x.dtype}"
            )
        features = self.encoder(pad_to_multiple(x, ENCODER_STRIDES[-1]))
        # What is wrapped shows none of its parts.
        head = self.decoder.seg_layers[0] if isinstance(self.decoder, Decoder) else None
        if head is None or not is_untouched(head) or not isinstance(self.stem, ResidualStem):
            stem = self.stem(x)
            return self.decoder(features, stem, stem)
        return self.decoder(features, self.stem.project(x, cast(nn.Conv2d, head)))

    @staticmethod
    def output_sizes(patch_size: Sequence[int]) -> list[tuple[int, ...]]:
        """Sizes of the deep-supervision outputs for an input of that size, largest first."""
        return [tuple(output_size(edge, stride) for edge in patch_size) for stride in OUTPUT_STRIDES]

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute the encoder's blocks in the backward pass: less memory, about a third more time."""
        cast(Any, self.encoder).set_grad_checkpointing(enable)

    def compute_conv_feature_map_size(self, patch_size: Sequence[int]) -> int:
        """Number of feature-map elements of one image, the figure by which nnU-Net's planner sizes its batch."""
        height, width = (math.ceil(edge / 32) * 32 for edge in patch_size)
        pixels = height * width
        channels = self.encoder_channels
        elements = pixels * (2 * self.input_channels + 3 * channels[0] + 2 * self.decoder.num_classes)
        for stage, (dim, stride) in enumerate(zip(channels, ENCODER_STRIDES, strict=True)):
            blocks = getattr(self.encoder, f"stages_{stage}").blocks
            hidden = blocks[0].mlp.fc1.out_features
            elements += pixels // stride**2 * len(blocks) * (7 * dim + 3 * hidden)
        for block, stride in zip(self.decoder.blocks, (16, 8, 4), strict=True):
            weights = sum(p.shape[0] for p in block.parameters() if p.ndim > 1)
            elements += pixels // stride**2 * weights * 2
        return elements
