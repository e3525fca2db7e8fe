"""The position convolution equals its naive twin and the golden files; rows that do not fill the image."""

import pytest
import torch
from torch import Tensor, nn

from nnunet_gdla.layers.ppeg import PPEG, square_side
from tests.reference.compare import assert_all_close, relative_error
from tests.reference.nystrom import ppeg_naive
from tests.srp_golden import SrpFile, srp_params


def _kernels(layer: PPEG) -> list[tuple[Tensor, Tensor]]:
    return [(conv.weight, conv.bias) for conv in (layer.k7, layer.k5, layer.k3) if conv.bias is not None]


@pytest.mark.parametrize("golden", srp_params("ppeg"))
def test_equals_its_golden_file(golden: SrpFile) -> None:
    tensors = golden.tensors
    layer = PPEG(tensors["x"].shape[-1])
    weights = {f"k{n}.{kind}": tensors[f"w.k{n}_{kind[0]}"] for n in (7, 5, 3) for kind in ("weight", "bias")}
    layer.load_state_dict(weights)
    out = layer(tensors["x"], (tensors["H"].item(), tensors["W"].item()))
    assert_all_close({"out": out}, {"out": tensors["out"]}, 5e-6)
    assert torch.equal(out[:, 0], tensors["x"][:, 0])


@pytest.mark.parametrize("grid", [(1, 1), (2, 1), (3, 5), (8, 8)])
def test_equals_the_naive_twin_with_gradients(grid: tuple[int, int]) -> None:
    layer = PPEG(6).double()
    x = torch.randn(2, 1 + grid[0] * grid[1], 6, dtype=torch.float64, requires_grad=True)
    names, parameters = zip(*layer.named_parameters(), strict=True)
    cotangent = torch.randn_like(x)

    def results(out: Tensor) -> dict[str, Tensor]:
        grads = torch.autograd.grad(out, [x, *parameters], cotangent)
        return {"out": out, **dict(zip(("x", *names), grads, strict=True))}

    assert_all_close(results(layer(x, grid)), results(ppeg_naive(x, grid, _kernels(layer))), 1e-12)


def test_cells_without_a_row_are_zero() -> None:
    layer = PPEG(4)
    x = torch.randn(2, 1 + 11, 4)
    padded = torch.cat([x, torch.zeros(2, 16 - 11, 4)], dim=1)
    torch.testing.assert_close(layer(x), layer(padded, (4, 4))[:, :12])


def test_a_square_is_the_default_grid() -> None:
    layer, x = PPEG(4), torch.randn(1, 1 + 25, 4)
    assert torch.equal(layer(x), layer(x, (5, 5)))
    assert [square_side(rows) for rows in (0, 1, 2, 4, 5, 100_000)] == [0, 1, 2, 2, 3, 317]


def test_autocast_does_not_round_the_rows_themselves() -> None:
    layer, x = PPEG(4), torch.randn(1, 1 + 25, 4)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(layer(x), x)


@pytest.mark.compile
def test_compiled_equals_eager() -> None:
    layer, x = PPEG(4), torch.randn(1, 1 + 11, 4)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert relative_error(compiled(x), layer(x)) < 1e-6


@pytest.mark.compile  # the shape checks would speak first
def test_rows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"12 patch rows of \(1, 13, 4\) do not fit on a grid of 3 x 3"):
        PPEG(4)(torch.zeros(1, 13, 4), (3, 3))
