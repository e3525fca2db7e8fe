"""Gated spatial redundancy projection (Gated SRP) and its fixed relatives, on the patch rows of one stream.

Shape legend (this file): B batch, H heads, N patches, L rows of which N are patches, D head width, C channels = H D.
"""

from typing import Any, Literal

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from nnunet_gdla.layers.redundancy_gate import RedundancyGate as RedundancyGate
from nnunet_gdla.ops.neighbours import NeighbourGraph
from nnunet_gdla.ops.redundancy import Alignment, alignment, correction

__all__ = ["FixedSRP", "GatedSRP", "OutputSRP", "RedundancyGate"]


class GatedSRP(nn.Module):
    r"""Correct each head's output along the direction of its neighbours' values, by a learned signed coefficient.

    $$z_{ih} = y_{ih} - \beta_{ih}\,(y_{ih}^\top \hat r_{ih})\,\hat r_{ih},$$

    where $\hat r$ is the unit vector of the neighbours' mean value. Also before attention: give the query, key or value
    stream as both `y` and `v`.

    Args:
        num_heads: Heads H.
        **gate: Options of `RedundancyGate`.

    Parameters: those of `gate`. With the zero start and a symmetric bound the layer is the identity, bit for bit.
    Numerics: runs in float32 (float64 for float64 input), also under autocast; the result has the dtype of `y`. No
        gradient reaches `v`.
    Cost: two neighbourhood means, one of them in backward; saved beside `v`: a few numbers a patch and head.
    Reference: spec of Gated SRP; `gated_srp_naive` in tests/reference.
    """

    def __init__(self, num_heads: int, **gate: Any) -> None:  # noqa: ANN401 - checked by the gate
        super().__init__()
        self.gate = RedundancyGate(num_heads, **gate)

    def no_weight_decay(self) -> set[str]:
        """Return the names of the parameters that must not be decayed."""
        return {f"gate.{name}" for name in self.gate.no_weight_decay()}

    def is_identity(self) -> bool:
        """Whether outputs are returned as they are, whatever they are."""
        return type(self.gate) is RedundancyGate and self.gate.is_closed()

    def forward(
        self,
        y: Float[Tensor, "B H L D"],
        v: Float[Tensor, "B H L D"],
        graph: NeighbourGraph,
        homogeneity: Float[Tensor, "B N"],
        *,
        first: int = 0,
    ) -> Float[Tensor, "B H L D"]:
        """Return z.

        Args:
            y: What is corrected.
            v: Values whose neighbourhood means are the directions.
            graph: Of the patches, (N, K) or (B, N, K).
            homogeneity: Of the patches, from `local_homogeneity`.
            first: Row of the first patch; rows before and behind the N patches (class token, copies) are returned as
                they are, bit for bit.

        Raises:
            ValueError: If the sizes do not fit.
        """
        patches = slice(first, first + graph.index.shape[-2])
        found = alignment(y[:, :, patches], v[:, :, patches], graph)
        beta = self.coefficients(y[:, :, patches], found, graph, homogeneity)
        return correction(y, found, beta, v, graph, first=first)

    def coefficients(
        self,
        y: Float[Tensor, "B H N D"],
        found: Alignment,
        graph: NeighbourGraph,
        homogeneity: Float[Tensor, "B N"],
    ) -> Float[Tensor, "B H N"]:
        """Return beta of the patches, given how their outputs lie.

        Raises:
            ValueError: If the sizes do not fit.
        """
        count = graph.count.expand(y.shape[0], -1)
        return self.gate(homogeneity, count, y, found.axis, measured=(found.dot, found.norm))


