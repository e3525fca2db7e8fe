"""When an operator may use its fused form, and how the gradient of a fused form is differentiated once more.

A fused form runs the same sums as the plain one, keeps less for the backward pass and recomputes the rest. It is eager
code for the CPU; compilers, exporters and counters of operations are shown the plain form.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import _get_current_dispatch_mode

from nnunet_gdla.ops._memory import steady_heap

__all__ = [
    "FUSED_VARIABLE",
    "first_derivatives_only",
    "fused_enabled",
    "fused_kernels",
    "gradients_follow",
    "gradients_with_graph",
    "is_eager_cpu",
    "may_fuse",
]

FUSED_VARIABLE = "NNUNET_GDLA_FUSED"
_enabled = [os.environ.get(FUSED_VARIABLE, "1") != "0"]


@contextmanager
def fused_kernels(enabled: bool) -> Iterator[None]:
    """Switch the fused forms on or off inside a `with` block, for this process.

    Off, every layer runs its plain form and the encoder timm's own forward. The environment variable
    `NNUNET_GDLA_FUSED=0`, read when the package is imported, switches them off for good.
    """
    before = _enabled[0]
    _enabled[0] = enabled
    try:
        yield
    finally:
        _enabled[0] = before


def fused_enabled() -> bool:
    """Whether fused forms are switched on, and no forward-mode derivatives are taken, which they do not have."""
    return _enabled[0] and forward_ad._current_level < 0


def first_derivatives_only(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Let a backward pass that cannot be differentiated say so at once.

    `once_differentiable` alone leaves an error in the graph, which autograd passes by where other paths lead to the
    inputs: the second derivative would lack a part without a word.
    """
    once = once_differentiable(backward)

    def checked(ctx: Any, *grads: Tensor) -> Any:  # noqa: ANN401
        if torch.is_grad_enabled():
            raise RuntimeError(
                "this operator of nnunet_gdla has first derivatives only; call backward or grad without "
                "create_graph=True"
            )
        return once(ctx, *grads)

    return checked


def may_fuse(*tensors: Tensor | None) -> bool:
    """Whether these tensors may go through a fused form: eager, on the CPU, one full-precision dtype, no autocast."""
    first, *rest = (tensor for tensor in tensors if tensor is not None)
    if not fused_enabled() or not is_eager_cpu(first) or first.dtype not in (torch.float32, torch.float64):
        return False
    if any(tensor.device != first.device or tensor.dtype != first.dtype for tensor in rest):
        return False
    if torch.is_autocast_enabled("cpu") or torch._C._are_functorch_transforms_active():
        return False
    steady_heap()
    return True


def gradients_follow(*tensors: Tensor | None) -> bool:
    """Whether a backward pass may follow, for which something has to be kept.

    To be asked outside of autograd functions: in their forward pass gradients are always off, and
    `ctx.needs_input_grad` is set for parameters under `no_grad` too.
    """
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def is_eager_cpu(tensor: Tensor) -> bool:
    """Whether operators on this tensor run at once on a CPU: nobody compiles, exports, traces or counts them."""
    return (
        tensor.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and not torch._C._is_tracing()
        and _get_current_dispatch_mode() is None
    )


def gradients_with_graph(
    plain: Callable[..., Tensor], inputs: tuple[Tensor | None, ...], grad: Tensor
) -> list[Tensor | None]:
    """Gradients of the plain form, one an input, that can be differentiated again.

    Taken at views of the inputs: one input may depend on another, and what flows that way is not the operator's own.
    """
    with torch.enable_grad():
        own = [None if tensor is None else tensor.view_as(tensor) for tensor in inputs]
        out = plain(*own)
    wanted = [tensor for tensor in own if tensor is not None and tensor.requires_grad]
    found = iter(torch.autograd.grad(out, wanted, grad, create_graph=True, allow_unused=True))
    return [next(found) if tensor is not None and tensor.requires_grad else None for tensor in own]
