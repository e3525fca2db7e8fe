"""What somebody hooks into, wraps or replaces in a slide attention layer takes effect in long sequences too."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from nnunet_gdla.layers.redundancy import GatedSRP
from nnunet_gdla.mil.models.slide_attention import SlideAttention
from nnunet_gdla.ops import _nystrom_rows, nystrom_layer, use_forms
from tests.ops.test_nystrom_layer import small_layer


@pytest.fixture(autouse=True)
def few_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several chunks, and the fast form for short sequences too."""
    monkeypatch.setattr(_nystrom_rows, "NUMBERS_AT_ONCE", 40)
    monkeypatch.setattr(nystrom_layer, "FEWEST_ROWS", 1)


def test_a_hook_on_a_projection_sees_every_token() -> None:
    layer, x, context = small_layer("none")
    seen: list[tuple[int, ...]] = []
    layer.qkv.register_forward_hook(lambda _module, _inputs, out: seen.append(tuple(out.shape)))
    layer(x, context)
    assert seen == [(1, 45, 48)]


def test_a_hook_before_a_projection_is_heard() -> None:
    layer, x, context = small_layer("none")
    plain = layer(x, context)
    layer.out_proj.register_forward_pre_hook(lambda _module, inputs: (2 * inputs[0],))
    assert not torch.allclose(layer(x, context), plain)


def _emptied(layer: SlideAttention, how: str) -> None:
    """Change the correction so that it returns nothing but zeros."""
    part = layer.correction
    assert isinstance(part, GatedSRP)

    class Nothing(GatedSRP):
        def forward(self, y: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # noqa: ANN401
            return 0 * super().forward(y, *args, **kwargs)

    class Wrapper(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *args: Any, **kwargs: Any) -> Tensor:  # noqa: ANN401
            zeros: Tensor = 0 * self.inner(*args, **kwargs)
            return zeros

    if how == "hook":
        part.register_forward_hook(lambda _module, _inputs, out: 0 * out)
    elif how == "subclass":
        layer.correction = Nothing(2)
    else:
        layer.correction = Wrapper(part)  # type: ignore[assignment]


@pytest.mark.parametrize("how", ["hook", "subclass", "wrapper"])
@pytest.mark.parametrize("enabled", [True, False])
def test_a_changed_correction_is_called(how: str, enabled: bool) -> None:
    layer, x, context = small_layer("srp")
    _emptied(layer, how)
    with torch.set_grad_enabled(enabled):
        expected = layer.out_proj.bias.expand(45, -1)
        torch.testing.assert_close(layer(x, context)[0], expected)


def test_what_a_hook_on_the_gate_keeps_stays_as_it_was() -> None:
    layer, x, context = small_layer("srp")
    assert isinstance(layer.correction, GatedSRP)
    torch.nn.init.normal_(layer.correction.gate.head_weight)  # type: ignore[arg-type]
    kept: list[tuple[Tensor, Tensor]] = []
    layer.correction.gate.register_forward_hook(
        lambda _module, inputs, out: kept.extend((tensor, tensor.clone()) for tensor in (*inputs, out))
    )
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            layer(x, context)
    assert len(kept) == 10
    assert all(torch.equal(tensor, before) for tensor, before in kept)


def test_counters_of_operations_see_the_plain_form() -> None:
    layer, x, context = small_layer("srp")
    counts = []
    for enabled in (True, False):
        with use_forms("cpu" if enabled else "plain"), FlopCounterMode(display=False) as counter:
            layer(x, context)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("batch", [1, 2])
def test_a_hook_on_the_gate_sees_all_patches_at_once(batch: int) -> None:
    layer, x, context = small_layer("srp")
    assert isinstance(layer.correction, GatedSRP)
    shapes: list[tuple[int, ...]] = []
    layer.correction.gate.register_forward_hook(lambda _module, _inputs, beta: shapes.append(tuple(beta.shape)))
    homogeneity = torch.rand(batch, 40)
    layer(x.expand(batch, -1, -1).contiguous(), context._replace(homogeneity=homogeneity))
    assert shapes == [(batch, 2, 40)]
