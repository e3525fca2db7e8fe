"""Weights that are a subclass of Tensor, such as quantised ones, act: no fused form goes past them (S13)."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F
from torch.nn.utils import parametrize

from nnunet_gdla.layers import (
    PPEG,
    GatedDifferentialLinearAttention,
    GatedSRP,
    GDLABlock,
    MixFFN,
)
from nnunet_gdla.layers.untouched import is_untouched
from nnunet_gdla.mil import SlideTransformer
from nnunet_gdla.networks import PVTGDLA
from nnunet_gdla.ops._fusion import may_fuse
from nnunet_gdla.ops.neighbours import grid_neighbours

LAYERS = (nn.Linear, nn.Conv2d, nn.LayerNorm, nn.BatchNorm2d)


class DoublingWeight(Tensor):
    """Counts twice in the functions of torch.nn.functional that take a weight, and nowhere else."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        if func in (F.linear, F.conv2d, F.layer_norm, F.batch_norm, torch.conv2d):
            args, kwargs = ([_doubled(part) for part in args], {k: _doubled(v) for k, v in (kwargs or {}).items()})
            return func(*args, **kwargs)
        return super().__torch_function__(func, types, args, kwargs or {})


def _doubled(part: Any) -> Any:  # noqa: ANN401
    return 2 * part.as_subclass(Tensor) if isinstance(part, DoublingWeight) else part


class Int8Weight(Tensor):
    """Whole numbers and a scale, which become a weight in whatever operation takes it."""

    whole: Tensor
    scale: float

    @staticmethod
    def __new__(cls: type["Int8Weight"], whole: Tensor, scale: float) -> "Int8Weight":
        made: Int8Weight = Tensor._make_wrapper_subclass(cls, whole.shape, dtype=torch.float32)
        made.whole, made.scale = whole, scale
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        if func is torch.ops.aten.detach.default:
            return Int8Weight(args[0].whole, args[0].scale)
        args = torch.utils._pytree.tree_map_only(Int8Weight, lambda part: part.value(), args)
        return func(*args, **(kwargs or {}))

    def value(self) -> Tensor:
        return self.whole.float() * self.scale


def int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the subclass and what it stands for."""
    scale = float(weight.abs().max()) / 127 or 1.0
    made = Int8Weight((weight / scale).round().to(torch.int8), scale)
    return made, made.value()


def doubling(weight: Tensor) -> tuple[Tensor, Tensor]:
    return weight.clone().as_subclass(DoublingWeight), 2 * weight


def pair(module: nn.Module, make: Callable[[Tensor], tuple[Tensor, Tensor]]) -> tuple[nn.Module, nn.Module]:
    """Return the module with weights of a subclass, and with plain weights of the same meaning."""
    theirs, plain = (copy.deepcopy(module).eval().requires_grad_(False) for _ in range(2))
    for one, other in zip(theirs.modules(), plain.modules(), strict=True):
        if isinstance(one, nn.Linear if make is int8 else LAYERS) and one.weight is not None:
            made, value = make(other.weight.detach())
            one.weight = nn.Parameter(made, requires_grad=False)
            other.weight = nn.Parameter(value, requires_grad=False)
    return theirs, plain


def srp(module: nn.Module) -> Tensor:
    coords = torch.cartesian_prod(torch.arange(5), torch.arange(5))
    y, v = (torch.randn(1, 2, 25, 8, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    return module(y, v, grid_neighbours(coords, 1), torch.linspace(0, 1, 25)[None])


def x(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], Tensor]]] = {
    "mixer": (lambda: GatedDifferentialLinearAttention(16, 2), lambda m: m(x(2, 35, 16), (5, 7))),
    "separate mixer": (
        lambda: GatedDifferentialLinearAttention(16, 2, local_mixing="separate"),
        lambda m: m(x(2, 35, 16), (5, 7)),
    ),
    "feed forward": (lambda: MixFFN(16, 24), lambda m: m(x(2, 35, 16), (5, 7))),
    "ppeg": (lambda: PPEG(8), lambda m: m(x(1, 26, 8))),
    "gated srp": (lambda: GatedSRP(2, init="normal"), srp),
    "network": (
        lambda: PVTGDLA(1, 2, encoder="pvt_v2_b0", deep_supervision=True),
        lambda m: torch.cat([part.flatten() for part in m(x(1, 1, 64, 72))]),
    ),
    "slides": (
        lambda: SlideTransformer(12, 2, width=32, depth=2, num_heads=2, num_landmarks=8),
        lambda m: m(x(1, 2100, 12), slide_coords(2100), 1.0),
    ),
    "slides, gdla on the lattice": (
        lambda: SlideTransformer(12, 2, width=32, depth=2, num_heads=2, attention="gdla", local_mixing="lattice"),
        lambda m: m(x(1, 100, 12), slide_coords(100), 1.0),
    ),
}


def slide_coords(count: int) -> Tensor:
    edge = int(count**0.5) + 1
    return torch.cartesian_prod(torch.arange(edge), torch.arange(edge))[:count][None].float()


@pytest.mark.parametrize("make", [doubling, int8])
@pytest.mark.parametrize("name", CASES)
def test_weights_of_a_subclass_act(name: str, make: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
    build, run = CASES[name]
    theirs, plain = pair(build(), make)
    with torch.no_grad():
        expected = run(plain)
        torch.testing.assert_close(run(theirs), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("name", ["mixer", "feed forward"])
def test_inputs_of_a_subclass_act(name: str) -> None:
    build, _ = CASES[name]
    module = build().requires_grad_(False)
    tokens = x(2, 35, 16)
    found = module(tokens.as_subclass(DoublingWeight), (5, 7))
    assert not torch.allclose(found.as_subclass(Tensor), module(tokens, (5, 7)))


def test_only_exact_tensors_fuse() -> None:
    plain = torch.zeros(3)
    assert may_fuse(plain, nn.Parameter(plain))
    assert not may_fuse(plain, plain.as_subclass(DoublingWeight))
    assert not may_fuse(plain.as_subclass(DoublingWeight))
    with FakeTensorMode():
        fake = torch.zeros(3)
    assert not may_fuse(fake)


def test_parametrised_layers_are_called() -> None:
    block = GDLABlock(16, 2).eval()
    layer = block.attention.qkvg
    image = x(1, 16, 5, 7)
    before = block(image)
    parametrize.register_parametrization(layer, "weight", _Twice())
    assert not is_untouched(layer)
    after = block(image)
    parametrize.remove_parametrizations(layer, "weight")
    assert is_untouched(layer)
    torch.testing.assert_close(block(image), after)
    assert not torch.allclose(before, after)


class _Twice(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight
