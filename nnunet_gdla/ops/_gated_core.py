"""The pieces of the fused gated differential attention that its two passes share, and its pass without gradients.

Shape legend (this file): B batch, N tokens, C channels, H heads, D = C / H head width, P projections (q, k, v and,
with a gate, g), R branches (2, or 1 without lambda), W = D / R width of a branch, X = B H.
"""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = [
    "GATES",
    "Core",
    "Gate",
    "Options",
    "apart",
    "build_core",
    "in_chunks",
    "inverse_rms",
    "is_long",
    "merge_heads",
    "normed_and_gated",
    "permuted",
]

Gate = Literal["silu", "sigmoid"] | None
GATES = ("silu", "sigmoid", None)

# Numbers of one chunk of tokens.
NUMBERS_AT_ONCE = 3 << 17
# Up to this many chunks all tokens at once are as fast; beyond, their memory would be fresh at every call.
MOST_AT_ONCE = 4


class Options(NamedTuple):
    """Of one layer."""

    num_heads: int
    gate: Gate
    norm_eps: float
    eps: float


def permuted(projected: Tensor, num_heads: int, gate: Gate) -> Tensor:
    """View (B, N, P H D) as (P, B, H, N, D)."""
    return projected.unflatten(-1, (3 if gate is None else 4, num_heads, -1)).permute(2, 0, 3, 1, 4)


class Core(NamedTuple):
    """What forward and backward both need; all but `scaled`, `y` and `signed` is kept in between."""

    phi_q: Float[Tensor, "X N D"]
    phi_k: Float[Tensor, "X N D"]
    v: Float[Tensor, "X N D"]
    scaled: Float[Tensor, "X N D"]
    """phi(q) over its normaliser."""
    y: Float[Tensor, "X N D"]
    signed: Float[Tensor, "X D D"]
    """The state, the rows of branch 2 times -lambda."""
    state: Float[Tensor, "X D D"]
    key_sum: Float[Tensor, "X D"]
    inverse: Float[Tensor, "X N R"]
    """One over the normalisers."""


def build_core(projected: Tensor, lam: Tensor | None, options: Options, kept: tuple[Tensor, ...] | None = None) -> Core:
    """Compute it, in backward from what was kept."""
    if kept is None:
        parts_PBHND = permuted(projected, options.num_heads, options.gate)
        phi_q_XND, phi_k_XND = _phi(parts_PBHND[:2]).flatten(1, 2).unbind(0)
        v_XND = apart(parts_PBHND[2])
        state_XDD, key_sum_XD = torch.bmm(phi_k_XND.mT, v_XND), phi_k_XND.sum(1)
        inverse_XNR = _inverse_normaliser(phi_q_XND, key_sum_XD, 1 if lam is None else 2, options.eps)
    else:
        phi_q_XND, phi_k_XND, v_XND, state_XDD, key_sum_XD, inverse_XNR = kept
    scaled_XND, signed_XDD = _scaled(phi_q_XND, inverse_XNR), _signed(state_XDD, lam)
    y_XND = torch.bmm(scaled_XND, signed_XDD)
    return Core(phi_q_XND, phi_k_XND, v_XND, scaled_XND, y_XND, signed_XDD, state_XDD, key_sum_XD, inverse_XNR)


def is_long(projected: Tensor, options: Options) -> bool:
    """Whether `in_chunks` is the faster way."""
    return projected.shape[1] > MOST_AT_ONCE * _tokens_at_once(projected, options)


