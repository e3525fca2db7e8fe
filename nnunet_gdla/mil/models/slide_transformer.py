"""The TransMIL-style slide model with Gated SRP and its comparators.

Shape legend (this file): B batch, N patches, L tokens, D feature width, C channels, H heads, K neighbour slots.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nnunet_gdla.layers.ppeg import PPEG
from nnunet_gdla.layers.redundancy import RedundancyGate
from nnunet_gdla.mil.gates import observed_gates
from nnunet_gdla.mil.models.bags import eval_no_grad
from nnunet_gdla.mil.models.combinations import Combination, read_combination
from nnunet_gdla.mil.models.explanation import SlideExplanation, fixed_betas
from nnunet_gdla.mil.models.slide_block import BlockAttention, SlideBlock
from nnunet_gdla.mil.models.tokens import (
    SlideContext,
    check_bag,
    check_sizes,
    cut_graph,
    fill_square,
    known_homogeneity,
    project_features,
    with_class_token,
)
from nnunet_gdla.mil.neighbours import NeighbourOptions
from nnunet_gdla.ops.neighbours import NeighbourGraph, Shell, Weighting, grid_neighbours
from nnunet_gdla.ops.nystrom import PinvInit

__all__ = ["SlideExplanation", "SlideTransformer"]

INIT_STD = 0.02


class SlideTransformer(nn.Module):
    r"""Classify a bag of patches by a class token that attends to them through `depth` blocks.

    Input projection, copies of the first patches until a square is full, class token, block 0, position convolution,
    the other blocks, layer norm, class row, linear head. In the last block only what reaches the class row is computed.

    Args:
        in_dim: Width D of the patch features.
        num_outputs: Classes or time bins.
        width: Channels C of the tokens.
        depth: Number of blocks.
        num_heads: Heads H.
        attention: "nystrom", "softmax", "linear", "gdla" (ours alone: the mixer of the segmentation network, exact and
            linear in N) or "diff".
        correction: "srp" (gated), "xsa", "none", "fixed:<beta>" or "fixed:learned" (a beta per head, starts at 1).
        placement: "post", "pre_q", "pre_k" or "pre_v". Which of the three go together is in the error that others get.
        num_landmarks: Of Nystrom attention, as `pinv_iterations` and `pinv_init`.
        pinv_iterations: See `nystrom_attention`.
        pinv_init: "per_matrix"; "global" reproduces published numbers.
        window: Edge of the neighbour window in cells; `shell`, `weighting`, `sigma` as for `grid_neighbours`.
        shell: "cumulative" or "ring".
        weighting: "uniform", "gaussian" or "inverse_distance".
        sigma: Width of "gaussian" in cells.
        token_features: Of the gate.
        delta: Range of the gate's beta.
        gate_hidden: Width of the gate's token part.
        gate_options: Any other keyword argument of `RedundancyGate`.
        position: "ppeg", the position convolution on rows laid out as a square (row order decides), or None.
        mlp_ratio: Hidden width of the MLPs over C.
        drop_path_rate: Of the last block; the rates rise linearly from 0.
        local_mixing: None or "lattice", for attention "gdla" only.

    Raises:
        ValueError: If choices do not go together or sizes do not fit.

    A correction is built where it can reach the class row: placed "post" or "pre_q" in all blocks but the last,
    "pre_k", "pre_v" and "xsa" in every block. At the start a gated model returns the bits of `correction="none"`, and
    at equal seed all other weights are the same.
    Row order matters for nystrom and diff (landmarks are means over consecutive rows), for "ppeg" and for the copies;
    softmax, linear and gdla with `position=None` do not know it. Copies are made for "ppeg", and for nystrom and diff
    always as published; gdla goes without and leaves the missing cells of the square empty.

    Parameters: `embed`, `class_token`, `blocks`, `position`, `norm`, `head`; weights from a normal of 0.02, biases 0.
    """

    def __init__(
        self,
        in_dim: int,
        num_outputs: int,
        *,
        width: int = 384,
        depth: int = 4,
        num_heads: int = 6,
        attention: str = "nystrom",
        correction: str = "srp",
        placement: str = "post",
        num_landmarks: int = 64,
        pinv_iterations: int = 6,
        pinv_init: PinvInit = "per_matrix",
        window: int = 3,
        shell: Shell = "cumulative",
        weighting: Weighting = "uniform",
        sigma: float = 1.0,
        token_features: str = "legacy",
        delta: float = 1.0,
        gate_hidden: int = 64,
        gate_options: Mapping[str, Any] | None = None,
        position: Literal["ppeg"] | None = "ppeg",
        mlp_ratio: float = 4.0,
        drop_path_rate: float = 0.1,
        local_mixing: Literal["lattice"] | None = None,
    ) -> None:
        super().__init__()
        check_sizes(
            in_dim=in_dim,
            num_outputs=num_outputs,
            width=width,
            depth=depth,
            num_heads=num_heads,
            gate_hidden=gate_hidden,
            num_landmarks=num_landmarks,
        )
        choice = read_combination(attention, correction, placement)
        _check_rest(choice, position, local_mixing, window, shell, mlp_ratio)
        self.in_dim, self.num_outputs, self.combination = in_dim, num_outputs, choice
        self.needs_coords = choice.needs_graph or local_mixing is not None
        self.window: dict[str, Any] = {"window": window, "shell": shell, "weighting": weighting, "sigma": sigma}
        wants = NeighbourOptions(**self.window, homogeneity=choice.correction == "srp")
        self.neighbour_options = wants if self.needs_coords else None
        self.copies = attention in ("nystrom", "diff") or (position == "ppeg" and attention != "gdla")
        self.depends_on_row_order = attention in ("nystrom", "diff") or (position == "ppeg" and depth > 1)
        self.grad_checkpointing = False
        with torch.device("cpu"):  # also where the model is made on the meta device
            # The graph of one patch: refuses wrong options here and now, and counts the slots.
            slots = grid_neighbours(torch.zeros(1, 2, dtype=torch.int64), 1.0, **self.window).index.shape[-1]
            rates = torch.linspace(0, drop_path_rate, depth).tolist()
        gate = {"num_slots": slots, "token_features": token_features, "delta": delta, "hidden": gate_hidden}
        layer = BlockAttention(
            choice,
            correction,
            dim=width,
            num_heads=num_heads,
            nystrom={"num_landmarks": num_landmarks, "pinv_iterations": pinv_iterations, "pinv_init": pinv_init},
            gate=gate | dict(gate_options or {}),
            local_mixing=local_mixing,
        )
        self.embed = nn.Linear(in_dim, width)
        self.class_token = nn.Parameter(torch.empty(1, 1, width))
        self.blocks = nn.ModuleList(
            SlideBlock(width, layer.build(i, depth), mlp_ratio=mlp_ratio, drop_path_rate=rate)
            for i, rate in enumerate(rates)
        )
        # Behind the only block a position convolution could not reach the class row.
        self.position = PPEG(width) if position == "ppeg" and depth > 1 else None
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_outputs)
        self._start()

    def _start(self) -> None:
        gates = {id(part) for gate in self.modules() if isinstance(gate, RedundancyGate) for part in gate.modules()}
        nn.init.trunc_normal_(self.class_token, std=INIT_STD)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d) and id(module) not in gates:
                nn.init.trunc_normal_(module.weight, std=INIT_STD)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Keep only the input of each block for backward and compute the rest anew there."""
        self.grad_checkpointing = enable

    def forward(
        self,
        features: Float[Tensor, "B N D"],
        coords: Int[Tensor, "B N xy"] | Float[Tensor, "B N xy"] | None = None,
        stride: float | int | None = None,
        *,
        graph: NeighbourGraph | None = None,
        homogeneity: Float[Tensor, "B N"] | None = None,
        mask: Bool[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B outputs"]:
        """Return logits.

        Args:
            features: Patch features of any floating dtype, rows in file order.
            coords: Upper left corners of the patches; used where `needs_coords` and no graph is given.
            stride: Distance of neighbouring patches in units of `coords`.
            graph: Neighbours of each patch, (N, K) or (B, N, K), instead of coordinates.
            homogeneity: `local_homogeneity` of features and graph, where it is known already.
            mask: True for patches that take part. A slide with a mask is the slide with the other rows cut out, in
                everything: landmarks, square, copies, neighbours.

        Raises:
            ValueError: If sizes do not fit, or neighbours are needed and cannot be had.
        """
        check_bag(features, coords, mask, self.in_dim)
        if mask is None or bool(mask.all()):
            x, context = self._through_blocks(features, self._context(features, coords, stride, graph, homogeneity))
            return self._read_out(x, context)
        outputs = []
        for b, keep in enumerate(mask):
            rows = features[b : b + 1, keep]
            where = None if coords is None else coords[b : b + 1, keep]
            part = graph if graph is None or graph.index.ndim == 2 else NeighbourGraph(*(g[b] for g in graph))
            context = self._context(rows, where, stride, None if part is None else cut_graph(part, keep))
            outputs.append(self._read_out(*self._through_blocks(rows, context)))
        return torch.cat(outputs)

    def patch_scores(
        self,
        features: Float[Tensor, "1 N D"],
        coords: Int[Tensor, "1 N xy"] | Float[Tensor, "1 N xy"] | None = None,
        stride: float | int | None = None,
        *,
        graph: NeighbourGraph | None = None,
        homogeneity: Float[Tensor, "1 N"] | None = None,
    ) -> Float[Tensor, " N"]:
        """Return the class token's attention to each patch in the last block, mean over heads, in row order.

        Exact for softmax and linear; for nystrom, diff and gdla rows of differences, which may be negative.
        """
        return self.explain(features, coords, stride, graph=graph, homogeneity=homogeneity).attention.mean(0)

    def explain(
        self,
        features: Float[Tensor, "1 N D"],
        coords: Int[Tensor, "1 N xy"] | Float[Tensor, "1 N xy"] | None = None,
        stride: float | int | None = None,
        *,
        graph: NeighbourGraph | None = None,
        homogeneity: Float[Tensor, "1 N"] | None = None,
    ) -> SlideExplanation:
        """Return the class token's attention per head and beta per block in which a correction acts.

        Nothing of size N x N is built; drop path is off whatever mode the model is in.

        Raises:
            ValueError: If there is more than one slide, or as for `forward`.
        """
        check_bag(features, coords, None, self.in_dim)
        if features.shape[0] != 1:
            raise ValueError(f"features {tuple(features.shape)} must be those of one slide, (1, N, {self.in_dim})")
        betas: dict[int, Tensor] = {}

        def keep(block: int, given: Mapping[str, Any], beta: Tensor) -> None:
            betas[block] = beta[0].clone()

        with eval_no_grad(self), observed_gates(self, keep):
            x, context = self._through_blocks(features, self._context(features, coords, stride, graph, homogeneity))
            self._read_out(x, context)
            last = self.blocks[-1]
            assert isinstance(last, SlideBlock)
            row = last.attention.attention_row(last.norm1(x), context)
        betas |= fixed_betas(self.blocks, context.num_patches)
        return SlideExplanation(row[0, :, 1 : 1 + context.num_patches].float(), betas)

    def _context(
        self,
        features: Tensor,
        coords: Tensor | None,
        stride: float | int | None,
        graph: NeighbourGraph | None,
        homogeneity: Tensor | None = None,
    ) -> SlideContext:
        patches = features.shape[1]
        if not self.needs_coords:
            return SlideContext(patches)
        if graph is None:
            if coords is None or stride is None:
                raise ValueError(
                    f"this model looks at neighbouring patches (correction {self.combination.correction!r}): "
                    "pass coords and stride, or graph"
                )
            graph = grid_neighbours(coords, float(stride), **self.window)
        graph = graph.to(features.device)
        if self.combination.correction == "srp":
            return SlideContext(patches, graph, known_homogeneity(homogeneity, features, graph))
        return SlideContext(patches, graph, features.new_zeros(features.shape[:2], dtype=torch.float32))

    def _through_blocks(self, features: Tensor, context: SlideContext) -> tuple[Tensor, SlideContext]:
        """Return the tokens in front of the last block."""
        patches = project_features(self.embed, features)
        x = with_class_token(self.class_token, fill_square(patches) if self.copies else patches)
        for number, block in enumerate(self.blocks[:-1]):
            x = self._run(block, x, context)
            if number == 0 and self.position is not None:
                x = self.position(x)
        return x, context

    def _read_out(self, x: Tensor, context: SlideContext) -> Tensor:
        return self.head(self.norm(self._run(self.blocks[-1], x, context, class_only=True)[:, 0]))

    def _run(self, block: nn.Module, x: Tensor, context: SlideContext, *, class_only: bool = False) -> Tensor:
        if self.grad_checkpointing and torch.is_grad_enabled():
            return checkpoint(block, x, context, class_only=class_only, use_reentrant=False)
        return block(x, context, class_only=class_only)


def _check_rest(
    choice: Combination,
    position: str | None,
    local_mixing: str | None,
    window: int,
    shell: str,
    mlp_ratio: float,
) -> None:
    if not 0 < mlp_ratio < math.inf:
        raise ValueError(f"mlp_ratio must be positive, got {mlp_ratio}")
    if position not in ("ppeg", None):
        raise ValueError(f"unknown position {position!r}; choose 'ppeg' or None")
    if local_mixing is None:
        return
    if choice.attention != "gdla":
        raise ValueError(f"local_mixing {local_mixing!r} is for attention 'gdla' only, not {choice.attention!r}")
    if (window, shell) != (3, "cumulative"):
        raise ValueError(
            f"local_mixing {local_mixing!r} needs window 3 and shell 'cumulative', got {window}, {shell!r}"
        )
