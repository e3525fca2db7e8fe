"""The whole Nystrom layer in one function equals projections around the naive attention, gradients included."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from nnunet_gdla.layers.redundancy import FixedSRP, GatedSRP
from nnunet_gdla.mil.models.slide_attention import SlideAttention
from nnunet_gdla.mil.models.tokens import SlideContext
from nnunet_gdla.ops import _nystrom_rows, nystrom_layer
from nnunet_gdla.ops.neighbours import NeighbourGraph, grid_neighbours
from nnunet_gdla.ops.nystrom_class_row import nystrom_class_row
from nnunet_gdla.ops.nystrom_layer import Correction, LayerWeights, Patches, nystrom_layer_fits
from nnunet_gdla.ops.redundancy import Alignment
from tests.mil.slide_golden import attention_layer, layer_context
from tests.reference.compare import assert_all_close, gradients
from tests.reference.nystrom import nystrom_attention_naive
from tests.reference.redundancy import neighbourhood_mean_naive, redundancy_projection_naive, unit_naive
from tests.srp_golden import SrpFile, srp_params

# batch, tokens, heads, head width, landmarks: one token, fewer tokens than landmarks, runs that do not come out even
SIZES = [(1, 1, 1, 2, 1), (2, 3, 2, 4, 8), (1, 16, 3, 2, 4), (2, 17, 2, 4, 4), (1, 61, 2, 3, 5)]
sizes = pytest.mark.parametrize("sizes", SIZES, ids=str)


@pytest.fixture(autouse=True)
def few_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several chunks, and the fast form for short sequences too."""
    monkeypatch.setattr(_nystrom_rows, "NUMBERS_AT_ONCE", 40)
    monkeypatch.setattr(nystrom_layer, "FEWEST_ROWS", 1)


