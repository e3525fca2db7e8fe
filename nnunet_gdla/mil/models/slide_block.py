"""A transformer block of slide models, lean in memory.

Shape legend (this file): B batch, L tokens, C channels, E hidden channels.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from nnunet_gdla.layers.untouched import has_hooks, is_untouched
from nnunet_gdla.mil.models.combinations import Combination, acts_in_block
from nnunet_gdla.mil.models.slide_attention import SlideAttention
from nnunet_gdla.mil.models.slide_diff import DifferentialNystromAttention
from nnunet_gdla.mil.models.slide_gdla import GDLASlideAttention
from nnunet_gdla.mil.models.tokens import ROWS_AT_ONCE, SlideContext
from nnunet_gdla.ops._fusion import may_fuse
from nnunet_gdla.ops.token_mlp import MlpWeights, NormWeights, token_mlp

__all__ = ["BlockAttention", "LeanMlp", "SampleDropPath", "SlideBlock"]


@dataclasses.dataclass(frozen=True)
class BlockAttention:
    """Builds the attention of each block from one set of choices."""

    choice: Combination
    correction: str
    dim: int
    num_heads: int
    nystrom: Mapping[str, Any]
    gate: Mapping[str, Any]
    local_mixing: Literal["lattice"] | None

    def build(self, block: int, depth: int) -> "SlideAttention | DifferentialNystromAttention | GDLASlideAttention":
        """Build the layer of one block; where the correction could not reach the class row it is left out."""
        acts = acts_in_block(self.choice, block, depth)
        correction = self.correction if acts else "none"
        if self.choice.attention == "diff":
            return DifferentialNystromAttention(self.dim, self.num_heads, block=block, **self.nystrom)
        if self.choice.attention == "gdla":
            return GDLASlideAttention(
                self.dim,
                self.num_heads,
                correction=correction,
                gate_options=self.gate,
                local_mixing=self.local_mixing,
            )
        return SlideAttention(
            self.dim,
            self.num_heads,
            attention=self.choice.attention,
            correction=correction,
            placement=self.choice.placement if acts else "post",
            gate_options=self.gate,
            **self.nystrom,
        )


class SlideBlock(nn.Module):
    r"""$t = x + \mathrm{attention}(\mathrm{LN}\,x)$, then $t + \mathrm{MLP}(\mathrm{LN}\,t)$, both under drop path.

    Args:
        dim: Channels C.
        attention: Layer from tokens and context to tokens.
        mlp_ratio: Hidden width of the MLP over `dim`.
        drop_path_rate: Share of samples whose attention branch, and separately MLP branch, is left out in training.

    Parameters: `norm1`, `attention`, `norm2`, `mlp`.
    """

    def __init__(
        self,
        dim: int,
        attention: SlideAttention | DifferentialNystromAttention | GDLASlideAttention,
        *,
        mlp_ratio: float = 4.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attention = attention
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = LeanMlp(dim, round(mlp_ratio * dim))
        self.drop_path = SampleDropPath(drop_path_rate)

    def forward(
        self, x: Float[Tensor, "B L C"], context: SlideContext, *, class_only: bool = False
    ) -> Float[Tensor, "B rows C"]:
        """Refine tokens.

        Args:
            x: Class token, patches, copies.
            context: What the attention needs to know of the slide.
            class_only: Return the class row alone and compute nothing else that does not reach it.
        """
        mixed = self.attention(self.norm1(x), context, class_only=class_only)
        x = (x[:, :1] if class_only else x) + self.drop_path(mixed)
        return x + self.drop_path(self.mlp(x, self.norm2))


class LeanMlp(nn.Module):
    r"""$W_2\,\mathrm{GELU}(W_1\,\mathrm{norm}(x))$, exact GELU.

    Parameters: `fc1` (C -> E), `fc2` (E -> C).
    Cost: of its own, backward keeps the value before GELU only, and computes the norm and GELU anew. Long sequences
    pass in pieces of rows, so that nothing else of width E has all rows.
    """

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, dim)

    def forward(self, x: Float[Tensor, "B L C"], norm: nn.Module) -> Float[Tensor, "B L C"]:
        """Map every token by itself, after `norm`."""
        if _in_chunks(x, self.fc1, self.fc2, norm):
            assert isinstance(norm, nn.LayerNorm)
            weights = MlpWeights(self.fc1.weight, self.fc1.bias, self.fc2.weight, self.fc2.bias)
            return token_mlp(x, weights, NormWeights(norm.weight, norm.bias, norm.eps))
        if torch.compiler.is_compiling() or x.shape[1] <= ROWS_AT_ONCE:
            return self._map(x, norm)
        return torch.cat([self._map(part, norm) for part in x.split(ROWS_AT_ONCE, dim=1)], dim=1)

    def _map(self, x: Tensor, norm: nn.Module) -> Tensor:
        return _keep_input_only(self._back, _keep_input_only(self._front, x, norm))

    def _front(self, x: Tensor, norm: nn.Module) -> Tensor:
        return self.fc1(norm(x))

    def _back(self, hidden: Tensor) -> Tensor:
        return self.fc2(F.gelu(hidden))


def _in_chunks(x: Tensor, first: nn.Module, second: nn.Module, norm: nn.Module) -> bool:
    """Whether one function can take the place of three modules: plain ones in one dtype on the CPU."""
    if torch.compiler.is_exporting() or not is_untouched(first, second):
        return False
    if type(norm) is not nn.LayerNorm or has_hooks(norm) or not norm.elementwise_affine:
        return False
    return may_fuse(x, *(weight for part in (first, second, norm) for weight in part.parameters()))


def _keep_input_only(function: Callable[..., Tensor], *inputs: Any) -> Tensor:  # noqa: ANN401 - as the function's
    """Call a function without random numbers so that backward starts from its inputs again."""
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return function(*inputs)
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)


class SampleDropPath(nn.Module):
    """Leave a whole branch out for single samples in training, and scale the others to keep the mean.

    The draw comes from the CPU's generator on every device, so that a seed means the same everywhere.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"a drop path rate must be at least 0 and below 1, got {rate}")
        self.rate = rate

    def forward(self, branch: Float[Tensor, "B L C"]) -> Float[Tensor, "B L C"]:
        """Scale each sample of the branch by 0 or 1 / (1 - rate)."""
        if not self.training or self.rate == 0:
            return branch
        keep = (torch.rand(branch.shape[0], device="cpu") >= self.rate).to(branch.device, branch.dtype)
        return branch * (keep / (1 - self.rate))[:, None, None]

    def extra_repr(self) -> str:
        """Show the rate."""
        return f"rate={self.rate:g}"
