"""Whether the Triton kernels are used: on NVIDIA GPUs that have tensor cores for every dtype, unless switched off."""

import importlib.util
import os

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

__all__ = ["KERNEL_DTYPES", "triton_wanted", "use_triton"]

KERNEL_DTYPES = (torch.float16, torch.bfloat16, torch.float32)

# Looked up, not imported: Triton is only loaded by the first kernel.
_installed = importlib.util.find_spec("triton") is not None
_enabled = os.environ.get("NNUNET_GDLA_TRITON", "1") != "0"


def use_triton(enabled: bool) -> None:
    """Switch the Triton kernels on or off for this process; tensors on a CPU never use them.

    The kernels are on from the start, unless the environment variable `NNUNET_GDLA_TRITON` is 0 when the package is
    imported. Off, CUDA tensors run the plain operations that CPU tensors run.

    Args:
        enabled: False for the plain operations.
    """
    global _enabled
    _enabled = enabled


def triton_wanted(x: Tensor) -> bool:
    """Return whether the kernels should compute what depends on `x`.

    False for CPU tensors, float64, GPUs older than Ampere, AMD GPUs, a program that is exported, traced, counted or
    transformed, where Triton is not installed, and after `use_triton(False)`.
    """
    if not (_enabled and _installed and x.is_cuda and x.dtype in KERNEL_DTYPES):
        return False
    if torch.compiler.is_exporting() or (not torch.compiler.is_compiling() and _watched()):
        return False
    return _capable(x.device.index or 0)


def _watched() -> bool:
    """Return whether somebody traces, counts or transforms operations, who is shown the plain ones."""
    return (
        torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        or _get_current_dispatch_mode() is not None
        or torch._C._are_functorch_transforms_active()
    )


def _capable(device: int) -> bool:
    """Return whether the GPU multiplies bfloat16 and tf32, which NVIDIA's do since Ampere."""
    return torch.version.cuda is not None and torch.cuda.get_device_capability(device) >= (8, 0)


# What torch.compiler.assume_constant_result sets; to call that would import the whole compiler.
_capable._dynamo_marked_constant = True  # type: ignore[attr-defined]
