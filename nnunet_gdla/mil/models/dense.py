"""What the two dense transformers share: blocks of exact softmax attention and how their weights start.

Shape legend (this file): B batch, L tokens, C channels.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nnunet_gdla.layers.redundancy import GatedSRP
from nnunet_gdla.mil.models.combinations import acts_in_block, read_combination
from nnunet_gdla.mil.models.slide_attention import SlideAttention
from nnunet_gdla.mil.models.slide_block import SlideBlock
from nnunet_gdla.mil.models.tokens import SlideContext

__all__ = ["DenseBlocks", "start_weights"]

INIT_STD = 0.02


class DenseBlocks(nn.ModuleList):
    """Transformer blocks of which only the class token's last state is read.

    Args:
        dim: Channels C.
        depth: Number of blocks.
        num_heads: Heads.
        correction: "srp", "xsa", "none", "fixed:<beta>" or "fixed:learned"; it is built in the blocks that can reach
            the class token, all but the last (xsa: all).
        gate_options: Keyword arguments of `GatedSRP`.
        mlp_ratio: Hidden width of the MLPs over `dim`.
        drop_path_rate: Of the last block; the others rise to it linearly from 0.
    """

    def __init__(
        self,
        dim: int,
        depth: int,
        num_heads: int,
        *,
        correction: str,
        gate_options: Mapping[str, Any],
        mlp_ratio: float,
        drop_path_rate: float,
    ) -> None:
        super().__init__()
        if depth < 1:
            raise ValueError(f"depth must be at least 1, got {depth}")
        self.combination = read_combination("softmax", correction, "post")
        self.checkpointing = False
        rates = torch.linspace(0, drop_path_rate, depth, device="cpu").tolist()  # also for a model on the meta device
        for block, rate in enumerate(rates):
            acting = correction if acts_in_block(self.combination, block, depth) else "none"
            attention = SlideAttention(
                dim, num_heads, attention="softmax", correction=acting, gate_options=gate_options
            )
            self.append(SlideBlock(dim, attention, mlp_ratio=mlp_ratio, drop_path_rate=rate))

    @property
    def needs_graph(self) -> bool:
        """Whether a block looks at neighbours; a single block has no correction of patch rows."""
        return self.combination.needs_graph and len(self) > 1

    def forward(self, x: Float[Tensor, "B L C"], context: SlideContext) -> Float[Tensor, "B 1 C"]:
        """Return the class row behind the last block."""
        for block in list(self)[:-1]:
            x = self._run(block, x, context, class_only=False)
        return self._run(self[-1], x, context, class_only=True)

    def class_attention(self, x: Float[Tensor, "B L C"], context: SlideContext) -> Float[Tensor, "B L"]:
        """Return the class token's attention to every token in the last block, mean over heads; the rows sum to 1."""
        for block in list(self)[:-1]:
            x = block(x, context)
        last = self[-1]
        assert isinstance(last, SlideBlock)
        assert isinstance(last.attention, SlideAttention)
        return last.attention.attention_row(last.norm1(x), context).mean(1)

    def _run(self, block: nn.Module, x: Tensor, context: SlideContext, *, class_only: bool) -> Tensor:
        if self.checkpointing and torch.is_grad_enabled():
            return checkpoint(block, x, context, class_only=class_only, use_reentrant=False)
        return block(x, context, class_only=class_only)


def start_weights(model: nn.Module, *parameters: nn.Parameter) -> None:
    """Draw linear and convolution weights and `parameters` from a normal of 0.02, cut at 2; biases 0; gates stay."""
    inside_gates = {part for module in model.modules() if isinstance(module, GatedSRP) for part in module.modules()}
    for parameter in parameters:
        nn.init.trunc_normal_(parameter, std=INIT_STD)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d) and module not in inside_gates:
            nn.init.trunc_normal_(module.weight, std=INIT_STD)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
