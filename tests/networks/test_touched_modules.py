"""What somebody hooks into, wraps or replaces in a network takes effect, whether fused forms are on or off."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nnunet_gdla.networks import PVTGDLA
from nnunet_gdla.ops import use_forms
from tests.reference.compare import assert_all_close


class Doubled(nn.Linear):
    """A layer that its weights do not describe."""

    def forward(self, input: Tensor) -> Tensor:
        """Twice what a linear layer gives."""
        return 2 * super().forward(input)


def network() -> PVTGDLA:
    torch.manual_seed(0)
    return PVTGDLA(2, 3, encoder="pvt_v2_b0", drop_path_rate=0.0).eval()


def named(network: nn.Module, kind: type[nn.Module] | tuple[type[nn.Module], ...]) -> list[str]:
    return [name for name, module in network.named_modules() if isinstance(module, kind)]


LAYERS = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d, nn.LayerNorm, nn.BatchNorm2d)


@pytest.mark.parametrize("fused", [True, False])
def test_every_layer_with_a_hook_is_called(fused: bool) -> None:
    found = network()
    called: set[str] = set()
    for name in [*named(found, LAYERS), "stem", "decoder.blocks.2.attention.norm"]:
        found.get_submodule(name).register_forward_hook(lambda *_, name=name: called.add(name))
    with use_forms("cpu" if fused else "plain"):
        found(torch.randn(1, 2, 33, 40))
    auxiliary = {f"decoder.seg_layers.{number}" for number in (1, 2, 3)}
    assert {*named(found, LAYERS), "stem", "decoder.blocks.2.attention.norm"} - called == auxiliary


def double(found: PVTGDLA, name: str) -> None:
    found.get_submodule(name).__class__ = Doubled


def hooked(found: PVTGDLA, name: str) -> None:
    found.get_submodule(name).register_forward_hook(lambda _module, _inputs, output: 2 * output)


def patched(found: PVTGDLA, name: str) -> None:
    """What libraries do that put another forward into an instance."""
    layer: Any = found.get_submodule(name)
    forward = layer.forward
    layer.forward = lambda x: 2 * forward(x)


def dropping(found: PVTGDLA, name: str) -> None:
    """Monte Carlo dropout: one layer in training mode within a network in evaluation."""
    layer: Any = found.get_submodule(name)
    layer.p = 1.0
    layer.train()


DROPOUTS = ("encoder.stages_0.blocks.0.mlp.drop", "encoder.stages_2.blocks.0.attn.proj_drop")

CHANGES: list[tuple[Callable[[PVTGDLA, str], None], str]] = [
    *((double, name) for name in ("encoder.stages_0.blocks.0.mlp.fc1", "encoder.stages_2.blocks.0.attn.q")),
    *((double, name) for name in ("decoder.blocks.0.attention.qkvg", "decoder.blocks.1.ffn.expand")),
    *((hooked, name) for name in ("encoder.stages_1.blocks.0.mlp", "encoder.stages_0.blocks.1.mlp.dwconv")),
    *((patched, name) for name in ("encoder.stages_0.blocks.0.mlp.fc1", "encoder.stages_2.blocks.0.attn.q")),
    *((patched, name) for name in ("decoder.blocks.0.attention.qkvg", "decoder.blocks.1.ffn.expand")),
    *((patched, name) for name in ("stem.conv2", "decoder.seg_layers.0", "decoder.blocks.2.attention.local_pointwise")),
    *((change, name) for name in DROPOUTS for change in (hooked, dropping)),
    (hooked, "encoder.stages_0.blocks.0.mlp.relu"),
    *((hooked, name) for name in ("stem", "stem.conv2", "stem.norm2", "decoder.seg_layers.0")),
    *((hooked, name) for name in ("decoder.blocks.0.attention.norm", "decoder.blocks.2.attention.local_pointwise")),
]


@pytest.mark.parametrize(("change", "name"), CHANGES, ids=lambda value: getattr(value, "__name__", value))
def test_a_change_takes_effect_and_equals_the_plain_forms(change: Callable[[PVTGDLA, str], None], name: str) -> None:
    found = network()
    x = torch.randn(1, 2, 40, 33)
    before = found(x)
    change(found, name)
    after = found(x)
    assert not torch.allclose(before, after, rtol=1e-4)
    with use_forms("plain"):
        assert_all_close({"logits": after}, {"logits": found(x)}, 1e-5)


def test_border_padding_of_another_kind_is_honoured() -> None:
    found = network()
    x = torch.randn(1, 2, 40, 33)
    before = found(x)
    for name in named(found, nn.Conv2d):
        layer: Any = found.get_submodule(name)
        if layer.kernel_size == (3, 3) and layer.stride == (1, 1):
            layer.padding_mode, layer._reversed_padding_repeated_twice = "replicate", [1, 1, 1, 1]
    after = found(x)
    assert not torch.allclose(before, after, rtol=1e-4)
    with use_forms("plain"):
        assert_all_close({"logits": after}, {"logits": found(x)}, 1e-5)


def test_batch_norm_without_running_statistics() -> None:
    found = network()
    for name in named(found.stem, nn.BatchNorm2d):
        norm: Any = found.stem.get_submodule(name)
        norm.track_running_stats, norm.running_mean, norm.running_var = False, None, None
    plain = copy.deepcopy(found)
    x = torch.randn(2, 2, 33, 40)
    for train in (True, False):
        with use_forms("plain"):
            expected = plain.train(train)(x)
        assert_all_close({"logits": found.train(train)(x)}, {"logits": expected}, 1e-5)


def test_backward_inside_autocast_runs_in_the_precision_of_forward() -> None:
    found = network().train()
    x = torch.randn(2, 2, 32, 32)
    loss = found(x).square().mean()
    parameters = [parameter for parameter in found.parameters() if parameter.requires_grad]
    expected = torch.autograd.grad(loss, parameters, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        grads = torch.autograd.grad(loss, parameters)
    # torch's own backward passes between ours run in bfloat16 there.
    for grad, other in zip(grads, expected, strict=True):
        assert grad.dtype == torch.float32
        assert torch.isfinite(grad).all()
        assert (grad - other).norm() <= 0.1 * other.norm() + 1e-5


def test_shapes_alone_can_be_run() -> None:
    found = copy.deepcopy(network()).to("meta")
    assert found(torch.empty(2, 2, 40, 33, device="meta")).shape == (2, 3, 40, 33)
