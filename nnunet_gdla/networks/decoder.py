"""The decoder: three upsampling stages with an attention block each, and the segmentation heads."""

from collections.abc import Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nnunet_gdla.layers import AttentionBlock, DifferentialAttention, GDLABlock, LinearAttention, SoftmaxAttention
from nnunet_gdla.layers.blocks import FeedForward
from nnunet_gdla.layers.gdla import Gate, LocalMixing

__all__ = ["DECODERS", "Decoder", "DecoderKind", "ResidualStem", "build_block", "output_size"]

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


class _StemNorm(nn.BatchNorm2d):
    """Batch normalisation that uses its running statistics where a batch has one value per channel."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.shape[0] * x.shape[2] * x.shape[3] == 1:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
        return super().forward(x)


class ResidualStem(nn.Module):
    r"""Two 3x3 convolutions with batch normalisation and a 1x1 shortcut.

    $$\mathrm{ReLU}(\mathrm{BN}(\mathrm{conv}_3(\mathrm{ReLU}(\mathrm{BN}(\mathrm{conv}_3 x)))) +
      \mathrm{BN}(\mathrm{conv}_1 x)).$$

    Full-resolution features of the image itself: (B, in, H, W) -> (B, out, H, W), any H and W.

    Parameters: `conv1` (in -> in), `conv2` (in -> out), `conv3` (1x1, in -> out), `norm1`, `norm2`, `norm3`; no biases
    in the convolutions. In the released code; not in the paper's text.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, in_channels, 3, padding=1, bias=False)
        self.norm1 = _StemNorm(in_channels)
        self.conv2 = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = _StemNorm(out_channels)
        self.conv3 = nn.Conv2d(in_channels, out_channels, 1, bias=False)
        self.norm3 = _StemNorm(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) -> (B, out, H, W)."""
        hidden = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(hidden + self.norm3(self.conv3(x)))


class Decoder(nn.Module):
    """Feature maps and stem features to logits.

    Args:
        channels: Channels of the encoder's maps at strides 4, 8, 16, 32.
        blocks: Blocks at strides 16, 8, 4.
        num_classes: Output channels.
        upsample_kernel: Odd edge of the transposed convolutions.
        deep_supervision: Return the auxiliary outputs too; may be switched later. Off at construction freezes their
            heads, since a parameter without gradient stops a distributed training.

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
        self.deep_supervision = deep_supervision
        self.seg_layers[1:].requires_grad_(deep_supervision)

    def forward(self, features: Sequence[Tensor], stem: Tensor) -> Tensor | list[Tensor]:
        """Logits at the size of `stem` (B, C, H, W); with deep supervision a list at 1, 1/8, 1/16, 1/32."""
        maps = [features[-1]]
        for upsample, block, skip in zip(self.upsamples, self.blocks, reversed(features[:-1]), strict=True):
            maps.append(block(upsample(maps[-1]) + skip))
        height, width = stem.shape[-2:]
        full = self._full_resolution(maps[-1], stem)
        if not self.deep_supervision:
            return full
        outputs = [full]
        for head, stride, feature in zip(self.seg_layers[1:], (8, 16, 32), reversed(maps[:-1]), strict=True):
            outputs.append(head(feature)[..., : output_size(height, stride), : output_size(width, stride)])
        return outputs

    def _full_resolution(self, finest: Tensor, stem: Tensor) -> Tensor:
        """head(upsample(finest) + stem), with the head moved before the upsampling, with which it commutes."""
        head = cast(nn.Conv2d, self.seg_layers[0])
        height, width = stem.shape[-2:]
        coarse = F.conv2d(finest, head.weight)
        fine = F.interpolate(
            coarse, size=(4 * coarse.shape[-2], 4 * coarse.shape[-1]), mode="bilinear", align_corners=False
        )
        return torch.add(fine[..., :height, :width], head(stem))
