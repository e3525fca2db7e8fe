"""ABMIL, DSMIL, TransMIL, the dense and the image transformer: golden numbers, patch scores, names."""

import inspect
import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nnunet_gdla.mil.models import MODELS, GridViT, ViT4, build_model
from nnunet_gdla.mil.models.slide_attention import SlideAttention
from nnunet_gdla.mil.models.tokens import SlideContext
from nnunet_gdla.ops.neighbours import NeighbourGraph, grid_neighbours
from tests.mil import comparator_golden
from tests.mil.slide_golden import golden_graph
from tests.reference.compare import assert_all_close
from tests.srp_golden import SrpFile, srp_params
from tests.unchecked import unchecked

OUTPUT = 5e-6


@pytest.mark.parametrize("golden", srp_params("model_abmil"))
def test_abmil_equals_golden(golden: SrpFile) -> None:
    model, t = comparator_golden.abmil(golden), golden.tensors
    actual = {"logits": model(t["features"]), "attention": model.patch_scores(t["features"])[None]}
    assert_all_close(actual, {name: t[name] for name in actual}, OUTPUT)


@pytest.mark.parametrize("golden", srp_params("model_dsmil"))
def test_dsmil_equals_golden(golden: SrpFile) -> None:
    model, t = comparator_golden.dsmil(golden), golden.tensors
    hooked: list[Tensor] = []
    model.instance_head.register_forward_hook(lambda *call: hooked.append(call[2]))
    bag, top = model.training_logits(t["features"])
    instance = hooked[0][0]
    loss = (F.cross_entropy(bag, t["label"]) + F.cross_entropy(top, t["label"])) / 2
    weights = model._streams(t["features"])[2]
    actual = {"logits": bag, "instance_logits": instance, "dual_loss": loss, "attention_mean": weights.mean(1)}
    assert_all_close(actual, {name: t[name] for name in actual}, OUTPUT)
    assert_all_close({"logits": model(t["features"])}, {"logits": t["logits"]}, OUTPUT)
    torch.testing.assert_close(top, instance.amax(0, keepdim=True))
    torch.testing.assert_close(model.patch_scores(t["features"]), weights[0, bag.argmax()])


@pytest.mark.parametrize("golden", srp_params("model_transmil"))
def test_transmil_equals_golden(golden: SrpFile) -> None:
    model, t = comparator_golden.transmil(golden), golden.tensors
    assert_all_close({"logits": model(t["features"])}, {"logits": t["logits"]}, OUTPUT)


@pytest.mark.parametrize("golden", srp_params("model_vit4_plain", "model_vit4_srp"))
def test_vit4_equals_golden(golden: SrpFile) -> None:
    model, t = comparator_golden.vit4(golden), golden.tensors
    wanted = {"logits": t["logits"]}
    from_coords = model(t["features"], t["coords"][None], float(t["stride"]))
    assert_all_close({"logits": from_coords}, wanted, OUTPUT)
    assert_all_close({"logits": model(t["features"], graph=golden_graph(golden))}, wanted, OUTPUT)


@pytest.mark.parametrize("golden", srp_params("model_gridvit_srp"))
def test_grid_vit_equals_golden(golden: SrpFile) -> None:
    model, t = comparator_golden.grid_vit(golden), golden.tensors
    assert_all_close({"logits": model(t["image"])}, {"logits": t["logits"]}, OUTPUT)


def _context(golden: SrpFile) -> SlideContext:
    return SlideContext(golden.tensors["x"].shape[1] - 1, golden_graph(golden), golden.tensors["h_local"])


VIT4_LAYERS = srp_params("attn_vit4_plain", "attn_vit4_signed", "attn_vit4_xsa", "attn_vit4_fixed2")


@pytest.mark.parametrize("golden", VIT4_LAYERS)
def test_dense_layer_with_masked_keys_equals_golden(golden: SrpFile) -> None:
    layer, t = comparator_golden.dense_attention(golden), golden.tensors
    out = layer(t["x"], _context(golden), key_mask=t["key_mask"])
    assert_all_close({"out": out}, {"out": t["out"]}, OUTPUT)


@pytest.mark.parametrize("golden", srp_params("attn_grid_srp"))
def test_layer_on_an_image_equals_golden(golden: SrpFile) -> None:
    layer, t = comparator_golden.dense_attention(golden), golden.tensors
    batch, side = len(t["x"]), int(t["grid"])
    graph = NeighbourGraph(*(part.expand(batch, -1, -1) for part in golden_graph(golden)))
    context = SlideContext(side**2, graph, t["h_local"])
    assert_all_close({"out": layer(t["x"], context)}, {"out": t["out"]}, OUTPUT)
    # the model finds the same neighbours by itself
    model = GridViT(3, 2, image_size=4 * side, patch_size=4, width=12, depth=2, num_heads=2)
    assert torch.equal(model.neighbour_index, golden_graph(golden).index)
    assert torch.equal(model.neighbour_mask, golden_graph(golden).mask)


