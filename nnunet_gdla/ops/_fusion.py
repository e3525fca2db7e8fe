"""When an operator may use its fused form, and how the gradient of a fused form is differentiated once more.

A fused form runs the same sums as the plain one, keeps less for the backward pass and recomputes the rest. It is eager
code for the CPU; compilers, exporters and counters of operations are shown the plain form.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import _get_current_dispatch_mode

from nnunet_gdla.ops._dispatch import are_exact, is_named
from nnunet_gdla.ops._memory import steady_heap

__all__ = [
    "first_derivatives_only",
    "fused_enabled",
    "gradients_follow",
    "gradients_with_graph",
    "is_eager_cpu",
    "may_fuse",
    "transforms_active",
    "why_not_fused",
]


def fused_enabled() -> bool:
    """Whether the form `cpu` is named, and no forward-mode derivatives are taken, which fused forms do not have."""
    return is_named("cpu") and forward_ad._current_level < 0


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
    """Whether these tensors may go through a fused form, see `why_not_fused`."""
    if why_not_fused(*tensors) is not None:
        return False
    steady_heap()
    return True


def why_not_fused(*tensors: Tensor | None) -> str | None:
    """Return why no fused form takes these tensors, None where one may.

    It runs eagerly, on the CPU, in one full-precision dtype, without autocast, and only on tensors and parameters
    themselves.
    """
    first, *rest = (tensor for tensor in tensors if tensor is not None)
    if not fused_enabled():
        return "the form cpu is not named, or forward-mode derivatives are taken"
    if not is_eager_cpu(first):
        return "it runs eagerly on a CPU, not compiled, exported, traced or counted"
    if first.dtype not in (torch.float32, torch.float64):
        return "it needs float32 or float64"
    if any(tensor.device != first.device or tensor.dtype != first.dtype for tensor in rest):
        return "the tensors differ in device or dtype"
    if not are_exact(first, *rest):
        return "an input or a weight is a subclass of Tensor"
    if torch.is_autocast_enabled("cpu") or transforms_active():
        return "autocast or a function transform is active"
    return None


def gradients_follow(*tensors: Tensor | None) -> bool:
    """Whether a backward pass may follow, for which something has to be kept.

    To be asked outside of autograd functions: in their forward pass gradients are always off, and
    `ctx.needs_input_grad` is set for parameters under `no_grad` too.
    """
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def transforms_active() -> bool:
    """Whether `torch.func` (vmap, grad, jvp) looks on; it takes no autograd function of ours."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


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
