"""What Gated SRP costs beside attention, against the order of operations of published code.

    python -m benchmarks.redundancy

The rival builds the graph by a loop over cells, h from a gathered (N, K, D) array and the correction from a gathered
(B, H, N, K, d) array, with autograd's own backward pass; results are compared before anything is timed. Bytes are those
kept for backward beside the inputs and weights, and the temporaries of h as the peak of fresh processes.
"""

import math
import sys
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.measure import Call, Table, Target, alternate, at_least, kept_bytes, peak_memory
from benchmarks.script import run_script
from nnunet_gdla.layers.redundancy import GatedSRP
from nnunet_gdla.ops.neighbours import NeighbourGraph, grid_neighbours, local_homogeneity

STRIDE, HEADS, HEAD_WIDTH, FEATURES = 256, 6, 64, 1536
PATCHES = 50_000
TEMPORARIES = 64 * 2**20


def table(quick: bool = True) -> Table:
    """Measure graph, homogeneity and correction at 50,000 patches."""
    repeats = 3 if quick else 9
    found = Table(
        "Slides: neighbour graph, homogeneity and the correction alone",
        f"{PATCHES} patches in a disc, {FEATURES} features, {HEADS} heads of {HEAD_WIDTH}. Medians of processor time "
        f"over {repeats} rounds, in turn.",
        "python -m benchmarks.redundancy",
    )
    for name, rival, ours, target in cases(PATCHES):
        print(f"  {name}", file=sys.stderr, flush=True)
        times = alternate({"rival": rival, "ours": ours}, repeats)
        found.add_times(name, times["rival"], times["ours"], target)
    sides = [correction(PATCHES, of_rival) for of_rival in (True, False)]
    found.add_bytes("correction, kept for backward", *_pair(kept_bytes(side[1], side[2]) for side in sides))
    peaks = _pair(peak_memory("benchmarks.redundancy:one_homogeneity", of_rival) for of_rival in (True, False))
    found.add_bytes("h, float32, temporaries", *peaks)
    at_most_64 = "yes" if peaks[1] <= TEMPORARIES else "**no**"
    found.notes.append(f"Temporaries of h at most 64 MB: {at_most_64} ({peaks[1] / 2**20:.0f} MB).")
    return found


def _pair(sizes: Iterable[int]) -> tuple[int, int]:
    rival, ours = sizes
    return rival, ours


def one_homogeneity(of_rival: bool) -> Call:
    """Make h ready to be computed once in this process."""
    features, graph = torch.randn(PATCHES, FEATURES), grid_neighbours(tissue(PATCHES), STRIDE)
    function = gathered_homogeneity if of_rival else local_homogeneity
    function(features[:64], grid_neighbours(tissue(64), STRIDE))  # libraries that load at first use
    return lambda: function(features, graph)


def cases(patches: int) -> list[tuple[str, Call, Call, Target | None]]:
    """Return the name, the rival, ours and the target of each comparison, after a check that they agree."""
    coords = tissue(patches)
    features, half = torch.randn(patches, FEATURES), torch.randn(patches, FEATURES).half()
    graphs = {window: grid_neighbours(coords, STRIDE, window=window) for window in (3, 5)}
    for window, graph in graphs.items():
        assert torch.equal(graph_by_loop(coords, window).index, graph.index)
    torch.testing.assert_close(gathered_homogeneity(features, graphs[3]), local_homogeneity(features, graphs[3]))
    stacked, fused = (correction(patches, of_rival) for of_rival in (True, False))
    for one, two in zip(stacked[0](), fused[0](), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4 * float(two.abs().max()))
    return [
        ("graph 3x3", lambda: graph_by_loop(coords, 3), lambda: grid_neighbours(coords, STRIDE), at_least(12)),
        ("graph 5x5", lambda: graph_by_loop(coords, 5), lambda: grid_neighbours(coords, STRIDE, window=5), None),
        (
            "h, float32",
            lambda: gathered_homogeneity(features, graphs[3]),
            lambda: local_homogeneity(features, graphs[3]),
            at_least(12),
        ),
        (
            "h, float16",
            lambda: gathered_homogeneity(half.float(), graphs[3]),
            lambda: local_homogeneity(half, graphs[3]),
            None,
        ),
        ("correction, forward", stacked[1], fused[1], None),
        ("correction, forward + backward", stacked[0], fused[0], None),
    ]


