"""A plain transformer on all patches of a slide, with exact attention.

Shape legend (this file): B batch, N patches, D feature width, C channels, K outputs, S neighbour slots.
"""

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from nnunet_gdla.mil.models.bags import eval_no_grad
from nnunet_gdla.mil.models.dense import DenseBlocks, start_weights
from nnunet_gdla.mil.models.tokens import (
    SlideContext,
    check_bag,
    check_sizes,
    cut_graph,
    known_homogeneity,
    project_features,
    with_class_token,
)
from nnunet_gdla.mil.neighbours import NeighbourOptions
from nnunet_gdla.ops.neighbours import NeighbourGraph, grid_neighbours

__all__ = ["ViT4"]


class ViT4(nn.Module):
    r"""Class token and patches through dense blocks with Gated SRP: no copies, no position code, no landmarks.

    Time grows with the square of the patches; meant for slides of some thousand.

    Args:
        in_dim: Width D of the features.
        num_outputs: Classes or time bins K.
        width: Channels C.
        depth: Number of blocks.
        num_heads: Heads.
        correction: "srp", "xsa", "none", "fixed:<beta>" or "fixed:learned"; acts in all blocks but the last (xsa: all).
        window: Edge of the neighbourhood in patches, odd.
        delta: Range of beta.
        gate_hidden: Hidden width of the gate.
        detach: Whether the gate's inputs carry no gradient.
        mlp_ratio: Hidden width of the MLPs over `width`.
        drop_path_rate: Of the last block; the others rise to it linearly from 0.

    Parameters: `embed`, `class_token`, `blocks`, `norm`, `head`; truncated normal of 0.02, biases 0, gates at zero. The
    gate has a fourth token feature, the mean over heads of log(1 + |y|).
    Reference: architecture ablation of the Gated SRP paper (PANDA).
    """

    def __init__(
        self,
        in_dim: int,
        num_outputs: int,
        *,
        width: int = 384,
        depth: int = 4,
        num_heads: int = 6,
        correction: str = "srp",
        window: int = 3,
        delta: float = 2.0,
        gate_hidden: int = 32,
        detach: bool = True,
        mlp_ratio: float = 4.0,
        drop_path_rate: float = 0.1,
    ) -> None:
        super().__init__()
        check_sizes(
            in_dim=in_dim,
            num_outputs=num_outputs,
            width=width,
            depth=depth,
            num_heads=num_heads,
            gate_hidden=gate_hidden,
        )
        self.in_dim, self.num_outputs, self.window = in_dim, num_outputs, window
        gate = {"mean_norm": True, "delta": delta, "hidden": gate_hidden, "detach": detach, "num_slots": window**2 - 1}
        self.embed = nn.Linear(in_dim, width)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.blocks = DenseBlocks(
            width,
            depth,
            num_heads,
            correction=correction,
            gate_options=gate,
            mlp_ratio=mlp_ratio,
            drop_path_rate=drop_path_rate,
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_outputs)
        self.needs_coords = self.blocks.needs_graph
        self.neighbour_options = NeighbourOptions(window) if self.needs_coords else None
        start_weights(self, self.class_token)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Keep only what enters each block for backward, and compute the inside once more there."""
        self.blocks.checkpointing = enable

    def forward(
        self,
        features: Float[Tensor, "B N D"],
        coords: Shaped[Tensor, "B N _"] | None = None,
        stride: float | int | None = None,
        *,
        graph: NeighbourGraph | None = None,
        homogeneity: Float[Tensor, "B N"] | None = None,
        mask: Bool[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B K"]:
        """Classify bags of patches, each slide by itself.

        Args:
            features: Patch features of any floating dtype; the homogeneity of a patch is that of these.
            coords: Where the patches lie, with `stride` the distance of neighbours in the same unit.
            stride: See `coords`.
            graph: Neighbours (N, S) or (B, N, S) instead of coordinates.
            homogeneity: `local_homogeneity` of features and graph, where it is known already and no mask is given.
            mask: True for patches that take part; the others might as well not be there. None: all take part.

        Raises:
            ValueError: If shapes do not fit, or a correction needs neighbours and there is neither graph nor lattice.
        """
        check_bag(features, coords, mask, self.in_dim)
        slides = (self._slide(i, features, coords, stride, graph, mask) for i in range(features.shape[0]))
        known = None if homogeneity is None or mask is not None else homogeneity.split(1)
        rows = [
            self.blocks(*self._tokens(bag, neighbours, None if known is None else known[i]))
            for i, (bag, neighbours) in enumerate(slides)
        ]
        return self.head(self.norm(torch.cat(rows)[:, 0]))

    def patch_scores(
        self,
        features: Float[Tensor, "1 N D"],
        coords: Shaped[Tensor, "1 N _"] | None = None,
        stride: float | int | None = None,
        *,
        graph: NeighbourGraph | None = None,
        homogeneity: Float[Tensor, "1 N"] | None = None,
    ) -> Float[Tensor, " N"]:
        """Return the class token's attention to every patch in the last block, mean over heads, in row order."""
        check_bag(features, coords, None, self.in_dim)
        with eval_no_grad(self):
            tokens, context = self._tokens(*self._slide(0, features, coords, stride, graph, None), homogeneity)
            return self.blocks.class_attention(tokens, context)[0, 1:]

    def _slide(
        self,
        i: int,
        features: Tensor,
        coords: Tensor | None,
        stride: float | int | None,
        graph: NeighbourGraph | None,
        mask: Tensor | None,
    ) -> tuple[Tensor, NeighbourGraph | None]:
        """Return features (1, n, D) and graph (n, S) of one slide without its masked rows."""
        keep = slice(None) if mask is None else mask[i]
        bag = features[i, keep][None]
        if not self.needs_coords:
            return bag, None
        if graph is not None:
            own = NeighbourGraph(*(part[i] if part.ndim == 3 else part for part in graph))
            return bag, own if mask is None else cut_graph(own, mask[i])
        if coords is None or stride is None:
            raise ValueError(
                "the correction looks at neighbours: pass coords and stride, or graph (correction='none' needs neither)"
            )
        return bag, grid_neighbours(coords[i, keep], stride, window=self.window)

    def _tokens(
        self, bag: Tensor, graph: NeighbourGraph | None, homogeneity: Tensor | None
    ) -> tuple[Tensor, SlideContext]:
        if graph is not None:
            graph = graph.to(bag.device)
            homogeneity = known_homogeneity(homogeneity, bag, graph)
        tokens = with_class_token(self.class_token, project_features(self.embed, bag))
        return tokens, SlideContext(bag.shape[1], graph, homogeneity)
