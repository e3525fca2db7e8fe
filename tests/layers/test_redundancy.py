"""Gated SRP and its fixed relatives: what must hold for any input."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nnunet_gdla.layers.redundancy import FixedSRP, GatedSRP, OutputSRP
from nnunet_gdla.ops import _gather
from nnunet_gdla.ops.neighbours import NeighbourGraph, grid_neighbours, local_homogeneity
from nnunet_gdla.ops.redundancy import neighbourhood_mean
from tests.reference.compare import assert_all_close, gradients, relative_error
from tests.reference.redundancy import gated_srp_naive


class Case:
    """A slide with duplicates, gaps and lonely patches, and a layer whose gate is not at its start."""

    def __init__(
        self,
        *,
        batch: int = 1,
        rows: int = 40,
        heads: int = 3,
        width: int = 5,
        reach: int = 5,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.graph = grid_neighbours(torch.randint(-reach, reach + 1, (rows, 2)), 1)
        self.y, self.v = torch.randn(2, batch, heads, rows, width, dtype=dtype).unbind()
        self.homogeneity = torch.rand(batch, rows, dtype=dtype)
        self.heads, self.dtype = heads, dtype

    def layer(self, **options: Any) -> GatedSRP:  # noqa: ANN401
        layer = GatedSRP(self.heads, hidden=5, init="normal", **options).to(self.dtype)
        for parameter in layer.parameters():
            nn.init.normal_(parameter)
        return layer

    def run(self, layer: nn.Module, y: Tensor | None = None) -> Tensor:
        return layer(self.y if y is None else y, self.v, self.graph, self.homogeneity)


@pytest.mark.parametrize("detach", [True, False])
def test_it_equals_naive_with_all_gradients(detach: bool) -> None:
    case = Case()
    layer = case.layer(detach=detach, delta=1.5)
    names, values = zip(*layer.gate.named_parameters(), strict=True)

    def fast(y: Tensor, *weights: Tensor) -> Tensor:
        gate = {f"gate.{name}": weight for name, weight in zip(names, weights, strict=True)}
        return torch.func.functional_call(layer, gate, (y, case.v, case.graph, case.homogeneity))

    def naive(y: Tensor, *weights: Tensor) -> Tensor:
        named = dict(zip(names, weights, strict=True))
        return gated_srp_naive(
            named, y[0], case.v[0], case.graph, case.homogeneity[0], detach=detach, delta=1.5
        ).unsqueeze(0)

    inputs = [case.y, *values]
    assert_all_close(gradients(fast, inputs), gradients(naive, inputs), 1e-11)


@pytest.mark.parametrize("kind", ["gated", "learned", "by homogeneity"])
def test_gradcheck_of_parameters_and_input(kind: str) -> None:
    case = Case(batch=2, rows=5, heads=2, width=2, reach=1)
    layer: nn.Module = {
        "gated": lambda: case.layer(detach=False),
        "learned": lambda: FixedSRP(2, "learned").double(),
        "by homogeneity": lambda: FixedSRP(2, "learned", start=0.5, homogeneity_gated=True).double(),
    }[kind]()
    names, values = zip(*layer.named_parameters(), strict=True)

    def function(y: Tensor, *weights: Tensor) -> Tensor:
        arguments = (y, case.v, case.graph, case.homogeneity)
        return torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), arguments)

    assert torch.autograd.gradcheck(
        function, [case.y.requires_grad_(), *(value.detach().requires_grad_() for value in values)]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("init_options", [{}, {"parameterisation": "direct"}, {"factorisation": "no_bias"}], ids=str)
def test_at_the_start_no_bit_changes(dtype: torch.dtype, init_options: dict[str, Any]) -> None:
    case = Case(batch=2, dtype=dtype)
    case.y[..., 0] = -0.0
    z = case.run(GatedSRP(3, **init_options))
    assert z.dtype == dtype
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    assert torch.equal(z.view(bits), case.y.view(bits))


def test_lonely_patches_keep_every_bit_whatever_they_hold() -> None:
    case = Case(dtype=torch.float32)
    alone = case.graph.count == 0
    assert alone.any()
    case.y[:, :, alone, 0], case.y[:, :, alone, 1] = torch.inf, -0.0
    z = case.run(case.layer())
    assert torch.equal(z[:, :, alone].view(torch.int32), case.y[:, :, alone].view(torch.int32))
    assert not torch.equal(z[:, :, ~alone], case.y[:, :, ~alone])


def test_without_any_neighbour_the_layer_is_the_identity() -> None:
    case = Case(rows=4)
    case.graph = grid_neighbours(10 * torch.arange(4)[:, None].expand(-1, 2), 1)
    assert torch.equal(case.run(case.layer()), case.y)
    assert torch.equal(case.run(FixedSRP(3, 2)), case.y)


@pytest.mark.parametrize("which", ["gated", "fixed"])
def test_rows_around_the_patches_keep_every_bit(which: str) -> None:
    case = Case(batch=2)
    layer = case.layer() if which == "gated" else FixedSRP(3, 2.0)
    wide_y, wide_v = (
        torch.cat([torch.full_like(x[:, :, :2], -0.0), x, 7 * x[:, :, :3]], dim=2) for x in (case.y, case.v)
    )
    wide_y.requires_grad_()
    z = layer(wide_y, wide_v, case.graph, case.homogeneity, first=2)
    assert torch.equal(z[:, :, 2:-3], case.run(layer))
    outside = [0, 1, -3, -2, -1]
    assert torch.equal(z[:, :, outside].view(torch.int64), wide_y[:, :, outside].view(torch.int64))
    cotangent = torch.randn_like(z)
    (grad,) = torch.autograd.grad(z, wide_y, cotangent)
    assert torch.equal(grad[:, :, outside], cotangent[:, :, outside])


def test_no_gradient_reaches_the_values_and_the_directions() -> None:
    for detach in (True, False):
        case = Case()
        case.y.requires_grad_()
        case.v.requires_grad_()
        case.run(case.layer(detach=detach)).sum().backward()
        assert case.v.grad is None
        assert case.y.grad is not None


def test_one_stream_may_be_both() -> None:
    # before attention: queries, keys or values along their own neighbours
    case = Case()
    stream = case.y.clone().requires_grad_()
    layer = case.layer()
    layer(stream, stream, case.graph, case.homogeneity).square().sum().backward()
    apart = case.y.clone().requires_grad_()
    layer(apart, case.y, case.graph, case.homogeneity).square().sum().backward()
    assert stream.grad is not None
    assert apart.grad is not None
    assert torch.equal(stream.grad, apart.grad)


def test_every_parameter_learns() -> None:
    for options in ({}, {"factorisation": "token_only"}, {"factorisation": "head_only"}, {"factorisation": "no_bias"}):
        case = Case()
        layer = case.layer(**options)
        case.run(layer).square().sum().backward()
        assert all(parameter.grad is not None and parameter.grad.any() for parameter in layer.parameters())


def test_batch_elements_are_independent_with_own_graphs() -> None:
    case = Case(batch=3)
    case.graph = grid_neighbours(torch.randint(-4, 5, (3, 40, 2)), 1)
    layer = case.layer(mean_norm=True)
    whole = case.run(layer)
    for one in range(3):
        alone = NeighbourGraph(*(part[one] for part in case.graph))
        part = slice(one, one + 1)
        z = layer(case.y[part], case.v[part], alone, case.homogeneity[part])
        torch.testing.assert_close(z, whole[part], rtol=1e-12, atol=1e-12)


def test_the_order_of_patches_does_not_matter() -> None:
    coords = torch.cartesian_prod(torch.arange(6), torch.arange(6))
    case, order, features = Case(rows=36), torch.randperm(36), torch.randn(36, 9)
    layer = case.layer()

    def run(rows: Tensor) -> Tensor:
        graph = grid_neighbours(coords[rows], 1)
        homogeneity = local_homogeneity(features[rows], graph)[None]
        return layer(case.y[:, :, rows], case.v[:, :, rows], graph, homogeneity)

    torch.testing.assert_close(run(order), run(torch.arange(36))[:, :, order], rtol=1e-12, atol=1e-12)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(batch=2, dtype=torch.float32)
    layer = case.layer()
    expected = gradients(lambda y: case.run(layer, y), [case.y])
    monkeypatch.setattr(_gather, "CHUNK_CPU", 7 * 30)
    assert_all_close(gradients(lambda y: case.run(layer, y), [case.y]), expected, 1e-6)


def test_what_nobody_sees_reaches_nobody() -> None:
    case = Case(dtype=torch.float32)
    seen = set(case.graph.index.flatten().tolist())
    hidden = [row for row in range(40) if row not in seen]
    assert hidden
    layer = case.layer()
    expected = case.run(layer)
    case.v[:, :, hidden] = torch.nan
    assert torch.equal(case.run(layer), expected)


@pytest.mark.parametrize("autocast", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_changes_nothing_and_half_precision_is_rounded_once(autocast: torch.dtype) -> None:
    case = Case(dtype=torch.float32)
    layer = case.layer()
    case.y, case.v = case.y.to(autocast), case.v.to(autocast)
    half = case.run(layer)
    with torch.autocast("cpu", dtype=autocast):
        assert torch.equal(case.run(layer), half)
    case.y, case.v = case.y.float(), case.v.float()
    assert half.dtype == autocast
    exact = case.run(layer)
    assert relative_error(half, exact) <= relative_error(exact.to(autocast), exact) + 1e-6


def test_little_is_kept_for_the_backward_pass() -> None:
    case = Case(rows=1000, heads=6, dtype=torch.float32)
    case.y, case.v = torch.randn(2, 1, 6, 1000, 64).unbind()
    case.y.requires_grad_()
    layer = GatedSRP(6, hidden=16)
    known = {tensor.untyped_storage().data_ptr() for tensor in (case.y, case.v, case.homogeneity, *case.graph)}
    known |= {parameter.untyped_storage().data_ptr() for parameter in layer.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # an output that its own node keeps would never be freed

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        case.run(layer)
    one_number = 4 * 1000
    assert sum(kept.values()) <= one_number * (10 * 6 + 3 * 16 + 8)
    assert sum(kept.values()) < case.y.nbytes / 3


class _Mean(nn.Module):
    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        return x.mean(1, keepdim=True) + scale * x


def test_around_an_attention_the_values_are_its_input() -> None:
    case = Case(dtype=torch.float32)
    x = torch.randn(1, 42, 15)
    layer = OutputSRP(_Mean(), 3)
    assert torch.equal(layer(x, case.graph, case.homogeneity, first=1), _Mean()(x))
    layer.srp = case.layer()
    y, v = (rows.unflatten(-1, (3, 5)).transpose(1, 2) for rows in (_Mean()(x, scale=2.0), x))
    expected = layer.srp(y, v, case.graph, case.homogeneity, first=1).transpose(1, 2).flatten(2)
    assert torch.equal(layer(x, case.graph, case.homogeneity, first=1, scale=2.0), expected)
    assert layer.no_weight_decay() == {
        f"srp.gate.{name}" for name in ("token_in.bias", "token_out.bias", "head_bias", "layer_bias")
    }


def test_names_without_weight_decay() -> None:
    layer = GatedSRP(3)
    assert layer.no_weight_decay() == {name for name, _ in layer.named_parameters() if name.endswith("bias")}
    assert FixedSRP(3, "learned").no_weight_decay() == {"beta"}
    assert FixedSRP(3, 1.0).no_weight_decay() == set()


def test_homogeneity_gates_a_fixed_coefficient() -> None:
    case = Case()
    case.homogeneity[0, :3] = torch.tensor([-0.5, 0, 1.5])
    z = case.run(FixedSRP(3, 2, homogeneity_gated=True))
    assert torch.equal(z[:, :, :2], case.y[:, :, :2])
    full = case.run(FixedSRP(3, 2))
    torch.testing.assert_close(z[:, :, 2], full[:, :, 2])


def test_the_mean_behind_the_directions_is_the_public_one() -> None:
    case = Case()
    z = case.run(FixedSRP(3, 1.0))
    mean = neighbourhood_mean(case.v, case.graph)
    torch.testing.assert_close((z * mean).sum(-1), torch.zeros_like(z[..., 0]), rtol=0, atol=1e-12)
