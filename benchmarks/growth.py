"""How the time of PVT-GDLA-B2 grows with the image: decoder alone, whole network, and the multiply-adds.

    python -m benchmarks.growth

Every step doubles the edge, so that a linear decoder takes four times as long. PVTv2's own attention is not linear,
therefore the growth of the whole stands beside that of its multiply-adds.
"""

import sys

import torch

from benchmarks.measure import Table, Timing, alternate, at_most
from benchmarks.script import run_script
from benchmarks.subjects import images, make_pair, our_stages, our_tail
from nnunet_gdla.insight.counting import count_products
from nnunet_gdla.networks import PVTGDLA


def table(quick: bool) -> Table:
    """Measure every size."""
    repeats = 3 if quick else 7
    found = Table(
        "Growth with the image",
        f"PVT-GDLA-B2, batch 1, float32, evaluation; the decoder with stem and heads on the encoder's maps. Medians of "
        f"processor time over {repeats} rounds, all sizes in turn.",
        "python -m benchmarks.growth",
        columns=("size", "decoder", "its growth", "whole network", "its growth", "GMAC", "their growth"),
        notes=["The target is for the decoder."],
    )
    _, network = make_pair()
    network.eval()
    network.decoder.deep_supervision = False
    sizes = (224, 448, 896)
    print(f"  {', '.join(map(str, sizes))}", file=sys.stderr, flush=True)
    decoder, whole, products = _measure(network, sizes, repeats)
    for number, size in enumerate(sizes):
        figures = (f"{1e3 * decoder[size].cpu:.0f} ms", f"{1e3 * whole[size].cpu:.0f} ms", f"{products[size]:.2f}")
        if number == 0:
            found.add(str(size), figures[0], "", figures[1], "", figures[2], "")
            continue
        before = sizes[number - 1]
        steps = (decoder[size].over(decoder[before]), whole[size].over(whole[before]))
        growth = (*(f"{step:.2f}x" for step in steps), f"{products[size] / products[before]:.2f}x")
        cells = [cell for pair in zip(figures, growth, strict=True) for cell in pair]
        found.add(str(size), *cells, reached=steps[0], target=at_most(4.2))
    return found


def _measure(
    network: PVTGDLA, sizes: tuple[int, ...], repeats: int
) -> tuple[dict[int, Timing], dict[int, Timing], dict[int, float]]:
    decoder, whole = {}, {}
    with torch.inference_mode():
        for size in sizes:
            x = images(1, size)
            features = network.encoder(x)
            whole[str(size)] = lambda x=x: network(x)
            decoder[str(size)] = lambda x=x, features=features: our_tail(
                network, our_stages(network, features), x, auxiliary=False
            )
        times = alternate(decoder, repeats), alternate(whole, repeats)
    products = {size: count_products(network, (1, 1, size, size)).total / 1e9 for size in sizes}
    found = [{int(name): timing for name, timing in part.items()} for part in times]
    return found[0], found[1], products


if __name__ == "__main__":
    run_script(table, __doc__)
