"""Our forward passes for timm's PVTv2: timm's modules, parameters, names and results."""

from collections.abc import Sequence
from typing import Any, cast

from timm.models._manipulate import checkpoint
from timm.models.pvt_v2 import Attention, MlpWithDepthwiseConv, PyramidVisionTransformerStage
from torch import Tensor, nn
from torch.nn import functional as F

from nnunet_gdla.layers.untouched import has_hooks, is_untouched
from nnunet_gdla.ops._fusion import may_fuse
from nnunet_gdla.ops.conv_feed_forward import FeedForwardWeights, conv_feed_forward
from nnunet_gdla.ops.projection import projection

__all__ = ["use_our_forward"]


def use_our_forward(encoder: nn.Module) -> None:
    """Let the modules of a timm PVTv2 run the forward passes below.

    Only their classes change. Where fused forms are switched off or do not apply, timm's own forward runs.
    """
    ours = {Attention: _Attention, MlpWithDepthwiseConv: _Mlp, PyramidVisionTransformerStage: _Stage}
    for module in encoder.modules():
        if type(module) in ours:
            module.__class__ = ours[type(module)]


def _acts(dropout: nn.Module) -> bool:
    """Whether a dropout has to be called: it drops, by its own mode, or somebody looks on or has replaced it."""
    if has_hooks(dropout) or type(dropout) not in (nn.Dropout, nn.Identity):
        return True
    return isinstance(dropout, nn.Dropout) and dropout.training and dropout.p > 0


class _Attention(Attention):
    """Attention of all tokens to those of a coarser image, products by the library that is named."""

    def forward(self, x: Tensor, feat_size: Sequence[int]) -> Tensor:
        """Mix tokens (B, N, C) of an image of that height and width."""
        plain = (self.training and self.attn_drop.p > 0) or _acts(self.proj_drop)
        plain = plain or self.pool is not None or not self.fused_attn
        plain = plain or not is_untouched(self.q, self.kv, self.proj)
        if plain or not may_fuse(x, *self.parameters()):
            return cast(Tensor, super().forward(x, list(feat_size)))
        q = projection(x, self.q.weight, self.q.bias).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        if self.sr is not None:
            x = self.norm(self.sr(x.unflatten(1, tuple(feat_size)).permute(0, 3, 1, 2)).flatten(2).transpose(1, 2))
        kv = projection(x, self.kv.weight, self.kv.bias).unflatten(-1, (2, self.num_heads, -1))
        k, v = kv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return projection(mixed, self.proj.weight, self.proj.bias)


class _Mlp(MlpWithDepthwiseConv):
    """The feed-forward part, which keeps one hidden tensor instead of three."""

    def forward(self, x: Tensor, feat_size: Sequence[int]) -> Tensor:
        """Map tokens (B, N, C) of an image of that height and width."""
        plain = type(self.act) is not nn.GELU or self.act.approximate != "none"
        plain = plain or type(self.relu) is not nn.Identity or has_hooks(self.relu) or _acts(self.drop)
        plain = plain or has_hooks(self.act) or not is_untouched(self.fc1, self.dwconv, self.fc2)
        if plain or not may_fuse(x, *self.parameters()):
            return cast(Tensor, super().forward(x, list(feat_size)))
        fc1, dwconv, fc2 = self.fc1, self.dwconv, self.fc2
        weights = FeedForwardWeights(fc1.weight, fc1.bias, dwconv.weight, dwconv.bias, fc2.weight, fc2.bias)
        return conv_feed_forward(x, (feat_size[0], feat_size[1]), weights, middle="gelu")


class _Stage(PyramidVisionTransformerStage):
    """A stage that hands its tokens on as an image without copying them."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W), or (B, H, W, C) for the first stage, to (B, C', H', W')."""
        if not may_fuse(x, *self.norm.parameters()):
            timms: Any = super()
            return cast(Tensor, timms.forward(x))
        if self.downsample is not None:
            x = self.downsample(x)
        grid = (x.shape[1], x.shape[2])
        tokens = x.flatten(1, 2)
        for block in self.blocks:
            tokens = checkpoint(block, tokens, grid) if self.grad_checkpointing else block(tokens, grid)
        return self.norm(tokens).unflatten(1, grid).permute(0, 3, 1, 2)
