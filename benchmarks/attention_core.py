"""The attention core of the mixer against the released order of operations, and softmax attention against torch's.

    python -m benchmarks.attention_core

The core is what lies between the mixer's two projections: feature map, both branches, normalisers, difference, norm and
gate. Shapes are those of PVT-GDLA-B2's three decoder stages at 224, batch 2. For softmax differential attention the
rival calls torch's scaled_dot_product_attention twice and subtracts.
"""

import sys

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.measure import Table, at_least
from benchmarks.released_layers import attention_core
from benchmarks.script import run_script
from benchmarks.subjects import Side, Versus
from nnunet_gdla.ops import differential_attention
from nnunet_gdla.ops.gated_differential import gated_differential_attention

BATCH, HEAD_WIDTH = 2, 32
STAGES = ((64, 2, 56), (128, 4, 28), (320, 10, 14))


def table(quick: bool) -> Table:
    """Measure every stage's core, then softmax differential attention at the same shapes."""
    repeats = 9 if quick else 25
    found = Table(
        "Attention core against the released order of operations",
        f"Batch {BATCH}, float32, projected tokens in, mixed tokens out. Medians of processor time over {repeats} "
        "rounds, both sides in turn.",
        "python -m benchmarks.attention_core",
    )
    for channels, heads, edge in STAGES:
        part = _core(channels, heads, edge)
        print(f"  {part.name}", file=sys.stderr, flush=True)
        part.add_evaluation(found, repeats, at_least(4.0))
        part.add_training(found, repeats, at_least(3.0))
    for _, heads, edge in STAGES:
        part = _softmax(heads, edge)
        print(f"  {part.name}", file=sys.stderr, flush=True)
        part.add_evaluation(found, repeats)
        part.add_training(found, repeats)
    return found


def _core(channels: int, heads: int, edge: int) -> Versus:
    generator = torch.Generator().manual_seed(0)
    projected = torch.randn(BATCH, edge * edge, 4 * channels, generator=generator).requires_grad_()
    lam = (0.5 + 0.1 * torch.randn(heads, HEAD_WIDTH, generator=generator)).requires_grad_()
    weight = torch.ones(HEAD_WIDTH).requires_grad_()
    leaves: dict[str, Tensor] = {"projected": projected, "lambda": lam, "norm": weight}
    return Versus(
        f"core, {channels} channels, {heads} heads, {edge} x {edge}",
        Side(lambda: attention_core(projected, lam, weight, heads, "silu"), leaves, []),
        Side(lambda: gated_differential_attention(projected, lam, weight, num_heads=heads, gate="silu"), leaves, []),
    )


def _softmax(heads: int, edge: int) -> Versus:
    generator = torch.Generator().manual_seed(0)
    shape = (BATCH, heads, edge * edge, HEAD_WIDTH)
    q, k, v = (torch.randn(shape, generator=generator).requires_grad_() for _ in range(3))
    lam = torch.full((heads,), 0.5).requires_grad_()

    def twice() -> Tensor:
        one, two = (
            F.scaled_dot_product_attention(q_half, k_half, v)
            for q_half, k_half in zip(q.chunk(2, dim=-1), k.chunk(2, dim=-1), strict=True)
        )
        return one - lam[:, None, None] * two

    leaves: dict[str, Tensor] = {"q": q, "k": k, "v": v, "lambda": lam}
    return Versus(
        f"softmax differential, {heads} heads, {edge} x {edge}, torch's attention called twice",
        Side(twice, leaves, []),
        Side(lambda: differential_attention(q, k, v, lam), leaves, []),
    )


if __name__ == "__main__":
    run_script(table, __doc__)
