"""Compiled and exported operators and layer equal the eager ones, also for sizes the exported program has not seen."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nnunet_gdla.layers.redundancy import GatedSRP
from nnunet_gdla.ops.exclusive import exclusive_projection
from nnunet_gdla.ops.neighbours import NeighbourGraph, grid_neighbours
from nnunet_gdla.ops.redundancy import neighbourhood_mean, redundancy_projection
from tests.reference.compare import assert_all_close, gradients

HEADS = 3
Function = Callable[..., Tensor]


class _Module(nn.Module):
    """`torch.export` takes modules only."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.layer = GatedSRP(HEADS, init="normal")

    def forward(self, tensors: list[Tensor], graph: NeighbourGraph) -> Tensor:
        if self.name == "mean":
            return neighbourhood_mean(tensors[0], graph)
        if self.name == "projection":
            return redundancy_projection(tensors[0], tensors[1], tensors[2])
        if self.name == "exclusive":
            return exclusive_projection(tensors[0], tensors[1])
        y, v = tensors[:2]
        return self.layer(y, v.detach(), graph, tensors[2][:, 0])


NAMES = pytest.mark.parametrize(
    ("name", "with_gradients"), [("mean", [0]), ("projection", [0, 1, 2]), ("exclusive", [0, 1]), ("layer", [0])]
)


def inputs(batch: int, rows: int) -> tuple[list[Tensor], NeighbourGraph]:
    graph = grid_neighbours(torch.randint(0, 7, (rows, 2)), 1)
    return [*torch.randn(2, batch, HEADS, rows, 4).unbind(), torch.rand(batch, HEADS, rows)], graph


@pytest.mark.compile
@NAMES
def test_compiled_equals_eager(name: str, with_gradients: list[int]) -> None:
    module, (tensors, graph) = _Module(name), inputs(2, 30)

    def run(forward: Function, *leaves: Tensor) -> Tensor:
        given = list(tensors)
        for place, leaf in zip(with_gradients, leaves, strict=True):
            given[place] = leaf
        return forward(given, graph)

    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    leaves = [tensors[place] for place in with_gradients]
    expected = gradients(lambda *some: run(module, *some), leaves)
    assert_all_close(gradients(lambda *some: run(compiled, *some), leaves), expected, 1e-6)


@pytest.mark.compile
@NAMES
def test_exported_equals_eager_for_other_batches_and_lengths(name: str, with_gradients: list[int]) -> None:
    module, (tensors, graph) = _Module(name), inputs(2, 30)
    free = torch.export.Dim.DYNAMIC
    slots = {0: free} if name in ("mean", "layer") else {}
    read = [True, name != "mean", name in ("projection", "layer")]
    shapes = ([{0: free, 2: free} if used else {} for used in read], NeighbourGraph(slots, slots, slots))  # type: ignore[arg-type]
    if name in ("projection", "exclusive"):
        graph = NeighbourGraph(*(part[:1] for part in graph))
    program = torch.export.export(module, (tensors, graph), dynamic_shapes=shapes)
    for batch, rows in ((2, 30), (3, 17)):
        new, new_graph = inputs(batch, rows)
        if name in ("projection", "exclusive"):
            new_graph = graph
        new = [tensor if used else old for tensor, old, used in zip(new, tensors, read, strict=True)]
        assert_all_close({"z": program.module()(new, new_graph)}, {"z": module(new, new_graph)}, 1e-6)
    assert with_gradients