class FixedSRP(nn.Module):
    """The correction of `GatedSRP` with one coefficient per head for all patches: a constant, or learned.

    Args:
        num_heads: Heads H.
        beta: The coefficient of all heads, or "learned".
        start: Of learned coefficients.
        homogeneity_gated: Multiply the coefficient by the patch's homogeneity, cut to 0..1.

    Raises:
        ValueError: If `beta` is a word other than "learned".

    Parameters: `beta` (H), if learned.
    """

    def __init__(
        self,
        num_heads: int,
        beta: float | int | Literal["learned"] = 1.0,
        *,
        start: float | int = 1.0,
        homogeneity_gated: bool = False,
    ) -> None:
        super().__init__()
        self.homogeneity_gated = homogeneity_gated
        self.beta: Tensor
        if beta == "learned":
            self.beta = nn.Parameter(torch.full((num_heads,), float(start)))
        elif isinstance(beta, str):
            raise ValueError(f"unknown beta {beta!r}; give a number or 'learned'")
        else:
            self.register_buffer("beta", torch.full((num_heads,), float(beta)), persistent=False)

    def no_weight_decay(self) -> set[str]:
        """Return the names of the parameters that must not be decayed."""
        return {name for name, _ in self.named_parameters()}

    def is_identity(self) -> bool:
        """Whether outputs are returned as they are, whatever they are."""
        return not bool(self.beta.any())

    def forward(
        self,
        y: Float[Tensor, "B H L D"],
        v: Float[Tensor, "B H L D"],
        graph: NeighbourGraph,
        homogeneity: Float[Tensor, "B N"],
        *,
        first: int = 0,
    ) -> Float[Tensor, "B H L D"]:
        """Return z; arguments as for `GatedSRP`."""
        patches = slice(first, first + graph.index.shape[-2])
        found = alignment(y[:, :, patches], v[:, :, patches], graph)
        beta = self.coefficients(y[:, :, patches], found, graph, homogeneity)
        return correction(y, found, beta, v, graph, first=first)

    def coefficients(
        self,
        y: Float[Tensor, "B H N D"],
        found: Alignment,
        graph: NeighbourGraph,
        homogeneity: Float[Tensor, "B N"],
    ) -> Float[Tensor, "B H N"]:
        """Return beta of the patches."""
        beta = self.beta[:, None].expand(found.dot.shape)
        return beta * homogeneity.clamp(0, 1).unsqueeze(1) if self.homogeneity_gated else beta


class OutputSRP(nn.Module):
    """Gated SRP around an attention that exposes only its output.

    The directions come from the layer's input, split into heads, instead of the values: ours, not the paper's.

    Args:
        attention: Takes (B, L, C) and what else it is given, returns (B, L, C).
        num_heads: Heads that input and output are split into.
        **gate: Options of `RedundancyGate`.
    """

    def __init__(self, attention: nn.Module, num_heads: int, **gate: Any) -> None:  # noqa: ANN401 - checked by the gate
        super().__init__()
        self.attention, self.num_heads = attention, num_heads
        self.srp = GatedSRP(num_heads, **gate)

    def no_weight_decay(self) -> set[str]:
        """Return the names of the parameters that must not be decayed, of the correction."""
        return {f"srp.{name}" for name in self.srp.no_weight_decay()}

    def forward(
        self,
        x: Float[Tensor, "B L C"],
        graph: NeighbourGraph,
        homogeneity: Float[Tensor, "B N"],
        *args: Any,  # noqa: ANN401 - the attention's own
        first: int = 0,
        **kwargs: Any,  # noqa: ANN401
    ) -> Float[Tensor, "B L C"]:
        """Attend, then correct the rows from `first` on; further arguments go to the attention.

        Raises:
            ValueError: If the attention does not return a tensor like `x`, or the heads do not divide its channels.
        """
        attended = self.attention(x, *args, **kwargs)
        if not isinstance(attended, Tensor) or attended.shape != x.shape:
            what = tuple(attended.shape) if isinstance(attended, Tensor) else type(attended).__name__
            raise ValueError(
                f"the attention returned {what}, but must return a tensor {tuple(x.shape)} as it was given"
            )
        if x.shape[-1] % self.num_heads:
            raise ValueError(f"num_heads {self.num_heads} must divide the {x.shape[-1]} channels")
        y, v = (rearrange(rows, "b n (h d) -> b h n d", h=self.num_heads) for rows in (attended, x))
        return rearrange(self.srp(y, v, graph, homogeneity, first=first), "b h n d -> b n (h d)")
