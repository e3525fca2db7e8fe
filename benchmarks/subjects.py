"""What the segmentation benchmarks run: the two networks with the same weights, and the parts of ours."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.measure import Table, Target, alternate, compare_outputs, kept_bytes
from benchmarks.released_network import ReleasedPVTGDLA
from nnunet_gdla.losses import BoundaryDoULoss
from nnunet_gdla.networks import PVTGDLA

__all__ = [
    "CLASSES",
    "Side",
    "Versus",
    "images",
    "labels",
    "make_pair",
    "named_parameters",
    "our_losses",
    "our_stages",
    "our_supervised",
    "our_tail",
]

CLASSES = 9
# Differences over the largest entry of their tensor. Gradients also have a floor, over the largest entry of them all:
# that of the stem's first norm is 0 but for rounding.
OUTPUT_RTOL, GRADIENT_RTOL, GRADIENT_FLOOR = 2e-5, 1e-4, 1e-6
_loss = BoundaryDoULoss()


def make_pair(
    channels: int = 1, *, encoder: str = "pvt_v2_b2", classes: int = CLASSES
) -> tuple[ReleasedPVTGDLA, PVTGDLA]:
    """The released order of operations and ours with the same random weights, without stochastic depth."""
    torch.manual_seed(0)
    ours = PVTGDLA(channels, classes, encoder=encoder, drop_path_rate=0.0, deep_supervision=True)
    for block in ours.decoder.blocks:
        # As after some training: at its start lambda is about 0 and the second branch would hardly be compared.
        attention = cast(nn.Module, block.attention)
        for lam in (attention.lambda_global, attention.lambda_local):
            nn.init.normal_(cast(nn.Parameter, lam), mean=0.5, std=0.1)
    return ReleasedPVTGDLA(ours), ours


def images(batch: int, size: int, channels: int = 1) -> Tensor:
    """An image batch."""
    return torch.randn(batch, channels, size, size, generator=torch.Generator().manual_seed(1))


def labels(batch: int, size: int, classes: int = CLASSES) -> Tensor:
    """A label map (B, H, W) of patches of 16 pixels."""
    edge = -(-size // 16)
    coarse = torch.randint(0, classes, (batch, edge, edge), generator=torch.Generator().manual_seed(2))
    return coarse.repeat_interleave(16, 1).repeat_interleave(16, 2)[:, :size, :size].contiguous()


def our_supervised(network: PVTGDLA, x: Tensor) -> list[Tensor]:
    """All four logits of ours, the prediction first."""
    network.decoder.deep_supervision = True
    return cast(list[Tensor], network(x))


def our_losses(outputs: Sequence[Tensor], truth: Tensor) -> Tensor:
    """Sum of the losses of all outputs at full size, as the released code has it."""
    size = truth.shape[-2:]
    full = [outputs[0], *(F.interpolate(y, size=size, mode="bilinear", align_corners=False) for y in outputs[1:])]
    return torch.stack([_loss(logits, truth.unsqueeze(1)) for logits in full]).sum()


def our_stages(network: PVTGDLA, features: Sequence[Tensor]) -> list[Tensor]:
    """The coarsest map and the three decoder maps, coarse to fine."""
    maps = [features[-1]]
    decoder = network.decoder
    for upsample, block, skip in zip(decoder.upsamples, decoder.blocks, reversed(features[:-1]), strict=True):
        maps.append(block(upsample(maps[-1]) + skip))
    return maps


def our_tail(network: PVTGDLA, maps: Sequence[Tensor], x: Tensor, *, auxiliary: bool) -> list[Tensor]:
    """Stem and heads, given the four maps."""
    finest, *others = network.decoder.seg_layers
    outputs = [network.decoder._full_resolution(maps[-1], network.stem.project(x, cast(nn.Conv2d, finest)))]
    if auxiliary:
        heads = zip(others, reversed(maps[:-1]), strict=True)
        outputs += [head(feature) for head, feature in heads]
    return outputs


def named_parameters(*modules: nn.Module) -> dict[str, Tensor]:
    """The trained parameters of some modules, under names that another list of such modules has too."""
    return {
        f"{number}.{name}": parameter
        for number, module in enumerate(modules)
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }


class Side(NamedTuple):
    """Rival or ours.

    Args:
        forward: A forward pass.
        leaves: What the backward pass differentiates with respect to; both sides have the same names.
        modules: Go to evaluation and training mode; their tensors do not count as kept.
    """

    forward: Callable[[], Tensor | Sequence[Tensor]]
    leaves: Mapping[str, Tensor]
    modules: Sequence[nn.Module]


class Versus(NamedTuple):
    """A part in both forms.

    Args:
        name: What the rows are called.
        rival: The other form.
        ours: Ours.
        given: Inputs, which do not count as kept.
    """

    name: str
    rival: Side
    ours: Side
    given: Sequence[Tensor] = ()

    def add_evaluation(self, table: Table, repeats: int, target: Target | None = None) -> None:
        """Compare the results without gradients, then append the times."""
        self._set_training(False)
        with torch.inference_mode():
            compare_outputs(_listed(self.rival.forward()), _listed(self.ours.forward()), rtol=OUTPUT_RTOL)
            times = alternate({"rival": self.rival.forward, "ours": self.ours.forward}, repeats)
        table.add_times(f"{self.name}, evaluation", times["rival"], times["ours"], target)

    def add_training(
        self, table: Table, repeats: int, target: Target | None = None, kept_target: Target | None = None
    ) -> None:
        """Compare the gradients, then append the times of forward with backward and the bytes kept between the two."""
        self._set_training(True)
        runs = {"rival": _with_backward(self.rival), "ours": _with_backward(self.ours)}
        gradients = {name: run() for name, run in runs.items()}
        floor = GRADIENT_FLOOR * max(float(gradient.abs().max()) for gradient in gradients["rival"].values())
        compare_outputs(*_same_shapes(**gradients), rtol=GRADIENT_RTOL, atol=floor)
        del gradients
        times = alternate(runs, repeats)
        table.add_times(f"{self.name}, forward + backward", times["rival"], times["ours"], target)
        known = [*self.given, *self.rival.leaves.values(), *self.ours.leaves.values()]
        rival, ours = (kept_bytes(side.forward, [*known, *side.modules]) for side in (self.rival, self.ours))
        table.add_bytes(f"{self.name}, kept for backward", rival, ours, kept_target)

    def _set_training(self, training: bool) -> None:
        for module in (*self.rival.modules, *self.ours.modules):
            module.train(training)


def _listed(outputs: Tensor | Sequence[Tensor]) -> list[Tensor]:
    return [outputs] if isinstance(outputs, Tensor) else list(outputs)


def _with_backward(side: Side) -> Callable[[], dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        cotangents = [torch.randn(y.shape, generator=generator) for y in _listed(side.forward())]

    def run() -> dict[str, Tensor]:
        gradients = torch.autograd.grad(_listed(side.forward()), list(side.leaves.values()), cotangents)
        return dict(zip(side.leaves, gradients, strict=True))

    return run


def _same_shapes(
    rival: Mapping[str, Tensor], ours: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Line up gradients: 1x1 convolutions are Linear layers in ours, and three equal filters of the rival's are one."""
    shaped = {
        name: rival[name].flatten(1)[:, : g[0].numel()] if g.ndim > 1 else rival[name] for name, g in ours.items()
    }
    return shaped, {name: g.flatten(1) if g.ndim > 1 else g for name, g in ours.items()}
