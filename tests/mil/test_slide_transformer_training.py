"""Training the slide transformer: gradients, checkpointing, stochastic depth, half precision, the start."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from nnunet_gdla.mil.models import slide_block, tokens
from nnunet_gdla.mil.models.slide_block import SlideBlock
from nnunet_gdla.mil.models.slide_transformer import SlideTransformer
from tests.mil.slide_models import COMBINATIONS, STRIDE, bag, shared_gradients, slide_model
from tests.reference.compare import relative_error

combinations = pytest.mark.parametrize("options", COMBINATIONS, ids=lambda o: "-".join(str(v) for v in o.values()))


@combinations
def test_every_parameter_gets_a_gradient(options: dict[str, Any]) -> None:
    model = slide_model(**(options | {"drop_path_rate": 0.0})).train()
    F.cross_entropy(model(*bag(13), STRIDE), torch.tensor([1])).backward()
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert [name for name, grad in grads.items() if grad is None or not grad.any()] == []


GATES: list[dict[str, Any]] = [
    {"token_features": "rawlog"},
    {"gate_options": {"mean_norm": True, "bound": "hardtanh"}},
    {"gate_options": {"parameterisation": "direct"}},
    {"gate_options": {"factorisation": "head_only"}},
    {"gate_options": {"detach": False}},
]


@pytest.mark.parametrize("options", [*COMBINATIONS, *GATES], ids=lambda o: "-".join(str(v) for v in o.values()))
def test_no_two_gradients_share_memory(options: dict[str, Any]) -> None:
    model = slide_model(**options).train()
    for _ in range(2):
        F.cross_entropy(model(*bag(13), STRIDE), torch.tensor([1])).backward()
        assert shared_gradients(model) == []


@pytest.mark.parametrize("patches", [1, 2, 5])
@pytest.mark.parametrize("attention", ["nystrom", "softmax", "linear", "gdla", "diff"])
def test_training_on_few_patches(patches: int, attention: str) -> None:
    model = slide_model(attention=attention, correction="none" if attention == "diff" else "srp").train()
    F.cross_entropy(model(*bag(patches), STRIDE), torch.tensor([1])).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("init", ["zero", "normal", "xavier"])
def test_gates_leave_the_random_generator_where_it_was(init: str) -> None:
    slide_model(stirred=False, correction="none")
    expected = torch.get_rng_state()
    slide_model(stirred=False, correction="srp", gate_options={"init": init})
    assert torch.equal(torch.get_rng_state(), expected)


@pytest.mark.parametrize("attention", ["nystrom", "gdla", "diff"])
def test_checkpointing_changes_nothing_but_memory(attention: str) -> None:
    model = slide_model(attention=attention, correction="none" if attention == "diff" else "srp", drop_path_rate=0.5)
    results = []
    for enable in (False, True):
        model.train().zero_grad()
        model.set_grad_checkpointing(enable)
        torch.manual_seed(11)
        out = model(*bag(13), STRIDE)
        out.sum().backward()
        results.append([out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    assert len(results[0]) == len(results[1]) == 1 + len(list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_stochastic_depth_follows_the_cpu_generator() -> None:
    model, (features, coords) = slide_model(drop_path_rate=0.9).train(), bag(13, batch=4)
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(model(features, coords, STRIDE).detach())
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_stochastic_depth_keeps_the_mean_and_rises_with_depth() -> None:
    model = slide_model(depth=4, drop_path_rate=0.3)
    rates = [block.drop_path.rate for block in model.blocks if isinstance(block, SlideBlock)]
    torch.testing.assert_close(torch.tensor(rates), torch.tensor([0.0, 0.1, 0.2, 0.3]))
    drop = model.blocks[-1].drop_path.train()
    kept = drop(torch.ones(20_000, 1, 1))
    assert sorted(kept.unique().tolist()) == pytest.approx([0, 1 / 0.7])
    assert kept.mean().item() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("attention", ["nystrom", "gdla"])
def test_half_precision_and_strided_features_are_the_same_features(attention: str) -> None:
    model, (features, coords) = slide_model(attention=attention), bag(13)
    half = features.half()
    expected = model(half.float(), coords, STRIDE)
    grads = torch.autograd.grad(expected.sum(), list(model.parameters()))
    strided = half.repeat_interleave(2, dim=-1)[..., ::2]
    assert not strided.is_contiguous()
    for given in (half, strided, strided.float()):
        out = model(given, coords.repeat_interleave(2, 1)[:, ::2], STRIDE)
        assert relative_error(out, expected) < 1e-5
        actual = torch.autograd.grad(out.sum(), list(model.parameters()))
        assert all(relative_error(a, b, floor=1e-2) < 1e-4 for a, b in zip(actual, grads, strict=True))


def test_features_that_want_a_gradient_get_it() -> None:
    model, (features, coords) = slide_model(), bag(13, dtype=torch.float16)
    model(features.requires_grad_(), coords, STRIDE).sum().backward()
    assert features.grad is not None
    assert features.grad.abs().sum() > 0


@combinations
def test_autocast_stays_near_float32(options: dict[str, Any]) -> None:
    model, (features, coords) = slide_model(stirred=False, **options), bag(40, dtype=torch.float16)
    expected = model(features, coords, STRIDE)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(features, coords, STRIDE)
    out.float().sum().backward()
    assert relative_error(out, expected) < 0.05


def test_weights_start_small_and_cut_off() -> None:
    torch.manual_seed(0)
    model = SlideTransformer(64, 4)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d) and ".gate." not in name:
            assert module.weight.std().item() == pytest.approx(0.02, rel=0.2), name
            assert not module.bias.any(), name
    assert model.class_token.std().item() == pytest.approx(0.02, rel=0.2)


def test_pieces_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (features, coords) = slide_model().double(), bag(23, dtype=torch.float16)
    results = []
    for _ in range(2):
        out = model(features, coords, STRIDE)
        results.append([out, *torch.autograd.grad(out.sum(), list(model.parameters()))])
        monkeypatch.setattr(tokens, "ROWS_AT_ONCE", 5)
        monkeypatch.setattr(slide_block, "ROWS_AT_ONCE", 5)
    assert all(relative_error(a, b, floor=1e-2) < 1e-12 for a, b in zip(*results, strict=True))


def test_the_residual_stream_is_not_rounded_by_autocast() -> None:
    model, (features, coords) = slide_model(), bag(9)
    seen: list[torch.dtype] = []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(features, coords, STRIDE)
    assert set(seen) == {torch.float32}
