"""What must hold for every model on bags: padding, batches and modes change nothing, everything learns."""

import inspect
import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nnunet_gdla.mil.models import DSMIL, MODELS, build_model
from tests.mil.slide_models import shared_gradients

IN_DIM, OUTPUTS, STRIDE = 16, 3, 256.0
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "abmil": ("abmil", {"width": 24, "attention_width": 12}),
    "dsmil": ("dsmil", {"width": 24, "query_width": 12}),
    "transmil": ("transmil", {"width": 32}),
    "vit4": ("vit4", {"width": 24, "depth": 3, "num_heads": 3, "gate_hidden": 5}),
    "vit4 xsa": ("vit4", {"width": 24, "depth": 2, "num_heads": 3, "correction": "xsa"}),
    "vit4 plain": ("vit4", {"width": 24, "depth": 2, "num_heads": 3, "correction": "none"}),
    "slide_transformer": ("slide_transformer", {"width": 24, "depth": 3, "num_heads": 3, "num_landmarks": 8}),
}
models = pytest.mark.parametrize("name", SMALL)
ORDER_DOES_NOT_MATTER = ("abmil", "dsmil", "vit4", "vit4 xsa", "vit4 plain")


def _model(name: str) -> nn.Module:
    kind, options = SMALL[name]
    model = build_model(kind, IN_DIM, OUTPUTS, **options)
    with torch.no_grad():  # gates start shut
        for parameter_name, parameter in model.named_parameters():
            if ".gate." in parameter_name:
                parameter.add_(0.5 * torch.randn_like(parameter))
    return model.eval()


