"""One training step of the whole slide model against the released order of operations.

    python -m benchmarks.slide_step

Four blocks of width 384, 6 heads, 64 landmarks on one bag of 1536 features, float32: neighbour graph or, for the rival,
a given one, homogeneity, forward, cross entropy, backward, gradient clipping, AdamW; no checkpointing, no drop path.
The rival is written from the specification (benchmarks/released_slide.py) and has the same weights; logits and
gradients are compared before anything is timed. Peak memory is that of fresh processes.
"""

import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.measure import Call, Table, alternate, at_least, compare_outputs, peak_memory
from benchmarks.redundancy import tissue
from benchmarks.released_slide import ReleasedModel
from benchmarks.script import run_script
from nnunet_gdla.layers.redundancy import GatedSRP
from nnunet_gdla.mil.models.slide_transformer import SlideTransformer
from nnunet_gdla.ops.neighbours import grid_neighbours

FEATURES, CLASSES, STRIDE = 1536, 4, 256
# Over the largest entry of each tensor.
OUTPUT_RTOL, GRADIENT_RTOL, GRADIENT_ATOL = 1e-5, 1e-3, 1e-9
Model = tuple[nn.Module, Callable[[], Tensor]]


def table(quick: bool = True) -> Table:
    """Measure training steps and evaluation."""
    sizes = (16_384,) if quick else (4096, 16_384)
    found = Table(
        "Slides: a training step of the whole model",
        f"One bag of {' and '.join(map(str, sizes))} patches x {FEATURES}. Medians of processor time, both in turn.",
        "python -m benchmarks.slide_step" + ("" if quick else " --full"),
    )
    for patches in sizes:
        _add(found, patches, repeats=2 if quick else 5)
    return found


def _add(found: Table, patches: int, repeats: int) -> None:
    models = {"rival": rival(patches), "ours": ours(patches)}
    print(f"  compare at {patches}", file=sys.stderr, flush=True)
    results = {name: _gradients(*model) for name, model in models.items()}
    compare_outputs(results["rival"][0], results["ours"][0], OUTPUT_RTOL)
    compare_outputs(results["rival"][1], results["ours"][1], GRADIENT_RTOL, GRADIENT_ATOL)
    del results
    evaluation = alternate({name: _without_gradients(forward) for name, (_, forward) in models.items()}, repeats)
    steps = alternate({name: _step(*model) for name, model in models.items()}, repeats)
    # the target is stated for 16,384 patches
    target = at_least(1.6) if patches == 16_384 else None
    found.add_times(f"{patches} patches, evaluation", evaluation["rival"], evaluation["ours"])
    found.add_times(f"{patches} patches, training step", steps["rival"], steps["ours"], target)
    rival_peak, our_peak = (peak_memory(f"benchmarks.slide_step:{name}_step", patches) for name in ("rival", "our"))
    found.add_bytes(f"{patches} patches, peak of a training step", rival_peak, our_peak)


def ours(patches: int) -> Model:
    """Our model and a forward pass from coordinates."""
    torch.manual_seed(0)
    model = SlideTransformer(FEATURES, CLASSES, drop_path_rate=0.0, pinv_init="global")
    for part in model.modules():
        if isinstance(part, GatedSRP):  # as after some training: at its start it would do nothing
            assert part.gate.head_weight is not None
            nn.init.normal_(part.gate.head_weight, std=0.3)
    features, coords = _bag(patches)
    return model, lambda: model(features, coords[None], STRIDE)


def rival(patches: int) -> Model:
    """The released order of operations with the same weights."""
    model = ReleasedModel(FEATURES, CLASSES)
    model.load_state_dict(ours(patches)[0].state_dict())
    features, coords = _bag(patches)
    graph = grid_neighbours(coords, STRIDE)
    return model, lambda: model(features, graph)


def _bag(patches: int) -> tuple[Tensor, Tensor]:
    return torch.randn(1, patches, FEATURES, generator=torch.Generator().manual_seed(1)), tissue(patches)


def _loss(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits, torch.tensor([1]))


def _gradients(model: nn.Module, forward: Callable[[], Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    logits = forward()
    named = dict(model.named_parameters())
    return logits.detach(), dict(zip(named, torch.autograd.grad(_loss(logits), list(named.values())), strict=True))


def _without_gradients(forward: Callable[[], Tensor]) -> Call:
    def run() -> Tensor:
        with torch.inference_mode():
            return forward()

    return run


def _step(model: nn.Module, forward: Callable[[], Tensor]) -> Call:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def run() -> None:
        optimizer.zero_grad()
        _loss(forward()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return run


def our_step(patches: int) -> Call:
    """Make a training step ready in this process."""
    return _step(*ours(patches))


def rival_step(patches: int) -> Call:
    """Likewise."""
    return _step(*rival(patches))


if __name__ == "__main__":
    run_script(table, __doc__)