@pytest.mark.parametrize("golden", srp_params("attn_vit4_signed", "attn_grid_srp"))
def test_beta_of_dense_layers_equals_golden(golden: SrpFile) -> None:
    layer, betas = comparator_golden.dense_attention(golden), []
    layer.get_submodule("correction.gate").register_forward_hook(lambda *call: betas.append(call[2]))
    context = _context(golden)
    if golden_graph(golden).index.ndim == 2:
        graph = NeighbourGraph(*(part.expand(len(golden.tensors["x"]), -1, -1) for part in golden_graph(golden)))
        context = context._replace(graph=graph)
    layer(golden.tensors["x"], context, key_mask=golden.tensors.get("key_mask"))
    assert_all_close({"beta": betas[0]}, {"beta": golden.tensors["beta"].squeeze(-1)}, OUTPUT)


DENSE: dict[str, Any] = {
    "vit4": lambda **k: ViT4(16, 3, width=24, num_heads=3, gate_hidden=5, **k),
    "grid_vit": lambda **k: GridViT(3, 3, image_size=20, patch_size=4, width=24, depth=3, num_heads=3, **k),
}
dense = pytest.mark.parametrize("build", DENSE.values(), ids=DENSE.keys())


def _inputs(model: nn.Module) -> tuple[Any, ...]:
    if isinstance(model, GridViT):
        return (torch.randn(1, 3, 20, 20),)
    coords = torch.stack([torch.arange(20) % 5, torch.arange(20) // 5], -1)[None]
    return torch.randn(1, 20, 16), coords, 1.0


@dense
def test_a_fresh_gate_changes_nothing(build: Any) -> None:  # noqa: ANN401
    models = []
    for correction in ("srp", "none"):
        torch.manual_seed(3)
        models.append(build(correction=correction).eval())
        torch.rand(1)
    gated, plain = models
    shared = dict(plain.named_parameters())
    assert all(torch.equal(p, shared[name]) for name, p in gated.named_parameters() if "correction" not in name)
    inputs = _inputs(gated)
    assert torch.equal(gated(*inputs), plain(*inputs))


@dense
def test_the_generator_is_left_alike(build: Any) -> None:  # noqa: ANN401
    draws = []
    for correction in ("srp", "none"):
        torch.manual_seed(3)
        build(correction=correction)
        draws.append(torch.rand(1))
    assert draws[0] == draws[1]


@dense
def test_the_last_block_has_no_gate_and_the_others_have(build: Any) -> None:  # noqa: ANN401
    model = build(correction="srp")
    attentions = [block.attention for block in model.blocks]
    assert all(isinstance(layer, SlideAttention) for layer in attentions)
    assert [layer.correction is not None for layer in attentions] == [True] * (len(attentions) - 1) + [False]
    names = [name for name, _ in model.named_modules() if name.endswith(".gate")]
    assert names == [f"blocks.{i}.attention.correction.gate" for i in range(len(attentions) - 1)]


@dense
@pytest.mark.parametrize("correction", ["srp", "none", "xsa", "fixed:1.0", "fixed:learned"])
def test_checkpointing_changes_nothing(build: Any, correction: str) -> None:  # noqa: ANN401
    model = build(correction=correction, drop_path_rate=0.0).train()
    inputs, found = _inputs(model), []
    for enable in (False, True):
        model.set_grad_checkpointing(enable)
        out = model(*inputs)
        grads = torch.autograd.grad(out.square().sum(), list(model.parameters()))
        found.append({"out": out, **{str(i): grad for i, grad in enumerate(grads)}})
    assert_all_close(found[1], found[0], 1e-6, floor=1e-6)


def test_vit4_says_what_it_needs() -> None:
    model = DENSE["vit4"]()
    assert model.needs_coords
    with pytest.raises(ValueError, match="pass coords and stride, or graph"):
        model(torch.randn(1, 5, 16))
    assert not DENSE["vit4"](correction="none").needs_coords
    assert not DENSE["vit4"](correction="srp", depth=1).needs_coords


def test_grid_vit_takes_its_own_image_size_only() -> None:
    model = DENSE["grid_vit"]()
    with pytest.raises(ValueError, match=r"images \(1, 3, 24, 20\) must be \(batch, 3, 20, 20\)"):
        model(torch.randn(1, 3, 24, 20))
    with pytest.raises(ValueError, match="patch_size 16 must divide image_size 100"):
        GridViT(3, 2, image_size=100)


def test_transmil_refuses_heads_that_do_not_divide() -> None:
    with pytest.raises(ValueError, match="num_heads 8 must divide width 60"):
        build_model("transmil", 16, 2, width=60)


def test_published_sizes() -> None:
    """Parameters by hand, from the text's widths."""

    def count(model: nn.Module) -> int:
        return sum(p.numel() for p in model.parameters())

    embed = 1536 * 512 + 512
    assert count(build_model("abmil", 1536, 4)) == embed + 2 * (512 * 128 + 128) + 129 + 513 * 4
    assert count(build_model("dsmil", 1536, 4)) == embed + 513 * 4 + 513 * 128 + 129 * 128 + 4 * 4 * 512 + 4
    layer = 512 * 3 * 512 + 8 * 33 + 513 * 512 + 2 * 512
    ppeg = 512 * (49 + 25 + 9 + 3)
    assert count(build_model("transmil", 1536, 4)) == embed + 512 + 2 * layer + ppeg + 2 * 512 + 513 * 4


def test_unknown_model_lists_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match="unknown model 'clam'; choose one of slide_transformer, vit4, grid_vit, abmil"
    ):
        build_model("clam", 16, 2)
    assert json.loads(json.dumps(list(MODELS))) == list(MODELS)


@pytest.mark.parametrize("name", ["abmil", "dsmil", "transmil", "vit4"])
def test_wrong_shapes_are_named(name: str) -> None:
    options = {"correction": "none"} if name == "vit4" else {}
    model = build_model(name, 16, 2, **options)
    with unchecked():
        for features, message in (
            (torch.randn(1, 5, 8), r"features \(1, 5, 8\) must be \(batch, patches, 16\)"),
            (torch.randn(5, 16), r"features \(5, 16\)"),
            (torch.randn(1, 0, 16), "at least one patch"),
        ):
            with pytest.raises(ValueError, match=message):
                model(features)
        with pytest.raises(ValueError, match="without any patch"):
            model(torch.randn(2, 3, 16), mask=torch.tensor([[True] * 3, [False] * 3]))


@pytest.mark.parametrize("name", ["abmil", "dsmil", "transmil", "vit4", "slide_transformer"])
def test_what_is_no_floating_point_tensor_is_named(name: str) -> None:
    options = {"correction": "none"} if name in ("vit4", "slide_transformer") else {}
    model = build_model(name, 16, 2, **options)
    with unchecked():
        with pytest.raises(TypeError, match=r"features are a numpy\.ndarray, not a torch tensor"):
            model(np.zeros((1, 5, 16)))
        with pytest.raises(TypeError, match=r"coords are a builtins\.list"):
            model(torch.zeros(1, 5, 16), [[0, 0]] * 5)
        for dtype in (torch.int64, torch.bool, torch.complex64):
            with pytest.raises(ValueError, match=rf"features \(1, 5, 16\) {dtype} must be floating point"):
                model(torch.zeros(1, 5, 16, dtype=dtype))


def test_grid_vit_images_are_independent_and_everything_learns() -> None:
    model = DENSE["grid_vit"](drop_path_rate=0.0)
    with torch.no_grad():  # gates start shut; wide open their tanh would have no slope
        for name, parameter in model.named_parameters():
            if ".gate." in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
    images = torch.randn(3, 3, 20, 20)
    single = torch.cat([model(images[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(model(images), single, rtol=1e-5, atol=1e-6)
    single.square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


def test_grid_vit_scores_are_the_attention_of_every_patch() -> None:
    model, images = DENSE["grid_vit"]().train(), torch.randn(1, 3, 20, 20)
    scores = model.patch_scores(images)
    assert scores.shape == (25,)
    assert 0 < scores.sum() < 1
    assert torch.equal(model.patch_scores(images), scores)  # no drop path
    assert model.training


def test_a_neighbour_graph_may_come_with_a_mask() -> None:
    model = DENSE["vit4"]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    x, coords, stride = _inputs(model)
    keep = torch.arange(20)[None] % 3 > 0
    cut = model(x[keep][None], coords[keep][None], stride)
    graph = grid_neighbours(coords[0], stride)
    torch.testing.assert_close(model(x, graph=graph, mask=keep), cut, rtol=1e-5, atol=1e-6)
    batch = NeighbourGraph(*(part[None] for part in graph))
    torch.testing.assert_close(model(x, graph=batch, mask=keep), cut, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(model(x, coords, stride), cut, atol=1e-4)


@pytest.mark.parametrize("name", [*MODELS])
def test_a_size_of_nothing_is_refused_by_its_name(name: str) -> None:
    sizes = {"in_dim", "num_outputs", "width", "depth", "num_heads", "gate_hidden", "attention_width", "query_width"}
    taken = sizes & set(inspect.signature(MODELS[name]).parameters)
    assert {"in_dim", "num_outputs", "width"} < taken
    for size in taken:
        for value in (0, -8):
            options: dict[str, Any] = {"in_dim": 8, "num_outputs": 2, size: value}
            with pytest.raises(ValueError, match=f"{size} must be at least 1, got {value}"):
                build_model(name, **options)
