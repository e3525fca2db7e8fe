"""Decoder blocks on images (B, C, H, W): token mixing and a feed-forward layer, each with a residual."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nnunet_gdla.layers.feed_forward import MixFFN, Mlp, SwiGLU
from nnunet_gdla.layers.gdla import Gate, GatedDifferentialLinearAttention, LocalMixing
from nnunet_gdla.layers.grid import to_grid, to_tokens

__all__ = ["FEED_FORWARDS", "AttentionBlock", "FeedForward", "GDLABlock", "build_feed_forward"]

FeedForward = Literal["mix", "swiglu", "mlp"]
FEED_FORWARDS: dict[str, type[MixFFN] | type[SwiGLU] | type[Mlp]] = {"mix": MixFFN, "swiglu": SwiGLU, "mlp": Mlp}


def build_feed_forward(name: str, dim: int, mlp_ratio: float) -> nn.Module:
    """A feed-forward layer by name, hidden width `mlp_ratio` times `dim`.

    Raises:
        ValueError: If the name is unknown.
    """
    if name not in FEED_FORWARDS:
        raise ValueError(f"unknown ffn {name!r}; choose one of {', '.join(FEED_FORWARDS)}")
    return FEED_FORWARDS[name](dim, round(dim * mlp_ratio))


class GDLABlock(nn.Module):
    r"""The decoder block of PVT-GDLA.

    $$t = x + \mathrm{GDLA}(\mathrm{SiLU}(\mathrm{conv}_3(\mathrm{LN}\,x))),\; y = t + \mathrm{FFN}(\mathrm{LN}\,t).$$

    Args:
        dim: Channels.
        num_heads: Heads of the mixer.
        gate: See `GatedDifferentialLinearAttention`; `differential`, `local_mixing`, `local_kernel`, `qkv_bias` too.
        differential: Difference of two maps, or one.
        local_mixing: Kind of local branch.
        local_kernel: Edge of the local branch's depthwise convolution.
        qkv_bias: Bias of the mixer's first projection.
        pre_conv: The full 3x3 convolution with SiLU before the mixer (released code; not in the paper's text).
        ffn: "mix", "swiglu" or "mlp".
        mlp_ratio: Hidden width of the feed-forward layer over `dim`.

    Parameters: `norm1`, `pre_conv`, `attention`, `norm2`, `ffn`; PyTorch's default initialisation unless stated there.
    Reference: GDLA paper, section 3.2 and Fig. 2 (arXiv:2603.02727).
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        gate: Gate = "silu",
        differential: bool = True,
        local_mixing: LocalMixing = "joint",
        local_kernel: int = 3,
        qkv_bias: bool = True,
        pre_conv: bool = True,
        ffn: FeedForward = "mix",
        mlp_ratio: float = 4.0,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.pre_conv = nn.Conv2d(dim, dim, 3, padding=1) if pre_conv else None
        self.attention = GatedDifferentialLinearAttention(
            dim,
            num_heads,
            qkv_bias=qkv_bias,
            differential=differential,
            gate=gate,
            local_mixing=local_mixing,
            local_kernel=local_kernel,
        )
        self.norm2 = nn.LayerNorm(dim)
        self.ffn = build_feed_forward(ffn, dim, mlp_ratio)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        """Refine a feature map of any size."""
        grid = (x.shape[2], x.shape[3])
        tokens = to_tokens(x)
        mixed = self.norm1(tokens)
        if self.pre_conv is not None:
            mixed = to_tokens(F.silu(self.pre_conv(to_grid(mixed, grid))))
        tokens = tokens + self.attention(mixed, grid)
        tokens = tokens + self.ffn(self.norm2(tokens), grid)
        return to_grid(tokens, grid)


class AttentionBlock(nn.Module):
    r"""$t = x + \mathrm{attention}(\mathrm{LN}(x))$, then $t + \mathrm{FFN}(\mathrm{LN}(t))$: the comparators' block.

    Args:
        dim: Channels.
        attention: A layer from tokens (B, N, C) to tokens.
        ffn: "mix", "swiglu" or "mlp".
        mlp_ratio: Hidden width of the feed-forward layer over `dim`.

    Parameters: `norm1`, `attention`, `norm2`, `ffn`.
    """

    def __init__(self, dim: int, attention: nn.Module, *, ffn: FeedForward = "mlp", mlp_ratio: float = 4.0) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = attention
        self.norm2 = nn.LayerNorm(dim)
        self.ffn = build_feed_forward(ffn, dim, mlp_ratio)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        """Refine a feature map of any size."""
        grid = (x.shape[2], x.shape[3])
        tokens = to_tokens(x)
        tokens = tokens + self.attention(self.norm1(tokens))
        tokens = tokens + self.ffn(self.norm2(tokens), grid)
        return to_grid(tokens, grid)