def _tokens_at_once(projected: Tensor, options: Options) -> int:
    parts = 3 if options.gate is None else 4
    return max(1, NUMBERS_AT_ONCE * parts // (len(projected) * projected.shape[-1]))


def in_chunks(projected: Tensor, lam: Tensor | None, norm_weight: Tensor, options: Options) -> Tensor:
    """The whole operator where nothing is kept: one pass over keys and values, one over queries and gates."""
    at_once, tokens = _tokens_at_once(projected, options), projected.shape[1]
    cuts = [slice(first, min(first + at_once, tokens)) for first in range(0, tokens, at_once)]
    heads, width = options.num_heads, len(norm_weight)
    state_XDD = projected.new_zeros(len(projected) * heads, width, width)
    key_sum_XD = projected.new_zeros(len(state_XDD), width)
    for cut in cuts:
        parts_PBHnD = permuted(projected[:, cut], heads, options.gate)
        phi_k_XnD = _phi(parts_PBHnD[1]).flatten(0, 1)
        state_XDD.baddbmm_(phi_k_XnD.mT, apart(parts_PBHnD[2]))
        key_sum_XD.add_(phi_k_XnD.sum(1))
    signed_XDD, out = _signed(state_XDD, lam), projected.new_empty(*projected.shape[:2], heads * width)
    for cut in cuts:
        here = projected[:, cut]
        phi_q_XnD = _phi(permuted(here, heads, options.gate)[0]).flatten(0, 1)
        inverse_XnR = _inverse_normaliser(phi_q_XnD, key_sum_XD, 1 if lam is None else 2, options.eps)
        y_XnD = torch.bmm(_scaled(phi_q_XnD, inverse_XnR), signed_XDD)
        normed_and_gated(y_XnD, here, norm_weight, options, out[:, cut])
    return out


def _inverse_normaliser(phi_q_XND: Tensor, key_sum_XD: Tensor, branches: int, eps: float) -> Tensor:
    weighted_XNRW = (phi_q_XND * key_sum_XD.unsqueeze(1)).unflatten(-1, (branches, -1))
    return weighted_XNRW.sum(-1).add_(eps).reciprocal_()


def _scaled(phi_q_XND: Tensor, inverse_XNR: Tensor) -> Tensor:
    return (phi_q_XND.unflatten(-1, (inverse_XNR.shape[-1], -1)) * inverse_XNR.unsqueeze(-1)).flatten(-2)


def _signed(state_XDD: Tensor, lam: Tensor | None) -> Tensor:
    if lam is None:
        return state_XDD
    heads, width = lam.shape
    first, second = state_XDD.view(-1, heads, 2, width // 2, width).unbind(2)
    return torch.stack([first, -lam.unsqueeze(-2) * second], dim=2).view(-1, width, width)


def _phi(x: Tensor) -> Tensor:
    """`elu_plus_one`, made contiguous on the way."""
    phi, above = x.new_empty(x.shape), x.new_empty(x.shape)  # apart, since the first may be kept
    return torch.clamp(x, max=0, out=phi).exp_().add_(torch.clamp(x, min=0, out=above))


def inverse_rms(y_XND: Tensor, eps: float) -> Tensor:
    """One over the root of the mean square, (X, N, 1)."""
    return torch.linalg.vector_norm(y_XND, dim=-1, keepdim=True).square_().div_(y_XND.shape[-1]).add_(eps).rsqrt_()


def apart(x_BHND: Tensor) -> Tensor:
    """Copy heads apart, (X, N, D)."""
    return x_BHND.new_empty(x_BHND.shape).copy_(x_BHND).flatten(0, 1)


def merge_heads(parts_XND: list[Tensor], num_heads: int) -> Tensor:
    """Lay P tensors of heads side by side, (B, N, P H D)."""
    first = parts_XND[0]
    batch, tokens, width = len(first) // num_heads, *first.shape[1:]
    out = first.new_empty(batch, tokens, len(parts_XND), num_heads, width)
    # One copy a head: its inner loop runs over all tokens, that of a permuted copy over the few heads.
    for part, source_XND in enumerate(parts_XND):
        for head, source_BND in enumerate(source_XND.view(batch, num_heads, tokens, width).unbind(1)):
            out[:, :, part, head].copy_(source_BND)
    return out.flatten(2)


def normed_and_gated(
    y_XND: Tensor, projected: Tensor, norm_weight: Tensor, options: Options, out: Tensor | None = None
) -> Tensor:
    """Normalise (X, N, D) in place, gate, and lay heads side by side into `out` (B, N, H D)."""
    normed_XND = y_XND.mul_(inverse_rms(y_XND, options.norm_eps)).mul_(norm_weight)
    batch, heads, (tokens, width) = len(projected), options.num_heads, normed_XND.shape[1:]
    if out is None:
        out = normed_XND.new_empty(batch, tokens, heads * width)
    normed_BHND, merged_BNHD = normed_XND.view(batch, heads, tokens, width), out.unflatten(-1, (heads, width))
    if options.gate is None:
        for normed, merged in zip(normed_BHND.unbind(1), merged_BNHD.unbind(2), strict=True):
            merged.copy_(normed)
        return out
    g_BHND = permuted(projected, heads, options.gate)[3]
    gate_BHND = normed_XND.new_empty(g_BHND.shape)
    gate = torch.ops.aten.silu if options.gate == "silu" else torch.sigmoid
    gate(g_BHND, out=gate_BHND)
    for normed, factor, merged in zip(normed_BHND.unbind(1), gate_BHND.unbind(1), merged_BNHD.unbind(2), strict=True):
        torch.mul(normed, factor, out=merged)  # a head at a time, as above
    return out
