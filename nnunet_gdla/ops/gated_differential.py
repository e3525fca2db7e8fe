"""Differential linear attention with its norm and gate, straight from the projected tokens.

Shape legend (this file): B batch, N tokens, C channels, H heads, D = C / H head width, P projections (q, k, v and,
with a gate, g), R branches (2, or 1 without lambda), W = D / R width of a branch, X = B H.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from nnunet_gdla.ops._checks import check_lambda, without_autocast
from nnunet_gdla.ops._dispatch import Form, Operator, choose
from nnunet_gdla.ops._fusion import gradients_follow, gradients_with_graph, why_not_fused
from nnunet_gdla.ops._gated_core import (
    GATES,
    Core,
    Gate,
    Options,
    apart,
    build_core,
    in_chunks,
    inverse_rms,
    is_long,
    merge_heads,
    normed_and_gated,
    permuted,
)
from nnunet_gdla.ops._memory import steady_heap
from nnunet_gdla.ops._triton_differential import gated_differential_triton, why_not_triton
from nnunet_gdla.ops.differential import differential_linear_attention
from nnunet_gdla.ops.linear import linear_attention

__all__ = ["GATES", "Gate", "attend_and_gate", "gated_differential_attention"]


def gated_differential_attention(
    projected: Float[Tensor, "B N PC"],
    lam: Float[Tensor, "H D"] | None,
    norm_weight: Float[Tensor, " D"],
    *,
    num_heads: int,
    gate: Gate = "silu",
    norm_eps: float = 1e-5,
    eps: float = 1e-6,
) -> Float[Tensor, "B N C"]:
    r"""Mix tokens per head, $\mathrm{RMSNorm}(A_1 - \lambda \odot A_2) \odot \mathrm{gate}(G)$.

    Args:
        projected: [Q, K, V, G] along the channels, each H heads of width D; the first half of a head's Q and K is
            branch 1. Without a gate there is no G.
        lam: Weight of branch 2 per head and channel; None: one linear attention of full width, no difference.
        norm_weight: Weight of the norm, shared by the heads.
        num_heads: Heads H.
        gate: "silu", "sigmoid" or None.
        norm_eps: Added to the mean square in the norm.
        eps: Added to the normalisers of the attention.

    Returns:
        (B, N, C), heads side by side, in the dtype of `projected`.

    Raises:
        ValueError: If the gate is unknown or sizes do not fit.

    Numerics: attention and norm in float32 (float64 for float64 input), also under autocast.
    Cost: O(B N C D) time. On a CPU in full precision only `projected` and O(B N H) numbers are kept for backward.
    Reference: GDLA paper, Eq. 13-20 (arXiv:2603.02727); `gdla_head_naive` in tests/reference.
    """
    if gate not in GATES:
        raise ValueError(f"unknown gate {gate!r}; choose one of {', '.join(map(repr, GATES))}")
    parts = 3 if gate is None else 4
    width, left = projected.shape[-1] // (parts * num_heads), projected.shape[-1] % (parts * num_heads)
    if projected.ndim != 3 or left or tuple(norm_weight.shape) != (width,):
        raise ValueError(
            f"projected {tuple(projected.shape)} must be (B, N, {parts} x heads x width) with {num_heads} heads and "
            f"norm_weight {tuple(norm_weight.shape)} one width"
        )
    if lam is not None:
        check_lambda(lam, ((num_heads, width),))
        if width % 2:
            raise ValueError(f"projected {tuple(projected.shape)} needs an even head width, not {width}: two branches")
    return choose(_OPERATOR, _Call(projected, lam, norm_weight, num_heads, gate, norm_eps, eps))


class _Call(NamedTuple):
    projected: Tensor
    lam: Tensor | None
    norm_weight: Tensor
    num_heads: int
    gate: Gate = "silu"
    norm_eps: float = 1e-5
    eps: float = 1e-6


def _run_triton(call: _Call) -> Tensor:
    projected, lam, norm_weight, num_heads, gate, norm_eps, eps = call
    return gated_differential_triton(
        projected, lam, norm_weight, num_heads=num_heads, gate=gate, norm_eps=norm_eps, eps=eps
    )


def _why_not_cpu(call: _Call) -> str | None:
    if not call.projected.numel():
        return "there is nothing to compute"
    return why_not_fused(call.projected, call.lam, call.norm_weight)


def _run_cpu(call: _Call) -> Tensor:
    steady_heap()
    tensors, options = call[:3], Options(*call[3:])
    if not gradients_follow(*tensors) and is_long(call.projected, options):
        return in_chunks(*tensors, options)
    return _GatedDifferential.apply(*tensors, options)


def _key(call: _Call) -> tuple[Any, ...]:
    projected, lam, weight, *_ = call
    device = projected.device
    # the width is what the kernels are compiled for: no symbol of a compiler's
    return (device.type, device.index or 0, projected.dtype, None if lam is None else lam.dtype, weight.dtype,
            int(weight.shape[0]), call.gate)  # fmt: skip


def _example(call: _Call) -> _Call:
    """More tokens than one block has, and an odd number."""
    generator = torch.Generator().manual_seed(0)

    def random(like: Tensor, *shape: int, scale: float = 1.0) -> Tensor:
        drawn = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
        return drawn.to(like.device, like.dtype)

    projected, lam, weight = call[:3]
    return call._replace(
        projected=random(projected, 2, 133, projected.shape[-1]),
        lam=None if lam is None else random(lam, *lam.shape, scale=0.1),
        norm_weight=1 + random(weight, *weight.shape, scale=0.1),
    )


def _plain(projected: Tensor, lam: Tensor | None, norm_weight: Tensor, options: Options) -> Tensor:
    """The composition of the operators, which autograd differentiates step by step."""
    norm = partial(_rms_norm, weight=norm_weight, eps=options.norm_eps)
    return attend_and_gate(projected, lam, norm, num_heads=options.num_heads, gate=options.gate, eps=options.eps)


def _rms_norm(y_BHND: Tensor, weight: Tensor, eps: float) -> Tensor:
    acc = torch.promote_types(y_BHND.dtype, torch.float32)
    with without_autocast(y_BHND):
        weight = weight.to(acc)
        return F.rms_norm(y_BHND.to(acc), weight.shape, weight, eps).to(y_BHND.dtype)


def attend_and_gate(
    projected: Float[Tensor, "B N PC"],
    lam: Float[Tensor, "H D"] | None,
    norm: Callable[[Tensor], Tensor],
    *,
    num_heads: int,
    gate: Gate,
    eps: float = 1e-6,
) -> Float[Tensor, "B N C"]:
    """`gated_differential_attention` operator by operator, with any function of (B, H, N, D) as its norm."""
    q_BHND, k_BHND, v_BHND, *g_BHND = _split_heads(projected, num_heads, gate)
    if lam is None:
        y_BHND = linear_attention(q_BHND, k_BHND, v_BHND, eps=eps)
    else:
        y_BHND = differential_linear_attention(q_BHND, k_BHND, v_BHND, lam, eps=eps)
    out_BHND = norm(y_BHND)
    if g_BHND:
        out_BHND = out_BHND * (F.silu(g_BHND[0]) if gate == "silu" else torch.sigmoid(g_BHND[0]))
    return out_BHND.transpose(1, 2).flatten(2)


def _split_heads(projected: Tensor, num_heads: int, gate: Gate) -> tuple[Tensor, ...]:
    return permuted(projected, num_heads, gate).unbind(0)


class _GatedDifferential(torch.autograd.Function):
    """The whole operator; heads lie apart, (X, N, D), between the projection and the merged result."""

    @staticmethod
    def forward(ctx: Any, projected: Tensor, lam: Tensor | None, norm_weight: Tensor, options: Options) -> Tensor:  # noqa: ANN401
        core = build_core(projected, lam, options)
        kept = core.phi_q, core.phi_k, core.v, core.state, core.key_sum, core.inverse
        ctx.save_for_backward(projected, lam, norm_weight, *kept)
        ctx.options = options
        return normed_and_gated(core.y, projected, norm_weight, options)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        projected, lam, norm_weight, *kept = ctx.saved_tensors
        options = ctx.options
        if torch.is_grad_enabled():
            plain = partial(_plain, options=options)
            return *gradients_with_graph(plain, (projected, lam, norm_weight), grad), None
        needs = ctx.needs_input_grad
        with without_autocast(grad):
            grad_projected, grad_lam, grad_weight = _backward(projected, lam, norm_weight, options, tuple(kept), grad)
        return grad_projected, grad_lam if needs[1] else None, grad_weight if needs[2] else None, None


def _backward(
    projected: Tensor,
    lam: Tensor | None,
    norm_weight: Tensor,
    options: Options,
    kept: tuple[Tensor, ...],
    grad: Tensor,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Gradients of the projection, lambda and the norm's weight."""
    core = build_core(projected, lam, options, kept)
    grad_XND = apart(grad.unflatten(-1, (options.num_heads, -1)).transpose(1, 2))
    over_rms = inverse_rms(core.y, options.norm_eps)
    normed_XND = core.y.mul_(over_rms)
    product_XND = grad_XND * normed_XND
    grad_gate = []
    if options.gate is None:
        grad_weight = product_XND.sum((0, 1))
    else:
        gate_XND, slope_XND = _gate_and_slope(
            apart(permuted(projected, options.num_heads, options.gate)[3]), options.gate
        )
        grad_gate = [slope_XND.mul_(product_XND).mul_(norm_weight)]
        grad_weight = product_XND.mul_(gate_XND).sum((0, 1))
        grad_XND.mul_(gate_XND)
    grad_XND.mul_(norm_weight)
    along = torch.mul(grad_XND, normed_XND, out=product_XND).mean(-1, keepdim=True)
    grad_y_XND = grad_XND.sub_(normed_XND.mul_(along)).mul_(over_rms)
    grad_qkv, grad_lam = _backward_attention(core, lam, grad_y_XND)
    return merge_heads(grad_qkv + grad_gate, options.num_heads), grad_lam, grad_weight


