"""One loss on every output of the network, with halving weights."""

from collections.abc import Sequence

import torch
from nnunetv2.training.loss.deep_supervision import DeepSupervisionWrapper
from torch import Tensor, nn
from torch.nn import functional

from nnunet_gdla.networks import PVTGDLA
from nnunet_gdla.networks.pvt_gdla import OUTPUT_STRIDES

__all__ = ["FullResolutionSum", "SupervisedOutputs", "output_scales", "supervise"]


def output_scales(patch_size: Sequence[int]) -> list[list[float]]:
    """Scales, per output and axis, from which nnU-Net's rounding gives exactly the sizes of our outputs."""
    return [
        [edge / full for edge, full in zip(size, patch_size, strict=True)] for size in PVTGDLA.output_sizes(patch_size)
    ]


def supervise(loss: nn.Module, enabled: bool) -> nn.Module:
    """`loss` on all outputs with weights 1, 1/2, 1/4, 1/8 over their sum; without deep supervision as it is."""
    if not enabled:
        return loss
    weights = [0.5**level for level in range(len(OUTPUT_STRIDES))]
    return SupervisedOutputs(loss, [weight / sum(weights) for weight in weights])


class SupervisedOutputs(DeepSupervisionWrapper):
    """nnU-Net's weighted sum over outputs, which also refuses outputs and targets that do not belong together."""

    def forward(self, outputs: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
        """Weighted sum of the loss over (output, target) pairs.

        Raises:
            ValueError: If their numbers or sizes differ; the stock wrapper would drop what has no partner.
        """
        found = [tuple(output.shape[2:]) for output in outputs]
        wanted = [tuple(target.shape[2:]) for target in targets]
        if found != wanted or len(found) != len(self.weight_factors):
            raise ValueError(
                f"network outputs of sizes {found} and targets of sizes {wanted} must agree and be "
                f"{len(self.weight_factors)}; do the plans' strides fit this network?"
            )
        return super().forward(outputs, targets)


class FullResolutionSum(nn.Module):
    """The paper's loss: outputs scaled up bilinearly to the target's size, one loss on each, their plain sum.

    Args:
        loss: Of one output and the target.
    """

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, outputs: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
        """Sum over (B, K, h, w) outputs of the loss with the one (B, C, H, W) target; 0 to the number of outputs."""
        (target,) = targets
        size = target.shape[2:]
        full = [
            output if output.shape[2:] == size else functional.interpolate(output, size, mode="bilinear")
            for output in outputs
        ]
        return torch.stack([self.loss(output, target) for output in full]).sum()
