"""A vision transformer on one image of fixed size, with Gated SRP on its patch grid.

Shape legend (this file): B batch, R image channels, N patches, C channels, K outputs.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nnunet_gdla.mil.models.bags import eval_no_grad
from nnunet_gdla.mil.models.dense import DenseBlocks, start_weights
from nnunet_gdla.mil.models.tokens import SlideContext, check_sizes, parameter_dtype, with_class_token
from nnunet_gdla.ops.neighbours import NeighbourGraph, grid_neighbours, local_homogeneity

__all__ = ["GridViT"]


class GridViT(nn.Module):
    r"""Patch embedding, learned absolute positions, dense blocks, linear head on the class token.

    The homogeneity of a patch is that of its token before the first block, without gradient. Neighbours are the eight
    around it on the image.

    Args:
        in_dim: Channels R of the image.
        num_outputs: Classes K.
        image_size: Edge of the square image in pixels.
        patch_size: Edge of a patch, a divisor of `image_size`.
        width: Channels C.
        depth: Number of blocks.
        num_heads: Heads.
        correction: "srp", "xsa", "none", "fixed:<beta>" or "fixed:learned"; acts in all blocks but the last (xsa: all).
        delta: Range of beta.
        gate_hidden: Hidden width of the gate.
        detach: Whether the gate's inputs carry no gradient.
        mlp_ratio: Hidden width of the MLPs over `width`.
        drop_path_rate: Of the last block; the others rise to it linearly from 0.

    Parameters: `patch_embed`, `class_token`, `position` (one per token, the class token's first), `blocks`, `norm`,
    `head`; truncated normal of 0.02, biases 0, gates at zero.
    Reference: image experiment (ADP) of the Gated SRP paper.
    """

    needs_coords = False

    def __init__(
        self,
        in_dim: int,
        num_outputs: int,
        *,
        image_size: int = 272,
        patch_size: int = 16,
        width: int = 384,
        depth: int = 12,
        num_heads: int = 6,
        correction: str = "srp",
        delta: float = 0.5,
        gate_hidden: int = 128,
        detach: bool = True,
        mlp_ratio: float = 4.0,
        drop_path_rate: float = 0.1,
    ) -> None:
        super().__init__()
        if patch_size < 1 or image_size < patch_size or image_size % patch_size:
            raise ValueError(f"patch_size {patch_size} must divide image_size {image_size}")
        check_sizes(
            in_dim=in_dim,
            num_outputs=num_outputs,
            width=width,
            depth=depth,
            num_heads=num_heads,
            gate_hidden=gate_hidden,
        )
        self.in_dim, self.num_outputs, self.image_size = in_dim, num_outputs, image_size
        side = image_size // patch_size
        self.patch_embed = nn.Conv2d(in_dim, width, patch_size, stride=patch_size)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.zeros(1, 1 + side**2, width))
        self.blocks = DenseBlocks(
            width,
            depth,
            num_heads,
            correction=correction,
            gate_options={"delta": delta, "hidden": gate_hidden, "detach": detach},
            mlp_ratio=mlp_ratio,
            drop_path_rate=drop_path_rate,
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_outputs)
        start_weights(self, self.class_token, self.position)
        cell = torch.arange(side**2)
        # (row, column): slots in row-major order, as published
        graph = grid_neighbours(torch.stack([cell // side, cell % side], 1), 1.0)
        for name, part in zip(NeighbourGraph._fields, graph, strict=True):
            self.register_buffer(f"neighbour_{name}", part, persistent=False)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Keep only what enters each block for backward, and compute the inside once more there."""
        self.blocks.checkpointing = enable

    def forward(self, images: Float[Tensor, "B R height width"]) -> Float[Tensor, "B K"]:
        """Classify images.

        Raises:
            ValueError: If their channels or size are not those of the model.
        """
        return self.head(self.norm(self.blocks(*self._tokens(images))[:, 0]))

    def patch_scores(self, images: Float[Tensor, "1 R height width"]) -> Float[Tensor, " N"]:
        """Return the class token's attention to every patch, row by row, in the last block; mean over heads."""
        with eval_no_grad(self):
            return self.blocks.class_attention(*self._tokens(images))[0, 1:]

    def _tokens(self, images: Tensor) -> tuple[Tensor, SlideContext]:
        expected = (self.in_dim, self.image_size, self.image_size)
        if images.ndim != 4 or tuple(images.shape[1:]) != expected:
            raise ValueError(f"images {tuple(images.shape)} must be (batch, {', '.join(map(str, expected))})")
        patches = self.patch_embed(images.to(parameter_dtype(self.patch_embed))).flatten(2).transpose(1, 2)
        tokens = with_class_token(self.class_token, patches) + self.position
        if not self.blocks.needs_graph:
            return tokens, SlideContext(patches.shape[1])
        parts: list[Any] = [getattr(self, f"neighbour_{name}") for name in NeighbourGraph._fields]
        graph = NeighbourGraph(*(part.expand(len(images), -1, -1) for part in parts))
        return tokens, SlideContext(patches.shape[1], graph, local_homogeneity(tokens[:, 1:].detach(), graph))
