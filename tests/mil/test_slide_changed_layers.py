"""Slide models whose layers somebody has wrapped, watched or switched to plain forms; second derivatives."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nnunet_gdla.mil import SlideTransformer
from nnunet_gdla.ops import use_forms
from nnunet_gdla.ops.exclusive import exclusive_projection

PATCHES = 30
LAYERS = {
    "srp": ("blocks.1.attention.qkv", "position.k7", "position.k5", "position.k3", "GATE.token_in", "GATE.token_out"),
    "none": ("blocks.1.attention.qkv", "blocks.0.attention.qkv", "embed"),
    "diff": ("blocks.1.attention.qkv",),
    "gdla": ("blocks.1.attention.qkvg",),
}
CASES = [(kind, name) for kind, names in LAYERS.items() for name in names]


class Doubled(nn.Module):
    """Shows the weights of what it wraps, as adapters do, and gives twice its output."""

    def __init__(self, inner: Any) -> None:  # noqa: ANN401 - Linear or Conv2d
        super().__init__()
        self.inner, self.weight, self.bias = inner, inner.weight, inner.bias

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.inner(x)


def _model(kind: str) -> SlideTransformer:
    torch.manual_seed(0)
    named = kind in ("srp", "none")
    options: dict[str, Any] = {"correction": kind if named else "none", "attention": "nystrom" if named else kind}
    model = SlideTransformer(16, 3, width=32, num_heads=2, depth=2, num_landmarks=4, **options).eval()
    for part in model.modules():
        if hasattr(part, "head_weight"):  # a new gate does nothing
            for weight in (part.head_weight, part.token_out.weight):
                nn.init.normal_(weight, std=0.1)
    return model


def _run(model: SlideTransformer) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    rows = torch.arange(PATCHES)
    coords = torch.stack([rows % 6, rows // 6], dim=-1)[None] * 512
    return model(torch.randn(1, PATCHES, 16, generator=generator), coords, 512.0)


def _place(model: SlideTransformer, name: str) -> tuple[nn.Module, str]:
    if name.startswith("GATE."):
        gate = next(part for part in model.modules() if hasattr(part, "head_weight"))
        return gate, name.removeprefix("GATE.")
    parent, _, last = name.rpartition(".")
    return model.get_submodule(parent), last


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_wrapped_layer_is_called(kind: str, name: str) -> None:
    wrapped, doubled = _model(kind), _model(kind)
    parent, last = _place(wrapped, name)
    setattr(parent, last, Doubled(getattr(parent, last)))
    parent, last = _place(doubled, name)
    with torch.no_grad():
        for parameter in getattr(parent, last).parameters():
            parameter.mul_(2)
    torch.testing.assert_close(_run(wrapped), _run(doubled), rtol=1e-5, atol=1e-5)
    assert not torch.equal(_run(wrapped), _run(_model(kind)))


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_hook_fires(kind: str, name: str) -> None:
    model, seen = _model(kind), []
    parent, last = _place(model, name)
    getattr(parent, last).register_forward_hook(lambda *_: seen.append(1))
    torch.testing.assert_close(_run(model), _run(_model(kind)), rtol=1e-5, atol=1e-5)
    assert seen


@pytest.mark.parametrize("kind", list(LAYERS))
def test_the_switch_reaches_slide_models(kind: str) -> None:
    model = _model(kind)
    fused = torch.autograd.grad(_run(model).sum(), list(model.parameters()), allow_unused=True)
    with use_forms("plain"):
        plain = torch.autograd.grad(_run(model).sum(), list(model.parameters()), allow_unused=True)
    for one, two in zip(fused, plain, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["srp", "none"])
def test_second_derivatives_are_refused_not_wrong(kind: str) -> None:
    model = _model(kind)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(_run(model).sum(), list(model.parameters()), create_graph=True, allow_unused=True)
    y, v = (torch.randn(1, 1, 3, 4, requires_grad=True) for _ in range(2))
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(exclusive_projection(y, v).sum(), y, create_graph=True)


def test_a_functional_call_with_plain_tensors_and_dynamic_quantisation() -> None:
    model = _model("none")
    rows = torch.arange(PATCHES)
    coords = torch.stack([rows % 6, rows // 6], dim=-1)[None] * 512
    x = torch.randn(1, PATCHES, 16)
    values = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.testing.assert_close(torch.func.functional_call(model, values, (x, coords, 512.0)), model(x, coords, 512.0))