def _bag(n: int, batch: int = 1) -> tuple[Tensor, Tensor]:
    """Features, and places on a lattice with holes."""
    side = 2 * max(1, math.isqrt(n))
    cells = torch.stack([torch.randperm(side * side)[:n] for _ in range(batch)])
    return torch.randn(batch, n, IN_DIM), torch.stack([cells % side, cells // side], -1) * int(STRIDE)


def test_every_model_is_here() -> None:
    assert {kind for kind, _ in SMALL.values()} == set(MODELS) - {"grid_vit"}  # that one takes images


@models
def test_gradients_of_two_backward_passes_add_up(name: str) -> None:
    model = _model(name)
    x, xy = _bag(9)
    gradients = []
    for _ in range(2):
        model(x, xy, STRIDE).square().sum().backward()
        gradients.append({key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None})
    for key, once in gradients[0].items():
        torch.testing.assert_close(gradients[1][key], 2 * once, msg=lambda text, key=key: f"{key}: {text}")


@models
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("n", [1, 9, 37])
def test_no_two_gradients_share_memory(n: int, autocast: bool, name: str) -> None:
    model = _model(name).train()
    for _ in range(2):
        x, xy = _bag(n)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            outputs = model.training_logits(x, xy, STRIDE) if isinstance(model, DSMIL) else (model(x, xy, STRIDE),)
        sum(output.float().square().sum() for output in outputs).backward()
        assert shared_gradients(model) == []


def test_no_two_gradients_of_the_image_model_share_memory() -> None:
    model = build_model("grid_vit", 3, OUTPUTS, image_size=20, patch_size=4, width=24, depth=3, num_heads=3).train()
    for _ in range(2):
        model(torch.randn(2, 3, 20, 20)).square().sum().backward()
        assert shared_gradients(model) == []


@models
@pytest.mark.parametrize("n", [1, 2, 17, 37])
def test_padding_with_a_mask_changes_nothing(name: str, n: int) -> None:
    model = _model(name)
    x, xy = _bag(n)
    alone = model(x, xy, STRIDE)
    keep = torch.zeros(1, n + 9, dtype=torch.bool)
    keep[0, torch.randperm(n + 9)[:n].sort().values] = True
    padded, places = torch.full((1, n + 9, IN_DIM), math.nan), torch.zeros(1, n + 9, 2, dtype=torch.int64)
    padded[keep], places[keep] = x[0], xy[0]
    torch.testing.assert_close(model(padded, places, STRIDE, mask=keep), alone, rtol=1e-6, atol=1e-6)


@models
def test_padding_gets_no_gradient_and_gives_none(name: str) -> None:
    model, n = _model(name), 11
    x, xy = _bag(n)
    keep = torch.arange(n)[None] < 8
    cut, padded = x[:, :8].clone().requires_grad_(), x.masked_fill(~keep[..., None], math.nan).requires_grad_()
    (alone,) = torch.autograd.grad(model(cut, xy[:, :8], STRIDE).square().sum(), [cut])
    (within,) = torch.autograd.grad(model(padded, xy, STRIDE, mask=keep).square().sum(), [padded])
    torch.testing.assert_close(within[:, :8], alone, rtol=1e-5, atol=1e-7)
    assert (within[:, 8:] == 0).all()


@models
def test_a_batch_of_two_is_two_batches_of_one(name: str) -> None:
    model = _model(name)
    x, xy = _bag(20, batch=2)
    x[1] *= 30  # no companion may set another's scale
    single = torch.cat([model(x[i : i + 1], xy[i : i + 1], STRIDE) for i in range(2)])
    torch.testing.assert_close(model(x, xy, STRIDE), single, rtol=1e-6, atol=1e-6)
    keep = torch.ones(2, 20, dtype=torch.bool)
    torch.testing.assert_close(model(x, xy, STRIDE, mask=keep), single, rtol=1e-6, atol=1e-6)


@models
def test_every_parameter_learns(name: str) -> None:
    model = _model(name)
    x, xy = _bag(20)
    outputs = model.training_logits(x, xy, STRIDE) if isinstance(model, DSMIL) else (model(x, xy, STRIDE),)
    sum(output.square().sum() for output in outputs).backward()
    silent = [key for key, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert silent == []


def test_the_bag_loss_alone_would_leave_dsmils_scorer_untrained() -> None:
    """Why `training_logits` exists; published survival runs had this fault."""
    model = _model("dsmil")
    model(*_bag(20)).square().sum().backward()
    assert {key for key, p in model.named_parameters() if p.grad is None} == {
        "instance_head.weight",
        "instance_head.bias",
    }


@models
def test_evaluation_twice_is_equal(name: str) -> None:
    model = _model(name)
    x, xy = _bag(30)
    assert torch.equal(model(x, xy, STRIDE), model(x, xy, STRIDE))


@models
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_features(name: str, dtype: torch.dtype) -> None:
    model = _model(name)
    x, xy = _bag(20)
    half = x.to(dtype)
    torch.testing.assert_close(model(half, xy, STRIDE), model(half.float(), xy, STRIDE), rtol=1e-5, atol=1e-6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.isfinite(model(half, xy, STRIDE)).all()


@models
@pytest.mark.parametrize("training", [False, True])
def test_one_patch_only(name: str, training: bool) -> None:
    model = _model(name).train(training)
    x, xy = _bag(1)
    logits = model(x, xy, STRIDE)
    assert logits.shape == (1, OUTPUTS)
    logits.square().sum().backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())
    assert torch.isfinite(model.patch_scores(x, xy, STRIDE)).all()


@models
@pytest.mark.parametrize("n", [1, 5, 40])
def test_patch_scores_are_one_each_and_the_same_in_training_mode(name: str, n: int) -> None:
    model = _model(name)
    x, xy = _bag(n)
    scores = model.patch_scores(x, xy, STRIDE)
    assert scores.shape == (n,)
    assert not scores.requires_grad
    model.train()
    assert torch.equal(model.patch_scores(x, xy, STRIDE), scores)
    assert model.training


@pytest.mark.parametrize("name", ORDER_DOES_NOT_MATTER)
def test_the_order_of_patches_does_not_matter(name: str) -> None:
    model = _model(name)
    x, xy = _bag(30)
    order = torch.randperm(30)
    torch.testing.assert_close(model(x[:, order], xy[:, order], STRIDE), model(x, xy, STRIDE), rtol=1e-5, atol=1e-6)
    shuffled = model.patch_scores(x[:, order], xy[:, order], STRIDE)
    torch.testing.assert_close(shuffled, model.patch_scores(x, xy, STRIDE)[order], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["abmil", "dsmil", "vit4", "vit4 plain"])
def test_scores_are_shares_of_attention(name: str) -> None:
    scores = _model(name).patch_scores(*_bag(30), STRIDE)
    assert (scores >= 0).all()
    # a class token also attends to itself
    assert scores.sum() == pytest.approx(1.0) if name in ("abmil", "dsmil") else 0 < scores.sum() < 1


@models
def test_places_matter_only_where_they_are_asked_for(name: str) -> None:
    model = _model(name)
    x, xy = _bag(30)
    other = _bag(30)[1]
    same = torch.allclose(model(x, xy, STRIDE), model(x, other, STRIDE), atol=1e-7)
    assert same != model.needs_coords
    if not model.needs_coords:
        assert torch.equal(model(x), model(x, xy, STRIDE))


@models
def test_keyword_arguments_survive_json(name: str) -> None:
    kind, options = SMALL[name]
    defaults = {
        key: parameter.default
        for key, parameter in inspect.signature(MODELS[kind]).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    assert json.loads(json.dumps(defaults)) == defaults
    torch.manual_seed(0)
    first = build_model(kind, IN_DIM, OUTPUTS, **options)
    torch.manual_seed(0)
    second = build_model(kind, IN_DIM, OUTPUTS, **json.loads(json.dumps(options)))
    weights = second.state_dict()
    assert all(torch.equal(value, weights[key]) for key, value in first.state_dict().items())
    assert (first.in_dim, first.num_outputs) == (IN_DIM, OUTPUTS)
