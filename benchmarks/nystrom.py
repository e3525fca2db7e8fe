"""Nystrom attention alone, without projections, against the naive form of the formula.

    python -m benchmarks.nystrom

6 heads of width 64 and 64 landmarks on queries, keys and values that are views of one projection, as layers hand them
over. This is the form for short slides and for layers with a mask; long ones take the whole layer (slide_layer).
"""

import sys
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.measure import Table
from benchmarks.script import run_script
from benchmarks.subjects import Side, Versus
from nnunet_gdla.ops.nystrom import nystrom_attention
from tests.reference.nystrom import nystrom_attention_naive

HEADS, WIDTH = 6, 64


def table(quick: bool = True) -> Table:
    """Measure every length."""
    repeats = 5 if quick else 11
    found = Table(
        "Slides: Nystrom attention alone",
        f"{HEADS} heads of width {WIDTH}, 64 landmarks, float32. Medians of processor time over {repeats} rounds, both "
        "sides in turn.",
        "python -m benchmarks.nystrom",
    )
    for tokens in (1024, 4096) if quick else (1024, 4096, 16_384):
        print(f"  {tokens}", file=sys.stderr, flush=True)
        generator = torch.Generator().manual_seed(0)
        projected = torch.randn(1, tokens, 3 * HEADS * WIDTH, generator=generator).requires_grad_()
        part = Versus(
            f"{tokens} tokens", _side(nystrom_attention_naive, projected), _side(nystrom_attention, projected)
        )
        part.add_evaluation(found, repeats)
        part.add_training(found, repeats)
    return found


def _side(attention: Callable[..., Tensor], projected: Tensor) -> Side:
    return Side(
        lambda: attention(*projected.unflatten(-1, (3, HEADS, WIDTH)).permute(2, 0, 3, 1, 4)),
        {"projected": projected},
        [],
    )


if __name__ == "__main__":
    run_script(table, __doc__)
