"""What Gated SRP costs beside attention, against the order of operations of published code.

    python -m benchmarks.redundancy --patches 4096 16384 --clock cpu

The rival builds the graph by a loop over cells, h from a gathered (N, K, D) array and the correction from a gathered
(B, H, N, K, d) array, with autograd's own backward pass. Both run in one process, in turn; the table gives medians,
their ratio (rival over ours) and, for the correction, the bytes kept for backward beside its inputs and weights.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from nnunet_gdla.layers.redundancy import GatedSRP
from nnunet_gdla.ops.neighbours import NeighbourGraph, grid_neighbours, local_homogeneity

STRIDE, HEADS, HEAD_WIDTH, FEATURES = 256, 6, 64, 1536
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
Run = Callable[[], object]


def main() -> None:
    """Print one table over all sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patches", nargs="+", type=int, default=[4096, 16384], help="4096 16384 49152")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: sum over threads, for a busy machine")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(
        f"torch {torch.__version__}, {arguments.threads} thread(s), {arguments.clock} ms, median of {arguments.repeats}"
    )
    print("\n| patches | what | rival | ours | ratio |\n|---|---|---|---|---|")
    for patches in arguments.patches:
        for name, rival, ours in cases(patches):
            slow, fast = alternate(rival, ours, arguments.repeats, CLOCKS[arguments.clock])
            print(f"| {patches} | {name} | {1e3 * slow:.1f} | {1e3 * fast:.1f} | {slow / fast:.1f} |", flush=True)
        slow_bytes, fast_bytes = (kept_bytes(*correction(patches, of_rival)) for of_rival in (True, False))
        ratio = slow_bytes / fast_bytes
        print(f"| {patches} | kept, MB | {slow_bytes / 1e6:.1f} | {fast_bytes / 1e6:.1f} | {ratio:.1f} |", flush=True)


def alternate(rival: Run, ours: Run, repeats: int, clock: Callable[[], float]) -> tuple[float, float]:
    """Return the median seconds of both, run in turn after one run each that does not count."""
    seconds: dict[Run, list[float]] = {rival: [], ours: []}
    for turn in range(repeats + 1):
        for run, times in seconds.items():
            start = clock()
            run()
            if turn:
                times.append(clock() - start)
    return statistics.median(seconds[rival]), statistics.median(seconds[ours])


def cases(patches: int) -> list[tuple[str, Run, Run]]:
    """Return the name, the rival and ours of each comparison, after a check that they agree."""
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
        ("graph 3x3", lambda: graph_by_loop(coords, 3), lambda: grid_neighbours(coords, STRIDE)),
        ("graph 5x5", lambda: graph_by_loop(coords, 5), lambda: grid_neighbours(coords, STRIDE, window=5)),
        (
            "h, float32",
            lambda: gathered_homogeneity(features, graphs[3]),
            lambda: local_homogeneity(features, graphs[3]),
        ),
        (
            "h, float16",
            lambda: gathered_homogeneity(half.float(), graphs[3]),
            lambda: local_homogeneity(half, graphs[3]),
        ),
        ("correction, forward", stacked[1], fused[1]),
        ("correction, forward + backward", stacked[0], fused[0]),
    ]


def tissue(patches: int) -> Tensor:
    """Return the coordinates of patches that fill a disc in raster order, shifted off the origin."""
    edge = math.ceil(math.sqrt(4 * patches / math.pi)) + 2
    cells = torch.cartesian_prod(torch.arange(edge), torch.arange(edge))
    far = (cells - (edge - 1) / 2).square().sum(-1)
    kept = torch.zeros(len(cells), dtype=torch.bool)
    kept[far.argsort(stable=True)[:patches]] = True
    return cells[kept] * STRIDE + 77


def correction(patches: int, of_rival: bool) -> tuple[Callable[[], tuple[Tensor, ...]], Run, list[Tensor]]:
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


def kept_bytes(both: Run, _forward: Run, known: list[Tensor]) -> int:
    """Return the bytes of storages that are kept for backward and were not there before."""
    there = {tensor.untyped_storage().data_ptr() for tensor in known}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in there:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        both()
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


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
    main()