def tissue(patches: int) -> Tensor:
    """Return the coordinates of patches that fill a disc in raster order, shifted off the origin."""
    edge = math.ceil(math.sqrt(4 * patches / math.pi)) + 2
    cells = torch.cartesian_prod(torch.arange(edge), torch.arange(edge))
    far = (cells - (edge - 1) / 2).square().sum(-1)
    kept = torch.zeros(len(cells), dtype=torch.bool)
    kept[far.argsort(stable=True)[:patches]] = True
    return cells[kept] * STRIDE + 77


def correction(patches: int, of_rival: bool) -> tuple[Callable[[], tuple[Tensor, ...]], Call, list[Tensor]]:
    """Return forward with backward, forward alone, and the tensors that are there anyway."""
    generator = torch.Generator().manual_seed(0)
    rows = patches + 1  # a class token in front
    projected = torch.randn(1, rows, 3 * HEADS * HEAD_WIDTH, generator=generator)
    v = projected.unflatten(-1, (3, HEADS, HEAD_WIDTH)).permute(2, 0, 3, 1, 4)[2]
    y = torch.randn(1, HEADS, rows, HEAD_WIDTH, generator=generator).requires_grad_()
    cotangent = torch.randn(1, HEADS, rows, HEAD_WIDTH, generator=generator)
    homogeneity = torch.rand(1, patches, generator=generator)
    graph = grid_neighbours(tissue(patches), STRIDE)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = GatedSRP(HEADS, init="normal", init_scale=0.1)
    leaves = [y, *layer.parameters()]

    def forward() -> Tensor:
        if of_rival:
            return stacked_correction(layer, y, v, graph, homogeneity)
        return layer(y, v, graph, homogeneity, first=1)

    def both() -> tuple[Tensor, ...]:
        return torch.autograd.grad(forward(), leaves, cotangent)

    return both, forward, [projected, homogeneity, *graph, *leaves]


def graph_by_loop(coords: Tensor, window: int) -> NeighbourGraph:
    """Look every cell up in a dictionary."""
    cells = [(x // STRIDE, y // STRIDE) for x, y in coords.tolist()]
    first: dict[tuple[int, int], int] = {}
    for row, cell in enumerate(cells):
        first.setdefault(cell, row)
    steps = range(-(window // 2), window // 2 + 1)
    offsets = [(dx, dy) for dx in steps for dy in steps if (dx, dy) != (0, 0)]
    index = torch.tensor([[first.get((x + dx, y + dy), -1) for dx, dy in offsets] for x, y in cells])
    return NeighbourGraph(index, index >= 0, (index >= 0).float())


def gathered_homogeneity(features: Tensor, graph: NeighbourGraph) -> Tensor:
    """Gather (N, K, D) unit features, multiply, and average over filled slots."""
    unit = features / features.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    cosine = (unit[:, None] * unit[graph.index.clamp(min=0)]).sum(-1) * graph.mask
    return cosine.sum(-1) / graph.mask.sum(-1).clamp(min=1)


def stacked_correction(layer: GatedSRP, y: Tensor, v: Tensor, graph: NeighbourGraph, homogeneity: Tensor) -> Tensor:
    """Gather (B, H, N, K, d) values, then step by step to z, written into a copy of y."""
    gate, rows = layer.gate, slice(1, len(graph.index) + 1)
    assert gate.token_in is not None
    assert gate.token_out is not None
    assert gate.head_weight is not None
    assert gate.head_bias is not None
    assert gate.layer_bias is not None
    weight = (graph.mask * graph.weight)[None, None, :, :, None]
    stacked = v[:, :, rows].detach()[:, :, graph.index.clamp(min=0)]
    mean = (stacked * weight).sum(3) / weight.sum(3).clamp(min=1)
    r_hat = mean / mean.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    patches = y[:, :, rows]
    dot = (patches * r_hat).sum(-1, keepdim=True)
    norm = patches.detach().norm(dim=-1, keepdim=True)
    cosine = dot.detach() / (norm + 1e-12)
    heads = torch.cat([cosine, cosine.abs(), torch.log1p(norm)], dim=-1)
    count = graph.mask.sum(-1).float()[None]
    tokens = torch.stack([homogeneity, count / graph.index.shape[1], torch.log1p(count)], dim=-1)
    shared = gate.token_out(F.gelu(gate.token_in(tokens)))[:, None]
    own = (heads * gate.head_weight[None, :, None]).sum(-1, keepdim=True)
    raw = shared + own + gate.head_bias[None, :, None, None] + gate.layer_bias[None, :, None, None]
    z = y.clone()
    z[:, :, rows] = patches - torch.tanh(raw) * dot * r_hat
    return z


if __name__ == "__main__":
    run_script(table, __doc__)
