"""Linear maps inside fused forms, by whichever of PyTorch's two matrix libraries the user names.

On some processors the library behind `torch.mm` (MKL) does not use what the processor can do, and oneDNN, which PyTorch
ships for its convolutions, is up to twice as fast. Both compute the same sums; they round differently in the last bit.
So the choice is a setting, never a measurement that may come out otherwise next time: `NNUNET_GDLA_ONEDNN=1` takes
oneDNN, without it torch's own product runs. `nnunet-gdla doctor` measures both.
"""

import os
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from nnunet_gdla.errors import UserError

__all__ = ["PRODUCTS_VARIABLE", "has_onednn", "linear", "onednn_linear", "product"]

PRODUCTS_VARIABLE = "NNUNET_GDLA_ONEDNN"


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor | None = None) -> Tensor:
    """`F.linear` without gradients, for tensors that `may_fuse` has let through.

    The result is written to `out`, contiguous, where the library can do that; only what is returned counts.
    """
    if x.dtype == torch.float32 and _use_onednn():
        return onednn_linear(x.contiguous(), weight.contiguous(), bias)
    if out is None or bias is None:
        return F.linear(x, weight, bias)
    torch.addmm(bias, x.flatten(0, -2), weight.T, out=out.view(-1, out.shape[-1]))
    return out


def product(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight` without gradients, for tensors that `may_fuse` has let through."""
    if x.dtype == torch.float32 and _use_onednn():
        return onednn_linear(x.contiguous(), weight.mT.contiguous(), None)
    return x @ weight


def _use_onednn() -> bool:
    """Whether `NNUNET_GDLA_ONEDNN` asks for oneDNN and this PyTorch has it.

    Raises:
        UserError: If the variable is neither 0 nor 1.
    """
    wish = os.environ.get(PRODUCTS_VARIABLE) or "0"
    if wish not in ("0", "1"):
        raise UserError(f"{PRODUCTS_VARIABLE}={wish} must be 1 (oneDNN) or 0 (torch's own products, as without it)")
    return wish == "1" and has_onednn()


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`F.linear` by oneDNN, for contiguous float32 tensors without gradients."""
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return found


@cache
def has_onednn() -> bool:
    """Whether this build of PyTorch has the operator, which is not part of its public interface, and it is right."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    x, weight, bias = torch.arange(6.0).view(2, 3), torch.arange(12.0).view(4, 3), torch.arange(4.0)
    try:
        found = onednn_linear(x, weight, bias)
    except (RuntimeError, NotImplementedError, TypeError):
        return False
    return torch.equal(found, F.linear(x, weight, bias))
