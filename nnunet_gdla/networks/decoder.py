"""The decoder: three upsampling stages with an attention block each, and the segmentation heads."""

from collections.abc import Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nnunet_gdla.layers import AttentionBlock, DifferentialAttention, GDLABlock, LinearAttention, SoftmaxAttention
from nnunet_gdla.layers.blocks import FeedForward
from nnunet_gdla.layers.gdla import Gate, LocalMixing

__all__ = ["DECODERS", "Decoder", "DecoderKind", "build_block", "output_size"]

DecoderKind = Literal["gdla", "linear", "self", "diff"]
DECODERS = ("gdla", "linear", "self", "diff")
# As the released code has them: feed-forward layer and rotary positions of each decoder.
DEFAULT_FFN: dict[str, FeedForward] = {"gdla": "mix", "diff": "swiglu", "linear": "mlp", "self": "mlp"}
DEFAULT_ROPE = {"gdla": False, "diff": True, "linear": False, "self": True}


def output_size(size: int, stride: int) -> int:
    """Edge of an output at a stride: nnU-Net's own rule for its targets, Python's round, at least 1."""
    return max(1, round(size / stride))


def build_block(
    decoder: DecoderKind,
    dim: int,
    num_heads: int,
    *,
    depth: int,
    ffn: FeedForward | None,
    rope: bool | None,
    gate: Gate,
    differential: bool,
    local_mixing: LocalMixing,
    local_kernel: int,
    pre_conv: bool,
    qkv_bias: bool,
    mlp_ratio: float,
) -> nn.Module:
    """One decoder block (B, C, H, W) -> (B, C, H, W); what a decoder has no use for is not looked at.

    Raises:
        ValueError: If a name is unknown, or rotary positions are asked of the GDLA decoder.
    """
    if decoder not in DECODERS:
        raise ValueError(f"unknown decoder {decoder!r}; choose one of {', '.join(DECODERS)}")
    ffn = DEFAULT_FFN[decoder] if ffn is None else ffn
    rope = DEFAULT_ROPE[decoder] if rope is None else rope
    if decoder == "gdla":
        if rope:
            raise ValueError("rope=True goes with decoder 'self', 'diff' or 'linear'; 'gdla' has no positions")
        return GDLABlock(
            dim,
            num_heads,
            gate=gate,
            differential=differential,
            local_mixing=local_mixing,
            local_kernel=local_kernel,
            qkv_bias=qkv_bias,
            pre_conv=pre_conv,
            ffn=ffn,
            mlp_ratio=mlp_ratio,
        )
    attention: nn.Module
    if decoder == "diff":
        attention = DifferentialAttention(dim, num_heads, depth=depth, qkv_bias=qkv_bias, rope=rope)
    elif decoder == "self":
        attention = SoftmaxAttention(dim, num_heads, qkv_bias=qkv_bias, rope=rope)
    else:
        attention = LinearAttention(dim, num_heads, qkv_bias=qkv_bias, rope=rope)
    return AttentionBlock(dim, attention, ffn=ffn, mlp_ratio=mlp_ratio)


class Decoder(nn.Module):
    """Feature maps, and what the stem adds to the logits, to logits.

    Args:
        channels: Channels of the encoder's maps at strides 4, 8, 16, 32.
        blocks: Blocks at strides 16, 8, 4.
        num_classes: Output channels.
        upsample_kernel: Odd edge of the transposed convolutions.
        deep_supervision: Return the auxiliary outputs too; may be switched later. Off at construction freezes their
            heads until it is switched on, since a parameter without gradient stops a distributed training.

    Parameters: `upsamples` (stride 2, no bias), `blocks`, `seg_layers`: 1x1 heads at strides 1, 8, 16, 32. nnU-Net
    leaves keys with `.seg_layers.` out when it takes over weights from a model with other classes.
    """

    def __init__(
        self,
        channels: Sequence[int],
        blocks: Sequence[nn.Module],
        num_classes: int,
        *,
        upsample_kernel: int,
        deep_supervision: bool,
    ) -> None:
        super().__init__()
        if upsample_kernel < 3 or upsample_kernel % 2 == 0:
            raise ValueError(f"upsample_kernel must be odd and at least 3, got {upsample_kernel}")
        fine, middle, coarse, deepest = channels
        steps = ((deepest, coarse), (coarse, middle), (middle, fine))
        self.upsamples = nn.ModuleList(
            nn.ConvTranspose2d(
                source, target, upsample_kernel, stride=2, padding=upsample_kernel // 2, output_padding=1, bias=False
            )
            for source, target in steps
        )
        self.blocks = nn.ModuleList(blocks)
        self.num_classes = num_classes
        self.seg_layers = nn.ModuleList(nn.Conv2d(c, num_classes, 1) for c in (fine, middle, coarse, deepest))
        self._deep_supervision, self._heads_rest = deep_supervision, not deep_supervision
        self.seg_layers[1:].requires_grad_(deep_supervision)

    @property
    def deep_supervision(self) -> bool:
        """Whether a list of logits is returned; nnU-Net switches it around validation."""
        return self._deep_supervision

    @deep_supervision.setter
    def deep_supervision(self, enabled: bool) -> None:
        self._deep_supervision = enabled
        if enabled and self._heads_rest:  # frozen since no gradient would reach them, which DDP does not bear
            self.seg_layers[1:].requires_grad_(True)
            self._heads_rest = False

    def forward(
        self, features: Sequence[Tensor], stem_logits: Tensor, stem: Tensor | None = None
    ) -> Tensor | list[Tensor]:
        """Logits at the size of `stem_logits` (B, K, H, W); with deep supervision a list at 1, 1/8, 1/16, 1/32.

        The full-resolution head sees upsampled features plus the stem's; being linear it has seen the stem's already.
        A head that somebody wrapped or replaced need not be linear: it gets the sum with `stem`, the stem's features.
        """
        maps = [features[-1]]
        for upsample, block, skip in zip(self.upsamples, self.blocks, reversed(features[:-1]), strict=True):
            maps.append(block(upsample(maps[-1]) + skip))
        height, width = stem_logits.shape[-2:]
        full = self._full_resolution(maps[-1], stem_logits) if stem is None else self._by_call(maps[-1], stem)
        if not self.deep_supervision:
            return full
        outputs = [full]
        for head, stride, feature in zip(self.seg_layers[1:], (8, 16, 32), reversed(maps[:-1]), strict=True):
            outputs.append(head(feature)[..., : output_size(height, stride), : output_size(width, stride)])
        return outputs

    def _by_call(self, finest: Tensor, stem: Tensor) -> Tensor:
        fine = F.interpolate(finest, scale_factor=4, mode="bilinear", align_corners=False)
        return cast(Tensor, self.seg_layers[0](fine[..., : stem.shape[2], : stem.shape[3]] + stem))

    def _full_resolution(self, finest: Tensor, stem_logits: Tensor) -> Tensor:
        """The logits with the head moved before the upsampling, with which it commutes."""
        head = cast(nn.Conv2d, self.seg_layers[0])
        height, width = stem_logits.shape[-2:]
        coarse = F.conv2d(finest, head.weight)
        fine = F.interpolate(
            coarse, size=(4 * coarse.shape[-2], 4 * coarse.shape[-1]), mode="bilinear", align_corners=False
        )
        return torch.add(fine[..., :height, :width], stem_logits)
