"""PVT-GDLA-B2 against the released order of operations: whole, and part by part.

    python -m benchmarks.segmentation

The rival is written from the specification (benchmarks/released_network.py) and has the weights of ours; its encoder is
timm's with timm's own forward. Outputs and gradients are compared before anything is timed. One-channel images of 224,
batch 2, float32, 9 classes, four losses at full size, no stochastic depth; a training step is forward, losses and
backward without the optimiser.
"""

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.measure import Call, Table, at_least, at_most, peak_memory
from benchmarks.released_network import ReleasedPVTGDLA, released_losses
from benchmarks.script import run_script
from benchmarks.subjects import (
    Side,
    Versus,
    images,
    labels,
    make_pair,
    named_parameters,
    our_losses,
    our_supervised,
    our_tail,
)
from nnunet_gdla.networks import PVTGDLA

BATCH, SIZE = 2, 224


def table(quick: bool) -> Table:
    """Measure the whole network and its parts."""
    repeats = 7 if quick else 15
    found = Table(
        "Segmentation: PVT-GDLA-B2 against the released order of operations",
        f"Images of {SIZE} x {SIZE}, batch {BATCH}, float32. Times are medians of processor time over {repeats} "
        "rounds, both sides in turn; bytes are those that autograd keeps between forward and backward.",
        "python -m benchmarks.segmentation",
    )
    rival, ours = make_pair()
    x, truth = images(BATCH, SIZE), labels(BATCH, SIZE)
    _whole(found, repeats, rival, ours, x, truth)
    for part in _parts(rival, ours, x, truth):
        print(f"  {part.name}", file=sys.stderr, flush=True)
        part.add_evaluation(found, repeats)
        part.add_training(found, repeats)
    return found


def _whole(found: Table, repeats: int, rival: ReleasedPVTGDLA, ours: PVTGDLA, x: Tensor, truth: Tensor) -> None:
    def predict() -> Tensor:
        ours.decoder.deep_supervision = False
        return ours(x)

    print("  whole network", file=sys.stderr, flush=True)
    leaves = named_parameters(rival), named_parameters(ours)
    evaluation = Versus("whole network", Side(lambda: rival(x), {}, [rival]), Side(predict, {}, [ours]))
    evaluation.add_evaluation(found, repeats, at_least(2.0))
    step = Versus(
        "whole network",
        Side(lambda: released_losses(rival.supervised(x), truth), leaves[0], [rival]),
        Side(lambda: our_losses(our_supervised(ours, x), truth), leaves[1], [ours]),
        [x, truth],
    )
    step.add_training(found, repeats, at_least(1.6), at_most(0.5))
    for training, what in ((False, "evaluation"), (True, "training step")):
        theirs, its = (peak_memory("benchmarks.segmentation:ready", side, training) for side in ("rival", "ours"))
        found.add_bytes(f"whole network, peak memory, {what}", theirs, its)


def ready(side: str, training: bool) -> Call:
    """Build one side in a process whose memory is measured.

    Args:
        side: "rival" or "ours".
        training: A training step, or else a prediction.
    """
    rival, ours = make_pair()
    network = rival if side == "rival" else ours
    x, truth = images(BATCH, SIZE), labels(BATCH, SIZE)
    network.train(training)

    def predict() -> object:
        ours.decoder.deep_supervision = False
        with torch.inference_mode():
            return network(x)

    def step() -> object:
        if side == "rival":
            loss = released_losses(rival.supervised(x), truth)
        else:
            loss = our_losses(our_supervised(ours, x), truth)
        loss.backward()
        return loss

    return step if training else predict


def _parts(rival: ReleasedPVTGDLA, ours: PVTGDLA, x: Tensor, truth: Tensor) -> list[Versus]:
    with torch.no_grad():
        features = [feature.contiguous() for feature in rival.eval().encode(x)]
        stages = rival.decoder.stages(features)
        auxiliary = [head(y) for head, y in zip(rival.decoder.seg_layers[1:], reversed(stages[:-1]), strict=True)]
        prediction = rival.decoder.prediction(stages.fine, rival.stem(x))
    maps = _leaves(stages)
    logits = _leaves([prediction, *auxiliary])
    modules = ([rival.stem, *rival.decoder.seg_layers], [ours.stem, *ours.decoder.seg_layers])
    finest = {"finest map": maps[-1]}
    return [
        Versus(
            "encoder",
            Side(lambda: rival.encode(x), named_parameters(rival.encoder), [rival.encoder]),
            Side(lambda: ours.encoder(x), named_parameters(ours.encoder), [ours.encoder]),
            [x],
        ),
        *(_stage(level, rival, ours, _leaves(features), maps) for level in range(3)),
        Versus(
            "stem and heads",
            Side(
                lambda: [
                    rival.decoder.prediction(maps[-1], rival.stem(x)),
                    *(h(y) for h, y in zip(rival.decoder.seg_layers[1:], reversed(maps[:-1]), strict=True)),
                ],
                named_parameters(*modules[0]) | finest,
                modules[0],
            ),
            Side(lambda: our_tail(ours, maps, x, auxiliary=True), named_parameters(*modules[1]) | finest, modules[1]),
            [x, *maps],
        ),
        Versus(
            "four losses",
            Side(lambda: released_losses(_all_at_full_size(logits), truth), _named(logits), []),
            Side(lambda: our_losses(logits, truth), _named(logits), []),
            [truth, *logits],
        ),
    ]


def _stage(
    level: int, rival: ReleasedPVTGDLA, ours: PVTGDLA, features: Sequence[Tensor], maps: Sequence[Tensor]
) -> Versus:
    below, skip = maps[level], features[2 - level]

    def side(network: ReleasedPVTGDLA | PVTGDLA) -> Side:
        upsample, block = network.decoder.upsamples[level], network.decoder.blocks[level]
        leaves = named_parameters(upsample, block) | {"below": below, "skip": skip}
        return Side(lambda: block(upsample(below) + skip), leaves, [upsample, block])

    return Versus(f"decoder stage 1/{16 >> level}", side(rival), side(ours), [below, skip])


def _all_at_full_size(logits: Sequence[Tensor]) -> list[Tensor]:
    size = logits[0].shape[-2:]
    return [
        logits[0],
        *(torch.nn.functional.interpolate(y, size=size, mode="bilinear", align_corners=False) for y in logits[1:]),
    ]


def _leaves(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def _named(tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    return {str(number): tensor for number, tensor in enumerate(tensors)}


if __name__ == "__main__":
    run_script(table, __doc__)
