"""PVT-GDLA-B2 against the networks that nnU-Net would take: its default 2D U-Net and its residual-encoder U-Net.

    python -m benchmarks.unet [--full]

nnU-Net's networks are built by its own function from what its planners write for images of 256 and 512. Images of one
channel, 9 classes. Evaluation is one forward pass; a training step is forward with deep supervision, the loss of the
network's own trainer (boundary DoU; Dice with cross-entropy) and backward, without the optimiser. These networks
compute different things, so there is nothing to compare but their times.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from nnunetv2.training.loss.compound_losses import DC_and_CE_loss
from nnunetv2.training.loss.deep_supervision import DeepSupervisionWrapper
from nnunetv2.training.loss.dice import MemoryEfficientSoftDiceLoss
from nnunetv2.utilities.get_network_from_plans import get_network_from_plans
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.measure import Table, alternate, at_most
from benchmarks.script import run_script
from benchmarks.subjects import CLASSES, images, labels
from nnunet_gdla.commands.efficiency_networks import nnunet_architecture
from nnunet_gdla.losses import BoundaryDoULoss
from nnunet_gdla.networks import PVTGDLA
from nnunet_gdla.trainers.nnunet_gdla_supervision import supervise

RIVALS = {"nnU-Net default": False, "nnU-Net ResEnc": True}


def table(quick: bool) -> Table:
    """Measure both sizes."""
    repeats = 5 if quick else 9
    found = Table(
        "PVT-GDLA-B2 against nnU-Net's 2D networks",
        f"Same patch, float32, medians of processor time over {repeats} rounds, all networks in turn. The ratio is "
        "ours over the rival's: below 1 ours is faster.",
        "python -m benchmarks.unet",
        columns=("what", "rival", "ours", "ours / rival", "by wall clock"),
    )
    for batch, size in ((2, 256), (1, 512)) if quick else ((2, 256), (2, 512)):
        x, truth = images(batch, size), labels(batch, size).unsqueeze(1).float()
        rivals = {name: residual for name, residual in RIVALS.items() if size == 256 or not residual or not quick}
        networks = {name: _nnunet(size, residual) for name, residual in rivals.items()} | {"ours": _ours()}
        for training in (False, True):
            what = f"batch {batch}, {size} x {size}, {'training step' if training else 'evaluation'}"
            print(f"  {what}", file=sys.stderr, flush=True)
            runs = {
                name: _step(network, name, x, truth) if training else _evaluation(network, x)
                for name, network in networks.items()
            }
            times = alternate(runs, repeats)
            for name, residual in rivals.items():
                bound = at_most(1.2 if training else 1.0)
                ratio, wall = times["ours"].over(times[name]), times["ours"].wall_over(times[name])
                cells = [f"{1e3 * times[side].cpu:.0f} ms" for side in (name, "ours")]
                target = None if residual else bound
                found.add(f"{name}, {what}", *cells, f"{ratio:.2f}x", f"{wall:.2f}x", reached=ratio, target=target)
    return found


def _ours() -> nn.Module:
    torch.manual_seed(0)
    return PVTGDLA(1, CLASSES, deep_supervision=True)


def _nnunet(size: int, residual: bool) -> nn.Module:
    architecture, patch = nnunet_architecture(size, residual=residual)
    assert patch == size
    torch.manual_seed(0)
    network: nn.Module = get_network_from_plans(
        architecture["network_class_name"],
        architecture["arch_kwargs"],
        architecture["_kw_requires_import"],
        1,
        CLASSES,
        deep_supervision=True,
    )
    return network


def _evaluation(network: nn.Module, x: Tensor) -> Callable[[], object]:
    decoder: Any = network.decoder

    def run() -> object:
        network.eval()
        decoder.deep_supervision = False
        with torch.inference_mode():
            return network(x)

    return run


def _step(network: nn.Module, name: str, x: Tensor, truth: Tensor) -> Callable[[], object]:
    """Forward, loss and backward as the network's trainer has them."""
    network.train()
    decoder: Any = network.decoder
    decoder.deep_supervision = True
    sizes = [output.shape[2:] for output in network(x)]
    targets = [F.interpolate(truth, size=size, mode="nearest-exact") for size in sizes]
    loss = supervise(BoundaryDoULoss(), enabled=True) if name == "ours" else _nnunet_loss(len(sizes))

    def run() -> object:
        network.zero_grad(set_to_none=True)
        value = loss(network(x), targets)
        value.backward()
        return value

    return run


def _nnunet_loss(outputs: int) -> nn.Module:
    """As `nnUNetTrainer` builds it for labels: the lowest resolution has weight 0."""
    dice = {"batch_dice": True, "smooth": 1e-5, "do_bg": False, "ddp": False}
    loss = DC_and_CE_loss(dice, {}, weight_ce=1, weight_dice=1, dice_class=MemoryEfficientSoftDiceLoss)
    weights = [0.5**level for level in range(outputs - 1)] + [0.0]
    wrapped: nn.Module = DeepSupervisionWrapper(loss, [weight / sum(weights) for weight in weights])
    return wrapped


if __name__ == "__main__":
    run_script(table, __doc__)
