"""The Nystrom layer of slide models, with and without Gated SRP, against the released orders of operations.

    python -m benchmarks.slide_layer

One layer (qkv projection, Nystrom attention, correction, output projection) of width 384, 6 heads, 64 landmarks on a
class token and 49,152 patches, float32. The rivals are written from the specification (benchmarks/released_slide.py):
"plain" is the class without SRP, "zero" the class with SRP and beta = 0, which gathers neighbours all the same. All
have the same weights; outputs and gradients are compared before anything is timed. Kept are the bytes that autograd
holds between forward and backward beside the parameters and the layer's input. Peak memory is that of fresh processes.
"""

import functools
import sys
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from benchmarks.measure import (
    Call,
    Table,
    Timing,
    alternate,
    at_least,
    at_most,
    compare_outputs,
    kept_bytes,
    peak_memory,
)
from benchmarks.redundancy import tissue
from benchmarks.released_slide import ReleasedAttention, ReleasedCorrection
from benchmarks.script import run_script
from nnunet_gdla.layers.redundancy import GatedSRP
from nnunet_gdla.mil.models.slide_attention import SlideAttention
from nnunet_gdla.mil.models.tokens import SlideContext
from nnunet_gdla.ops.neighbours import grid_neighbours

PATCHES, DIM, HEADS, STRIDE = 49_152, 384, 6, 256
# Over the largest entry of each tensor.
OUTPUT_RTOL, GRADIENT_RTOL = 1e-5, 1e-4
Forms = dict[str, tuple[nn.Module, Callable[[Tensor], Tensor]]]
# what is compared with what: times at least, with backward at least, bytes at most
PAIRS = (("plain", "ours, plain", 2.0, 1.7, 0.36), ("zero", "ours, SRP", 4.0, 2.5, 0.55), ("SRP", "ours, SRP", 0, 0, 0))
EQUAL = (("plain", "ours, plain"), ("zero", "ours, plain"), ("SRP", "ours, SRP"))


def table(quick: bool = True) -> Table:
    """Measure all forms in turn."""
    repeats = 2 if quick else 7
    found = Table(
        "Slides: the Nystrom layer with and without Gated SRP",
        f"{PATCHES} patches and a class token, width {DIM}, {HEADS} heads, 64 landmarks, float32. Medians of processor "
        f"time over {repeats} rounds, all forms in turn.",
        "python -m benchmarks.slide_layer",
    )
    context, x = slide(PATCHES), _tokens(PATCHES)
    all_forms = forms(PATCHES, context)
    modules = {name: module for name, (module, _) in all_forms.items()}
    forward = {name: _forward(form, x) for name, (_, form) in all_forms.items()}
    both = {name: _with_backward(module, form, x) for name, (module, form) in all_forms.items()}
    for rival, ours in EQUAL:
        print(f"  compare {rival} with {ours}", file=sys.stderr, flush=True)
        compare_outputs(forward[rival](), forward[ours](), OUTPUT_RTOL)
        compare_outputs(_common(both[rival](), both[ours]()), _common(both[ours](), both[rival]()), GRADIENT_RTOL)
    if quick:  # its results were compared; its times lie close to those of "zero"
        for group in (all_forms, forward, both):
            group.pop("SRP")
    times = {"inference": alternate(forward, repeats), "forward + backward": alternate(both, repeats)}
    assert context.graph is not None
    assert context.homogeneity is not None
    given: list[Tensor | nn.Module] = [x, context.homogeneity, *context.graph, *modules.values()]
    kept = {name: kept_bytes(functools.partial(form, x), given) for name, (_, form) in all_forms.items()}
    _add(found, times, kept)
    for rival, ours, *_ in PAIRS[:2]:
        rival_peak, our_peak = (peak_memory("benchmarks.slide_layer:one_pass", name) for name in (rival, ours))
        found.add_bytes(f"{rival} / {ours}: peak of forward + backward", rival_peak, our_peak)
    return found


