"""On a GPU: the same graphs, and the same numbers as on the CPU."""

import pytest
import torch
from torch import Tensor

from nnunet_gdla.layers.redundancy import GatedSRP
from nnunet_gdla.ops.exclusive import exclusive_projection
from nnunet_gdla.ops.neighbours import grid_neighbours, local_homogeneity, nearest_neighbours, shuffled
from nnunet_gdla.ops.redundancy import neighbourhood_mean
from tests.reference.compare import assert_all_close, gradients

ROWS = 5000


@pytest.mark.gpu
def test_graphs_are_the_same(device: torch.device) -> None:
    coords = torch.randint(-60, 60, (2, ROWS, 2))
    mask = torch.rand(2, ROWS) < 0.9
    here = grid_neighbours(coords, 2, window=5, weighting="gaussian", mask=mask)
    there = grid_neighbours(coords.to(device), 2, window=5, weighting="gaussian", mask=mask.to(device))
    near, nearest = nearest_neighbours(coords, 1, 8), nearest_neighbours(coords.to(device), 1, 8)
    for one, two in ((here, there), (shuffled(here, 3), shuffled(there, 3)), (near, nearest)):
        assert two.index.device.type == device.type
        assert torch.equal(one.index, two.index.cpu())
        assert torch.equal(one.mask, two.mask.cpu())
        torch.testing.assert_close(one.weight, two.weight.cpu())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_homogeneity_is_the_same(device: torch.device, dtype: torch.dtype) -> None:
    graph, features = grid_neighbours(torch.randint(0, 70, (ROWS, 2)), 1), torch.randn(ROWS, 192).to(dtype)
    expected = local_homogeneity(features, graph)
    assert_all_close({"h": local_homogeneity(features.to(device), graph.to(device)).cpu()}, {"h": expected}, 1e-5)


@pytest.mark.gpu
def test_mean_and_corrections_are_the_same_with_their_gradients(device: torch.device) -> None:
    graph = grid_neighbours(torch.randint(0, 70, (ROWS, 2)), 1)
    y, v = torch.randn(2, 1, 6, ROWS, 64).unbind()
    homogeneity, layer = torch.rand(1, ROWS), GatedSRP(6, init="normal", init_scale=0.1)

    def run(where: torch.device) -> dict[str, Tensor]:
        layer.to(where)
        inputs = [y.to(where), v.to(where)]
        each = {
            "mean": gradients(lambda x: neighbourhood_mean(x, graph.to(where)), inputs[:1]),
            "xsa": gradients(exclusive_projection, inputs),
            "srp": gradients(lambda x: layer(x, inputs[1], graph.to(where), homogeneity.to(where)), inputs[:1]),
        }
        return {f"{kind}.{name}": value.cpu() for kind, results in each.items() for name, value in results.items()}

    assert_all_close(run(device), run(torch.device("cpu")), 1e-4)
