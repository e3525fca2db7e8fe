"""Whether the Triton kernels can take tensors: on NVIDIA GPUs that have tensor cores for every dtype."""

import importlib.util

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode

from nnunet_gdla.ops._dispatch import are_exact

__all__ = ["KERNEL_DTYPES", "why_no_kernel"]

KERNEL_DTYPES = (torch.float16, torch.bfloat16, torch.float32)

# Looked up, not imported: Triton is only loaded by the first kernel.
_installed = importlib.util.find_spec("triton") is not None


def why_no_kernel(x: Tensor, *others: Tensor | None) -> str | None:
    """Return why the kernels cannot compute what depends on these tensors, None where they can.

    They cannot on a CPU, in float64, on GPUs older than Ampere, on AMD GPUs, in a program that is exported, traced,
    counted or transformed, where Triton is not installed, and with subclasses of tensors.
    """
    if not x.is_cuda:
        return "it needs CUDA tensors"
    if x.dtype not in KERNEL_DTYPES:
        return "it needs float16, bfloat16 or float32"
    if not _installed:
        return "Triton is not installed"
    if torch.compiler.is_exporting() or (not torch.compiler.is_compiling() and _watched()):
        return "the program is exported, traced, counted or transformed"
    if not torch.compiler.is_compiling() and not are_exact(x, *others):
        return "an input is a subclass of Tensor"
    if not _capable(x.device.index or 0):
        return "it needs an NVIDIA GPU, Ampere or newer"
    return None


def _watched() -> bool:
    """Return whether someone traces, counts or transforms operations, who is shown the plain ones."""
    return (
        torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        or _get_current_dispatch_mode() is not None
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


def _capable(device: int) -> bool:
    """Return whether the GPU multiplies bfloat16 and tf32, which NVIDIA's do since Ampere."""
    return torch.version.cuda is not None and torch.cuda.get_device_capability(device) >= (8, 0)


# What torch.compiler.assume_constant_result sets; to call that would import the whole compiler.
_capable._dynamo_marked_constant = True  # type: ignore[attr-defined]
