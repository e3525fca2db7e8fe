"""Attention layers and whole slide transformers against the golden numbers of the reference run."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from nnunet_gdla.mil.models.slide_attention import SlideAttention
from nnunet_gdla.mil.models.slide_diff import DifferentialNystromAttention
from tests.mil.slide_golden import (
    attention_layer,
    attention_names,
    golden_graph,
    layer_context,
    model_names,
    slide_transformer,
    stacked,
)
from tests.reference.compare import assert_all_close
from tests.srp_golden import SrpFile, srp_params

OUTPUT, GRADIENT = 5e-6, 5e-5
# The gate is nearly saturated in these, so that float32 itself is that far from float64.
SATURATED = ("srp_signed", "srp_signed_streaming", "srp_pre_q", "srp_pre_k", "srp_pre_v", "dense_srp")
SATURATED_OUTPUT, SATURATED_GRADIENT = 2e-5, 2e-3

LAYERS = (
    *("nystrom_plain", "nystrom_short", "srp_signed", "srp_signed_live", "srp_signed_streaming", "srp_cls_row"),
    *("srp_pre_q", "srp_pre_k", "srp_pre_v", "srp_pre_v_fixed2", "xsa_all", "xsa_patch_only", "diff_depth"),
    *("diff_cls_row", "dense_srp"),
)
MODELS = ("nystrom", "srp", "xsa", "diff", "nystrom_noppeg", "srp_pre_v", "srp_fixed2", "dense", "dense_srp")


def _layer_results(
    layer: SlideAttention | DifferentialNystromAttention, golden: SrpFile
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Return output and gradients of the layer, and both as they should be."""
    tensors = golden.tensors
    x = tensors["x"].clone().requires_grad_()
    out = layer(x, layer_context(golden))
    if "cot_out" not in tensors:
        return {"out": out}, {}, {"out": tensors["out"]}, {}
    names = attention_names(layer)
    parameters = dict(layer.named_parameters())
    grads = torch.autograd.grad(out, [x, *parameters.values()], tensors["cot_out"])
    actual = dict(zip(["x", *(names[name] for name in parameters)], grads, strict=True))
    wanted = golden.group("grad.")
    expected = {"x": tensors["grad_x"], **{name: stacked(wanted, name) for name in names.values()}}
    return {"out": out}, actual, {"out": tensors["out"]}, expected


@pytest.mark.parametrize("golden", srp_params(*(f"attn_{kind}" for kind in LAYERS)))
def test_an_attention_layer_equals_its_golden_file(golden: SrpFile) -> None:
    loose = golden.kind.removeprefix("attn_") in SATURATED
    out, grads, expected_out, expected_grads = _layer_results(attention_layer(golden), golden)
    assert_all_close(out, expected_out, SATURATED_OUTPUT if loose else OUTPUT)
    # a bias common to all keys moves no softmax: its gradient is rounding
    floor = 1e-3 * max((grad.abs().max().item() for grad in expected_grads.values()), default=0.0)
    assert_all_close(grads, expected_grads, SATURATED_GRADIENT if loose else GRADIENT, floor=floor)


@pytest.mark.parametrize("golden", srp_params("attn_srp_signed", "attn_dense_srp", "attn_srp_pre_k", "attn_srp_pre_v"))
def test_beta_of_a_layer_equals_its_golden_file(golden: SrpFile) -> None:
    layer, betas = attention_layer(golden), []
    assert isinstance(layer, SlideAttention)
    layer.get_submodule("correction.gate").register_forward_hook(lambda *call: betas.append(call[2]))
    layer(golden.tensors["x"], layer_context(golden))
    assert_all_close({"beta": betas[0]}, {"beta": golden.tensors["beta"].squeeze(-1)}, SATURATED_OUTPUT)


@pytest.mark.parametrize("golden", srp_params("attn_srp_cls_row"))
def test_the_class_row_equals_its_golden_file(golden: SrpFile) -> None:
    layer, context, tensors = attention_layer(golden), layer_context(golden), golden.tensors
    assert isinstance(layer, SlideAttention)
    row = layer.attention_row(tensors["x"], context)
    kept: list[Tensor] = []
    layer.get_submodule("correction").register_forward_hook(lambda *call: kept.extend([*call[1][:2], call[2]]))
    layer(tensors["x"], context)
    y, v, z = (stream[:, :, 1 : 1 + context.num_patches] for stream in kept)
    norm = (y - z).norm(dim=-1)
    direction = F.normalize(v, dim=-1)
    graph = golden_graph(golden)
    cosines = torch.einsum("bhnd,bhnkd->bhnk", direction, direction[:, :, graph.index.clamp(min=0)])
    count = graph.count.clamp(min=1)
    actual = {
        "cls_to_patch": row[:, :, 1 : 1 + context.num_patches],
        "cls_to_cls": row[:, :, 0],
        "corr_norm": norm,
        "corr_frac": norm / (y.norm(dim=-1) + 1e-8),
        "value_coherence": (cosines * graph.mask).sum(-1) / count,
    }
    assert_all_close(actual, {name: tensors[name] for name in actual}, SATURATED_OUTPUT)


@pytest.mark.parametrize("golden", srp_params("attn_diff_cls_row"))
def test_the_signed_class_row_equals_its_golden_file(golden: SrpFile) -> None:
    layer = attention_layer(golden)
    assert isinstance(layer, DifferentialNystromAttention)
    row = layer.attention_row(golden.tensors["x"], layer_context(golden))
    actual = {"cls_to_patch_signed": row[:, :, 1:], "lambda_full": layer.lambda_full().reshape(1)}
    assert_all_close(actual, {name: golden.tensors[name] for name in actual}, OUTPUT)


@pytest.mark.parametrize("golden", srp_params(*(f"model_{kind}" for kind in MODELS)))
@pytest.mark.parametrize("from_coords", [False, True])
def test_a_slide_transformer_equals_its_golden_file(golden: SrpFile, from_coords: bool) -> None:
    model, tensors = slide_transformer(golden), golden.tensors
    if from_coords:
        logits = model(tensors["features"], tensors["coords"][None], tensors["stride"].item())
    else:
        logits = model(tensors["features"], graph=golden_graph(golden))
    assert_all_close({"logits": logits}, {"logits": tensors["logits"]}, OUTPUT)
    if "ce_label" not in tensors:
        return
    names, parameters = model_names(model), dict(model.named_parameters())
    loss = F.cross_entropy(logits, tensors["ce_label"].reshape(1))
    grads = torch.autograd.grad(loss, list(parameters.values()))
    actual = dict(zip((names[name] for name in parameters), grads, strict=True))
    wanted = golden.group("grad.")
    largest = max(grad.abs().max().item() for grad in wanted.values())
    assert_all_close(actual, {name: stacked(wanted, name) for name in actual}, GRADIENT, floor=1e-3 * largest)