def _gate_and_slope(g: Tensor, gate: Gate) -> tuple[Tensor, Tensor]:
    """The gate's value and derivative, for SiLU written as sigmoid + value (1 - sigmoid)."""
    sigmoid = torch.sigmoid(g)
    if gate == "sigmoid":
        return sigmoid, torch.addcmul(sigmoid, sigmoid, sigmoid, value=-1)
    value = g * sigmoid
    return value, torch.addcmul(sigmoid, value, sigmoid, value=-1).add_(value)


def _backward_attention(core: Core, lam: Tensor | None, grad_y_XND: Tensor) -> tuple[list[Tensor], Tensor | None]:
    """Gradients of q, k and v, heads apart, and of lambda; `core.scaled` is written over."""
    branches = (core.inverse.shape[-1], -1)
    grad_signed_XDD = torch.bmm(core.scaled.mT, grad_y_XND)
    grad_q_XND = torch.bmm(grad_y_XND, core.signed.mT)
    along_XNR1 = (grad_q_XND * core.scaled).unflatten(-1, branches).sum(-1, keepdim=True)
    scaled_XNRW = core.scaled.unflatten(-1, branches)
    grad_key_sum_X1D = scaled_XNRW.mul_(along_XNR1).sum(1).neg_().flatten(-2).unsqueeze(1)
    # phi(q) is scaled times the normaliser, whose own gradient is -along.
    torch.mul(along_XNR1, core.key_sum.unflatten(-1, branches).unsqueeze(1), out=scaled_XNRW)
    grad_q_XND.sub_(core.scaled).unflatten(-1, branches).mul_(core.inverse.unsqueeze(-1))
    grad_q_XND.mul_(core.phi_q.clamp(max=1))

    grad_lam, grad_state_XDD = None, grad_signed_XDD
    if lam is not None:
        batch = len(grad_y_XND) // len(lam)
        grad_first, grad_second = grad_signed_XDD.unflatten(1, (2, -1)).unbind(1)
        second_XWD = core.state.unflatten(1, (2, -1))[:, 1]
        grad_lam = (second_XWD * grad_second).sum(1).neg_().view(batch, *lam.shape).sum(0)
        minus_X1D = lam.neg().expand(batch, -1, -1).flatten(0, 1).unsqueeze(1)
        grad_state_XDD = torch.stack([grad_first, minus_X1D * grad_second], dim=1).flatten(1, 2)
    grad_v_XND = torch.bmm(core.phi_k, grad_state_XDD)
    grad_k_XND = torch.bmm(core.v, grad_state_XDD.mT).add_(grad_key_sum_X1D).mul_(core.phi_k.clamp(max=1))
    return [grad_q_XND, grad_k_XND, grad_v_XND], grad_lam


_OPERATOR = Operator(
    "gated_differential_attention",
    _Call,
    {
        "triton": Form(_run_triton, lambda call: why_not_triton(*call[:3], call.num_heads, call.gate)),
        "cpu": Form(_run_cpu, _why_not_cpu),
        "plain": Form(lambda call: _plain(*call[:3], Options(*call[3:])), lambda _: None),
    },
    key=_key,
    example=_example,
    differentiable=("projected", "lam", "norm_weight"),
)
