"""vmap, the meta device and wrappers without `.weight`: every network and slide model works with them."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from nnunet_gdla.mil.models import build_model
from nnunet_gdla.networks import PVTGDLA

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # torch's, under vmap

NETWORKS: list[dict[str, Any]] = [
    {},
    {"decoder": "linear"},
    {"decoder": "self"},
    {"decoder": "diff"},
    {"gate": None, "local_mixing": "separate"},
    {"differential": False, "local_mixing": None},
    {"deep_supervision": True, "ffn": "swiglu"},
]
SMALL: dict[str, Any] = {"width": 32, "num_heads": 2, "depth": 2}
NYSTROM = SMALL | {"num_landmarks": 4}
SLIDE_MODELS: list[tuple[str, dict[str, Any]]] = [
    *(("slide_transformer", NYSTROM | {"correction": part}) for part in ("none", "srp", "xsa", "fixed:learned")),
    *(("slide_transformer", NYSTROM | {"placement": place}) for place in ("pre_q", "pre_k", "pre_v")),
    *(("slide_transformer", SMALL | {"attention": part}) for part in ("softmax", "linear", "gdla")),
    ("slide_transformer", SMALL | {"attention": "gdla", "correction": "none", "local_mixing": "lattice"}),
    ("slide_transformer", SMALL | {"attention": "diff", "correction": "none"}),
    ("vit4", {"width": 32, "num_heads": 2}),
    ("abmil", {}),
    ("dsmil", {}),
    ("transmil", {"width": 64}),
]
IDS = [" ".join([name, *map(str, options.values())]) for name, options in SLIDE_MODELS]
PATCHES = 20
COORDS = torch.stack([torch.arange(PATCHES) % 5, torch.arange(PATCHES) // 5], -1)[None] * 256


def first(output: Tensor | list[Tensor]) -> Tensor:
    return output[0] if isinstance(output, list) else output


def read(model: nn.Module, features: Tensor) -> Tensor:
    """Logits of one slide (1, N, D)."""
    where = (COORDS.to(features.device), 256) if getattr(model, "needs_coords", False) else ()
    logits: Tensor = model(features, *where)
    return logits


@pytest.mark.parametrize("options", NETWORKS, ids=str)
def test_a_network_under_vmap_equals_its_calls(options: dict[str, Any]) -> None:
    network = PVTGDLA(1, 2, encoder="pvt_v2_b0", **options).eval()
    images = torch.randn(2, 1, 1, 40, 64)
    with torch.no_grad():
        expected = torch.stack([first(network(image)) for image in images])
        torch.testing.assert_close(first(vmap(network)(images)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "options"), SLIDE_MODELS, ids=IDS)
def test_a_slide_model_under_vmap_equals_its_calls(name: str, options: dict[str, Any]) -> None:
    model = build_model(name, 16, 2, **options).eval()
    nonzero(model)
    slides = torch.randn(3, 1, PATCHES, 16)
    one: Callable[[Tensor], Tensor] = lambda features: read(model, features)  # noqa: E731
    with torch.no_grad():
        expected = torch.stack([read(model, features) for features in slides])
        torch.testing.assert_close(vmap(one)(slides), expected, rtol=1e-4, atol=1e-5)


def nonzero(model: nn.Module) -> None:
    """Gates start at zero, where a correction changes nothing."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02)


@pytest.mark.parametrize("options", NETWORKS, ids=str)
def test_a_network_is_made_and_called_on_the_meta_device(options: dict[str, Any]) -> None:
    with torch.device("meta"):
        network = PVTGDLA(1, 2, encoder="pvt_v2_b0", **options)
    output = first(network(torch.empty(2, 1, 40, 64, device="meta")))
    output.sum().backward()
    assert (output.shape, output.device.type) == ((2, 2, 40, 64), "meta")


@pytest.mark.parametrize(("name", "options"), SLIDE_MODELS, ids=IDS)
def test_a_slide_model_is_made_and_called_on_the_meta_device(name: str, options: dict[str, Any]) -> None:
    with torch.device("meta"):
        model = build_model(name, 16, 3, **options)
    for training in (True, False):
        model.train(training)
        logits = read(model, torch.empty(1, PATCHES, 16, device="meta"))
        logits.sum().backward()
        assert (logits.shape, logits.device.type) == ((1, 3), "meta")


class Wrapped(nn.Module):
    """Calls a layer and shows nothing of it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return self.inner(*args, **kwargs)


def parts(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """One of each kind of submodule that is called."""
    kinds = set()
    for name, module in list(model.named_modules()):
        kind = re.sub(r"\.\d+", ".N", re.sub(r"stages_\d", "stages", name))
        if name and kind not in kinds and not isinstance(module, nn.ModuleList | nn.Identity):
            kinds.add(kind)
            parent, _, leaf = name.rpartition(".")
            yield model.get_submodule(parent), leaf


def check_wrapped(model: nn.Module, call: Callable[[nn.Module], Tensor]) -> None:
    expected = call(model)
    for parent, leaf in parts(model):
        layer = getattr(parent, leaf)
        setattr(parent, leaf, Wrapped(layer))
        for gradients in (True, False):  # with and without something to keep for a backward pass
            with torch.set_grad_enabled(gradients):
                torch.testing.assert_close(call(model), expected, rtol=1e-4, atol=1e-5, msg=lambda m: f"{leaf}: {m}")  # noqa: B023
        setattr(parent, leaf, layer)


@pytest.mark.parametrize(("name", "options"), SLIDE_MODELS, ids=IDS)
def test_a_slide_model_takes_a_wrapper_around_any_part(name: str, options: dict[str, Any]) -> None:
    model = build_model(name, 16, 2, **options).eval()
    nonzero(model)
    features = torch.randn(1, PATCHES, 16).half()
    check_wrapped(model, lambda model: read(model, features))


def test_a_network_takes_a_wrapper_around_any_part() -> None:
    network = PVTGDLA(1, 2, encoder="pvt_v2_b0").eval()
    image = torch.randn(1, 1, 33, 40)
    check_wrapped(network, lambda network: first(network(image)))
