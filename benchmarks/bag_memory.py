"""A training step on a huge bag with activation checkpointing, which the slide model offers, against one without.

    python -m benchmarks.bag_memory            # 8,192 patches; --full: 100,000

The default slide model on a float16 bag of 1536 features: forward, backward and an AdamW step. Peak memory is that of
fresh processes, above what they hold before the step. The gradients of both are compared first.
"""

import torch
from torch import Tensor, nn

from benchmarks.measure import Call, Table, alternate, compare_outputs, peak_memory
from benchmarks.script import run_script
from nnunet_gdla.mil.models.slide_transformer import SlideTransformer

FEATURES, STRIDE = 1536, 512.0


def table(quick: bool = True) -> Table:
    """Measure time and memory of both."""
    patches, repeats = (8192, 1) if quick else (100_000, 3)
    found = Table(
        "Slides: activation checkpointing on a huge bag",
        f"{patches} patches x {FEATURES}, float16 in the file. Medians of processor time over {repeats} round(s), both "
        "in turn; the rival is the same model without checkpointing.",
        "python -m benchmarks.bag_memory" + ("" if quick else " --full"),
    )
    models = {name: _model(name == "ours") for name in ("rival", "ours")}
    bag = _bag(patches)
    gradients = {}
    for name, model in models.items():
        _loss(model, *bag).backward()
        gradients[name] = {key: parameter.grad for key, parameter in model.named_parameters()}
    compare_outputs(gradients["rival"], gradients["ours"], 1e-4, 1e-9)
    times = alternate({name: _step(model, *bag) for name, model in models.items()}, repeats)
    found.add_times("training step", times["rival"], times["ours"])
    peaks = [peak_memory("benchmarks.bag_memory:one_step", patches, checkpointing) for checkpointing in (False, True)]
    found.add_bytes("peak of a training step", *peaks)
    return found


def _model(checkpointing: bool) -> nn.Module:
    torch.manual_seed(0)
    model = SlideTransformer(FEATURES, 4, drop_path_rate=0.0).train()
    model.set_grad_checkpointing(checkpointing)
    return model


def _bag(patches: int) -> tuple[Tensor, Tensor]:
    side, rows = int(patches**0.5) + 1, torch.arange(patches)
    features = torch.empty(1, patches, FEATURES, dtype=torch.float16)
    generator = torch.Generator().manual_seed(1)
    for part in features.split(4096, 1):
        part.normal_(generator=generator)
    return features, torch.stack([rows % side, rows // side], dim=-1)[None] * int(STRIDE)


def _loss(model: nn.Module, features: Tensor, coords: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(features, coords, STRIDE), torch.tensor([1]))


def _step(model: nn.Module, features: Tensor, coords: Tensor) -> Call:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def run() -> None:
        optimizer.zero_grad()
        _loss(model, features, coords).backward()
        optimizer.step()

    return run


def one_step(patches: int, checkpointing: bool) -> Call:
    """Make a training step ready in this process."""
    return _step(_model(checkpointing), *_bag(patches))


if __name__ == "__main__":
    run_script(table, __doc__)
