"""Linear maps inside fused forms, by whichever of PyTorch's two matrix libraries is faster on this machine.

On some processors the library behind `torch.mm` (MKL) does not use what the processor can do, and oneDNN, which PyTorch
ships for its convolutions, is up to twice as fast. That is measured once per process, never guessed
from a name. Both compute the same sums; they round differently in the last bit.
"""

import os
import time
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["PRODUCTS_VARIABLE", "linear", "product"]

PRODUCTS_VARIABLE = "NNUNET_GDLA_ONEDNN"
ROUNDS = 9
# For a small gain a choice that may fall otherwise next time, and round otherwise, would cost more than it brings.
MARGIN = 0.75
# Rows, inputs and outputs of layers of the network at 224 pixels.
SIZES = ((6272, 64, 256), (1568, 512, 128), (392, 320, 1280))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor | None = None) -> Tensor:
    """`F.linear` without gradients, for tensors that `may_fuse` has let through.

    The result is written to `out`, contiguous, where the library can do that; only what is returned counts.
    """
    if x.dtype == torch.float32 and _use_onednn():
        return _onednn_linear(x.contiguous(), weight.contiguous(), bias)
    if out is None or bias is None:
        return F.linear(x, weight, bias)
    torch.addmm(bias, x.flatten(0, -2), weight.T, out=out.view(-1, out.shape[-1]))
    return out


def product(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight` without gradients, for tensors that `may_fuse` has let through."""
    if x.dtype == torch.float32 and _use_onednn():
        return _onednn_linear(x.contiguous(), weight.mT.contiguous(), None)
    return x @ weight


def _use_onednn() -> bool:
    """Whether oneDNN was much faster over all `SIZES`; `NNUNET_GDLA_ONEDNN` as 0 or 1 decides without measuring."""
    wish = os.environ.get(PRODUCTS_VARIABLE)
    if wish in ("0", "1"):
        return wish == "1" and _has_onednn()
    # A measurement may fall otherwise in the next process.
    return not torch.are_deterministic_algorithms_enabled() and _onednn_is_faster()


@cache
def _onednn_is_faster() -> bool:
    if not _has_onednn():
        return False
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for a clock that other programs do not move: the processor time of one thread
    try:
        best = [_best_seconds(run) for run in (_torch_linear, _onednn_linear)]
    finally:
        torch.set_num_threads(threads)
    return best[1] < MARGIN * best[0]


def _best_seconds(run: Callable[[Tensor, Tensor, Tensor | None], Tensor]) -> float:
    """Processor time for all `SIZES`, of each the best round: whatever disturbs can only make one slower."""
    total = 0.0
    for rows, inputs, outputs in SIZES:
        x, weight, bias = torch.full((rows, inputs), 0.5), torch.full((outputs, inputs), 0.5), torch.ones(outputs)
        rounds = []
        for _ in range(ROUNDS):
            began = time.thread_time()
            run(x, weight, bias)
            rounds.append(time.thread_time() - began)
        total += min(rounds)
    return total


def _torch_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight, bias)


def _onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return found


@cache
def _has_onednn() -> bool:
    """Whether this build of PyTorch has the operator, which is not part of its public interface, and it is right."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    x, weight, bias = torch.arange(6.0).view(2, 3), torch.arange(12.0).view(4, 3), torch.arange(4.0)
    try:
        found = _onednn_linear(x, weight, bias)
    except (RuntimeError, NotImplementedError, TypeError):
        return False
    return torch.equal(found, F.linear(x, weight, bias))