def _tensors(sizes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    batch, tokens, heads, width, _ = sizes
    dim, generator = heads * width, torch.Generator().manual_seed(tokens)
    shapes = [(batch, tokens, dim), (3 * dim, dim), (3 * dim,), (dim, dim), (dim,)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def _naive(x: Tensor, qkv: Tensor, qkv_bias: Tensor, out: Tensor, out_bias: Tensor, **options: Any) -> Tensor:  # noqa: ANN401
    heads, edit = options.pop("num_heads"), options.pop("edit", None)
    q, k, v = F.linear(x, qkv, qkv_bias).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    y = nystrom_attention_naive(q, k, v, **options)
    if edit is not None:
        y = edit(y, v)
    return F.linear(y.transpose(1, 2).flatten(2), out, out_bias)


@sizes
@pytest.mark.parametrize("init", ["per_matrix", "global"])
def test_equals_projections_around_the_naive_twin(sizes: tuple[int, ...], init: str) -> None:
    options = {"num_heads": sizes[2], "num_landmarks": sizes[4], "pinv_init": init}

    def ours(x: Tensor, *weights: Tensor) -> Tensor:
        return nystrom_layer.nystrom_layer(x, LayerWeights(*weights), **options)  # type: ignore[arg-type]

    actual = gradients(ours, _tensors(sizes))
    assert_all_close(actual, gradients(lambda *some: _naive(*some, **options), _tensors(sizes)), 1e-9, floor=1e-3)


@sizes
@pytest.mark.parametrize("init", ["per_matrix", "global"])
def test_the_class_row_is_row_0_of_the_naive_twin(sizes: tuple[int, ...], init: str) -> None:
    options = {"num_heads": sizes[2], "num_landmarks": sizes[4], "pinv_init": init}

    def ours(x: Tensor, *weights: Tensor) -> Tensor:
        return nystrom_class_row(x, LayerWeights(*weights), **options)  # type: ignore[arg-type]

    def naive(*tensors: Tensor) -> Tensor:
        return _naive(*tensors, **options)[:, :1]

    assert_all_close(gradients(ours, _tensors(sizes)), gradients(naive, _tensors(sizes)), 1e-9, floor=1e-3)


def test_the_class_row_of_some_frozen_tensors() -> None:
    x, *weights = _tensors((2, 17, 2, 4, 4))

    def row(*trained: int) -> list[Tensor]:
        parts = [part.clone().requires_grad_(number in trained) for number, part in enumerate([x, *weights])]
        out = nystrom_class_row(parts[0], LayerWeights(*parts[1:]), num_heads=2, num_landmarks=4)
        return list(torch.autograd.grad(out.square().sum(), [parts[number] for number in trained]))

    whole = row(0, 1, 2, 3, 4)
    for number in range(5):
        assert torch.equal(row(number)[0], whole[number])


def _given(beta: Tensor) -> Callable[[Tensor, Alignment, Patches], Tensor]:
    return lambda _y, _found, patches: beta[patches.element : patches.element + 1, :, patches.rows]


def _lattice(batch: int, patches: int, *, shared: bool) -> NeighbourGraph:
    generator = torch.Generator().manual_seed(patches)
    coords = torch.randint(0, 7, (batch, patches, 2), generator=generator)
    return grid_neighbours(coords[0] if shared else coords, 1, weighting="gaussian")


@pytest.mark.parametrize("sizes", [(1, 16, 3, 2, 4), (2, 40, 2, 4, 4)], ids=str)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("first", "behind"), [(1, 0), (0, 0), (3, 5)])
def test_corrected_equals_the_naive_twins(sizes: tuple[int, ...], shared: bool, first: int, behind: int) -> None:
    patches = sizes[1] - first - behind
    graph = _lattice(sizes[0], patches, shared=shared)
    options = {"num_heads": sizes[2], "num_landmarks": sizes[4]}
    beta = torch.randn(sizes[0], sizes[2], patches, dtype=torch.float64)
    beta[..., ::5] = 0

    def ours(x: Tensor, qkv: Tensor, bias: Tensor, out: Tensor, out_bias: Tensor, beta: Tensor) -> Tensor:
        correction = Correction(graph, first, _given(beta))
        weights = LayerWeights(qkv, bias, out, out_bias)
        return nystrom_layer.nystrom_layer(x, weights, correction=correction, **options)  # type: ignore[arg-type]

    def naive(*tensors: Tensor) -> Tensor:
        def edit(y: Tensor, v: Tensor) -> Tensor:
            rows, z = slice(first, first + patches), []
            for b in range(len(y)):
                parts = graph if shared else NeighbourGraph(*(part[b] for part in graph))
                axis = unit_naive(neighbourhood_mean_naive(v[b, :, rows].detach(), *parts))
                z.append(redundancy_projection_naive(y[b, :, rows], axis, tensors[-1][b]))
            return torch.cat([y[:, :, :first], torch.stack(z), y[:, :, first + patches :]], dim=2)

        return _naive(*tensors[:-1], edit=edit, **options)

    inputs = [*_tensors(sizes), beta]
    assert_all_close(gradients(ours, inputs), gradients(naive, inputs), 1e-9, floor=1e-3)


@pytest.mark.parametrize("corrected", [False, True])
def test_gradcheck(corrected: bool) -> None:
    inputs = [tensor.requires_grad_() for tensor in _tensors((2, 6, 2, 2, 3))]
    graph = _lattice(2, 5, shared=False)
    beta = torch.randn(2, 2, 5, dtype=torch.float64, requires_grad=True)

    def layer(x: Tensor, *weights: Tensor) -> Tensor:
        # the axis is cut out of the graph, and would move with x and the weights: they are checked without correction
        correction = Correction(graph, 1, _given(beta)) if corrected else None
        parts = LayerWeights(*weights)
        return nystrom_layer.nystrom_layer(x, parts, num_heads=2, num_landmarks=3, correction=correction)

    if corrected:
        fixed = [tensor.detach() for tensor in inputs]
        assert torch.autograd.gradcheck(lambda _beta: layer(*fixed), [beta])
    else:
        assert torch.autograd.gradcheck(layer, inputs)


LAYERS = srp_params("attn_nystrom_plain", "attn_nystrom_short", "attn_srp_signed", "attn_srp_signed_streaming")


@pytest.mark.parametrize("golden", LAYERS)
def test_the_golden_layers_are_the_same_either_way(golden: SrpFile, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, context = attention_layer(golden), layer_context(golden)
    assert isinstance(layer, SlideAttention)
    layer.num_landmarks = min(layer.num_landmarks, 8)  # so that there are not too many for the fast form

    def run(fewest: int) -> dict[str, Tensor]:
        monkeypatch.setattr(nystrom_layer, "FEWEST_ROWS", fewest)
        x = golden.tensors["x"].clone().requires_grad_()
        out = layer(x, context)
        leaves = [x, *layer.parameters()]
        grads = torch.autograd.grad(out.square().sum(), leaves)
        return {"out": out.detach()} | {str(number): grad for number, grad in enumerate(grads)}

    assert_all_close(run(1), run(10**9), 2e-5, floor=1e-3)


def small_layer(correction: str) -> tuple[SlideAttention, Tensor, SlideContext]:
    torch.manual_seed(0)
    layer = SlideAttention(16, 2, correction=correction, num_landmarks=4)
    graph = _lattice(1, 40, shared=True)
    return layer, torch.randn(1, 45, 16), SlideContext(40, graph, torch.rand(1, 40))


def test_a_new_gate_changes_no_bit() -> None:
    layer, x, context = small_layer("srp")
    plain, *_ = small_layer("none")
    assert isinstance(layer.correction, GatedSRP)
    assert torch.equal(layer(x, context), plain(x, context))
    with torch.no_grad():
        assert torch.equal(layer(x, context), plain(x, context))


def test_coefficients_of_zero_change_no_bit() -> None:
    (layer, x, context), (plain, *_) = small_layer("fixed:0"), small_layer("none")
    assert torch.equal(layer(x, context), plain(x, context))
    with torch.no_grad():
        assert torch.equal(layer(x, context), plain(x, context))
        changed, *_ = small_layer("fixed:0.5")
        assert not torch.equal(changed(x, context), plain(x, context))


@pytest.mark.parametrize("correction", ["srp", "fixed:1.5", "fixed:learned", "none"])
def test_slide_attention_is_the_same_either_way(correction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x, context = small_layer(correction)
    if isinstance(layer.correction, GatedSRP):
        for weight in (layer.correction.gate.head_weight, layer.correction.gate.layer_bias):
            assert weight is not None
            torch.nn.init.normal_(weight)
    assert isinstance(layer.correction, GatedSRP | FixedSRP | None)
    results = []
    for fewest in (1, 10**9):
        monkeypatch.setattr(nystrom_layer, "FEWEST_ROWS", fewest)
        parameters = list(layer.parameters())
        grads = torch.autograd.grad(layer(x, context).square().sum(), parameters)
        with torch.no_grad():
            results.append({str(i): grad for i, grad in enumerate(grads)} | {"out": layer(x, context)})
    assert_all_close(results[0], results[1], 1e-4, floor=1e-3)


def test_the_class_row_alone_is_the_same_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x, context = small_layer("none")
    x.requires_grad_()
    results = []
    for fewest in (1, 10**9):
        monkeypatch.setattr(nystrom_layer, "FEWEST_ROWS", fewest)
        out = layer(x, context, class_only=True)
        grads = torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])
        with torch.no_grad():
            again = layer(x, context, class_only=True)
        results.append({str(i): grad for i, grad in enumerate(grads)} | {"out": out.detach(), "again": again})
    assert_all_close(results[0], results[1], 1e-4, floor=1e-3)
    torch.testing.assert_close(results[0]["out"], layer(x, context)[:, :1])


def test_backward_can_run_twice() -> None:
    layer, x, context = small_layer("srp")
    out = layer(x, context).square().sum()
    once = torch.autograd.grad(out, list(layer.parameters()), retain_graph=True)
    for one, two in zip(once, torch.autograd.grad(out, list(layer.parameters())), strict=True):
        assert torch.equal(one, two)


def test_the_other_form_is_taken_where_this_one_does_not_fit() -> None:
    weights = LayerWeights(torch.zeros(48, 16), torch.zeros(48), torch.zeros(16, 16), torch.zeros(16))
    x, fine = torch.zeros(1, 9, 16), {"num_heads": 2, "num_landmarks": 8}
    assert nystrom_layer_fits(x, weights, **fine)
    assert not nystrom_layer_fits(x, weights, num_heads=2, num_landmarks=17)
    assert not nystrom_layer_fits(x.half(), LayerWeights(*(w.half() for w in weights)), **fine)
    assert not nystrom_layer_fits(x.double(), weights, **fine)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not nystrom_layer_fits(x, weights, **fine)


def test_beta_sees_how_the_outputs_lie() -> None:
    _, x, context = small_layer("none")
    assert context.graph is not None
    weights = LayerWeights(*(torch.randn(shape) for shape in ((48, 16), (48,), (16, 16), (16,))))
    seen: list[slice] = []

    def beta(y: Tensor, found: Alignment, patches: Patches) -> Tensor:
        seen.append(patches.rows)
        torch.testing.assert_close(found.dot, (y * found.axis).sum(-1))
        torch.testing.assert_close(found.norm, y.norm(dim=-1))
        return torch.zeros(1, 2, y.shape[2])

    for at_once in (True, False):
        correction = Correction(context.graph, 1, beta, at_once)
        nystrom_layer.nystrom_layer(x, weights, num_heads=2, num_landmarks=4, correction=correction)
    assert seen.pop(0) == slice(0, 40)
    assert len(seen) > 1
    assert [row for rows in seen for row in range(rows.start, rows.stop)] == list(range(40))


@pytest.mark.compile  # the shape checks would speak first
def test_wrong_weights_are_refused() -> None:
    weights = LayerWeights(torch.zeros(40, 16), torch.zeros(40), torch.zeros(16, 16), torch.zeros(16))
    with pytest.raises(ValueError, match=r"weights \(40, 16\) do not project \(1, 9, 16\) for 2 heads"):
        nystrom_layer.nystrom_layer(torch.zeros(1, 9, 16), weights, num_heads=2)