def _add(found: Table, times: Mapping[str, Mapping[str, Timing]], kept: Mapping[str, int]) -> None:
    for rival, ours, *bounds in PAIRS:
        if rival not in kept:
            continue
        for (name, each), bound in zip(times.items(), bounds[:2], strict=True):
            target = at_least(bound) if bound else None
            found.add_times(f"{rival} / {ours}: {name}", each[rival], each[ours], target)
        target = at_most(bounds[2]) if bounds[2] else None
        found.add_bytes(f"{rival} / {ours}: kept for backward", kept[rival], kept[ours], target)
    for name, each in times.items():
        found.add_times(f"ours, plain / ours, SRP: {name}", each["ours, plain"], each["ours, SRP"], at_most(1.08))
    found.add_bytes("ours, plain / ours, SRP: kept", kept["ours, plain"], kept["ours, SRP"], at_most(1.03))


def forms(patches: int, context: SlideContext) -> Forms:
    """Return modules with the same weights, and how each is called."""
    torch.manual_seed(0)
    graph, homogeneity = context.graph, context.homogeneity
    srp = SlideAttention(DIM, HEADS, correction="srp", pinv_init="global")
    _spread(srp)
    plain = SlideAttention(DIM, HEADS, pinv_init="global")
    rivals: dict[str, ReleasedAttention] = {
        "plain": ReleasedAttention(),
        "zero": ReleasedAttention(correction=ReleasedCorrection(gated=False)),
        "SRP": ReleasedAttention(correction=ReleasedCorrection()),
    }
    for module in (plain, *rivals.values()):
        names = module.state_dict().keys()
        module.load_state_dict({name: value for name, value in srp.state_dict().items() if name in names})

    def of_rival(module: ReleasedAttention) -> Callable[[Tensor], Tensor]:
        return lambda x: module(x, graph, homogeneity)

    all_forms: Forms = {name: (module, of_rival(module)) for name, module in rivals.items()}
    return all_forms | {
        "ours, plain": (plain, lambda x: plain(x, context)),
        "ours, SRP": (srp, lambda x: srp(x, context)),
    }


def slide(patches: int) -> SlideContext:
    """Neighbours and homogeneity, which all forms are given."""
    homogeneity = torch.rand(1, patches, generator=torch.Generator().manual_seed(3))
    return SlideContext(patches, grid_neighbours(tissue(patches), STRIDE), homogeneity)


def _spread(layer: SlideAttention) -> None:
    """Weights as after some training: at its start the gate would do nothing."""
    assert isinstance(layer.correction, GatedSRP)
    gate = layer.correction.gate
    assert gate.token_out is not None
    assert gate.head_weight is not None
    for weight in (layer.qkv.weight, layer.qkv.bias, layer.out_proj.weight, layer.out_proj.bias):
        nn.init.normal_(weight, std=0.05)
    for weight in (gate.token_out.weight, gate.head_weight):
        nn.init.normal_(weight, std=0.3)


def _tokens(patches: int) -> Tensor:
    return torch.randn(1, patches + 1, DIM, generator=torch.Generator().manual_seed(1)).requires_grad_()


def _forward(form: Callable[[Tensor], Tensor], x: Tensor) -> Call:
    def run() -> Tensor:
        with torch.inference_mode():
            return form(x)

    return run


def _with_backward(module: nn.Module, form: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], dict[str, Tensor]]:
    cotangent = torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
    leaves = {"x": x, **dict(module.named_parameters())}

    def run() -> dict[str, Tensor]:
        return dict(zip(leaves, torch.autograd.grad(form(x), list(leaves.values()), cotangent), strict=True))

    return run


def _common(gradients: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: gradient for name, gradient in gradients.items() if name in others}


def one_pass(name: str) -> Call:
    """Make one form ready for one forward and backward pass in this process."""
    module, form = forms(PATCHES, slide(PATCHES))[name]
    return _with_backward(module, form, _tokens(PATCHES))


if __name__ == "__main__":
    run_script(table, __doc__)
