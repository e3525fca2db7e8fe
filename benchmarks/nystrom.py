"""Time of `nystrom_attention` against the released order of operations, alternating in one process, on the CPU.

    python -m benchmarks.nystrom [--tokens 4096 16384] [--rounds 5] [--threads 2]

Prints seconds (medians) and the ratio naive / ours, forward and forward with backward, for 6 heads of width 64 and 64
landmarks; and the bytes that autograd keeps between the two passes beside q, k and v.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from nnunet_gdla.ops.nystrom import nystrom_attention
from tests.reference.nystrom import nystrom_attention_naive

HEADS, WIDTH = 6, 64


def main() -> None:
    """Measure every size and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 16384])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"{'tokens':>8} {'pass':<8}{'naive s':>9}{'ours s':>9}{'ratio':>7}{'naive MB':>10}{'ours MB':>9}")
    for tokens in arguments.tokens:
        torch.manual_seed(0)
        # As the layers hand them over: views of one projection.
        qkv = torch.randn(1, tokens, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
        kept = [kept_megabytes(function, qkv) for function in (nystrom_attention_naive, nystrom_attention)]
        for backward in (False, True):
            seconds: dict[str, list[float]] = {"naive": [], "ours": []}
            for _ in range(arguments.rounds):
                seconds["naive"].append(timed(nystrom_attention_naive, qkv, backward))
                seconds["ours"].append(timed(nystrom_attention, qkv, backward))
            naive, ours = median(seconds["naive"]), median(seconds["ours"])
            bytes_kept = f"{kept[0]:>10.0f}{kept[1]:>9.0f}" if backward else ""
            name = "fwd+bwd" if backward else "forward"
            print(f"{tokens:>8} {name:<8}{naive:>9.3f}{ours:>9.3f}{naive / ours:>7.2f}{bytes_kept}")


def timed(function: Callable[..., Tensor], qkv: Tensor, backward: bool) -> float:
    """Return the seconds of one pass."""
    leaf = qkv.detach().requires_grad_(backward)
    began = time.perf_counter()
    out = function(*leaf)
    if backward:
        out.sum().backward()
    return time.perf_counter() - began


def kept_megabytes(function: Callable[..., Tensor], qkv: Tensor) -> float:
    """Return the size of all storages that autograd keeps, the inputs' own left out."""
    leaf = qkv.detach().requires_grad_()
    own = leaf.untyped_storage().data_ptr()
    storages: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() != own:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # an output that its own node keeps would never be freed

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = function(*leaf)
    total = sum(storages.values()) / 1e6
    del out
    return total


if __name__ == "__main__":
    main()
