"""Our forward pass of the PVTv2-B2 encoder against timm's own, same modules and weights.

    python -m benchmarks.encoder

Both see images of three channels. With --full also 896, where the encoder's own attention, quadratic in the pixels,
takes most of the time.
"""

import sys

from torch import Tensor, nn

from benchmarks.measure import Table
from benchmarks.script import run_script
from benchmarks.subjects import Side, Versus, images, make_pair, named_parameters


def table(quick: bool) -> Table:
    """Measure every size."""
    repeats = 5 if quick else 11
    found = Table(
        "Encoder: ours against timm's own forward",
        "PVTv2-B2, float32, stochastic depth off. Medians of processor time, both sides in turn.",
        "python -m benchmarks.encoder",
    )
    rival, ours = make_pair(channels=3)
    for batch, size in ((2, 224), (1, 448)) if quick else ((2, 224), (2, 448), (1, 896)):
        print(f"  {size}", file=sys.stderr, flush=True)
        x = images(batch, size, channels=3)
        sides = (_side(rival.encoder, x), _side(ours.encoder, x))
        part = Versus(f"batch {batch}, {size} x {size}", *sides, [x])
        part.add_evaluation(found, repeats)
        part.add_training(found, repeats)
    return found


def _side(encoder: nn.Module, x: Tensor) -> Side:
    return Side(lambda: encoder(x), named_parameters(encoder), [encoder])


if __name__ == "__main__":
    run_script(table, __doc__)
