"""Trainer classes put together from the parts of their names."""

from typing import Any

import torch
from nnunetv2.training.loss.deep_supervision import DeepSupervisionWrapper
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from torch import nn

from nnunet_gdla.trainers import nnunet_trainer_pvt_attention as comparators
from nnunet_gdla.trainers.nnunet_gdla_supervision import supervise
from nnunet_gdla.trainers.nnunet_trainer_gdla import nnUNetTrainerGDLA
from nnunet_gdla.trainers.nnunet_trainer_gdla_paper import PaperTraining

__all__ = ["DiceCE", "NoMirroring", "build_trainer"]

_STEMS: dict[str, type[nnUNetTrainerGDLA]] = {
    "nnUNetTrainerGDLA": nnUNetTrainerGDLA,
    "nnUNetTrainerPVTLinearAttn": comparators.nnUNetTrainerPVTLinearAttn,
    "nnUNetTrainerPVTSelfAttn": comparators.nnUNetTrainerPVTSelfAttn,
    "nnUNetTrainerPVTDiffAttn": comparators.nnUNetTrainerPVTDiffAttn,
}
_CUDA = torch.device("cuda")


class DiceCE:
    """nnU-Net's Dice and cross-entropy (regions: binary cross-entropy) on every output, with our weights."""

    enable_deep_supervision: bool

    def _build_loss(self) -> nn.Module:
        stock = nnUNetTrainer._build_loss(self)
        single = stock.loss if isinstance(stock, DeepSupervisionWrapper) else stock
        return supervise(single, self.enable_deep_supervision)


class NoMirroring:
    """No mirroring in augmentation and, stored in the checkpoint, none in prediction."""

    inference_allowed_mirroring_axes: tuple[int, ...] | None

    def configure_rotation_dummyDA_mirroring_and_inital_patch_size(self) -> tuple[Any, ...]:  # noqa: N802
        """nnU-Net's own choices, less the mirroring."""
        rotation, dummy, patch, _ = super().configure_rotation_dummyDA_mirroring_and_inital_patch_size()  # type: ignore[misc]
        self.inference_allowed_mirroring_axes = None
        return rotation, dummy, patch, None


def build_trainer(
    name: str, *, stem: str, encoder: str | None, paper: bool, dice_ce: bool, no_mirroring: bool, epochs: int | None
) -> type[nnUNetTrainerGDLA]:
    """The class for the parts of a name; a bare stem is the class itself.

    Args:
        name: Whole name; nnU-Net writes it into folder names and checkpoints.
        stem: Name without suffixes.
        encoder: Encoder fixed by the name.
        paper: The paper's training.
        dice_ce: Dice and cross-entropy instead of boundary DoU.
        no_mirroring: Neither train nor predict with mirroring.
        epochs: Length of the training.
    """
    if name == stem:
        return _STEMS[stem]
    parts = ((PaperTraining, paper), (DiceCE, dice_ce), (NoMirroring, no_mirroring))
    bases: tuple[type, ...] = (*(part for part, is_in_name in parts if is_in_name), _STEMS[stem])
    if paper and issubclass(PaperTraining, bases[-1]):
        bases = bases[:-1]  # the stem is its parent
    # The package resolves the name again by attribute, so that the class pickles like one from a file.
    body: dict[str, Any] = {"__module__": "nnunet_gdla.trainers", "__doc__": f"{stem}, as its name {name} says."}
    if encoder is not None:
        body["encoder"] = encoder
    if paper:
        body["float32"] = True  # so that the network of this name's decoder is made
    if epochs is not None:
        body["__init__"] = _constructor(PaperTraining if paper else _STEMS[stem], epochs)
    return type(name, bases, body)


def _constructor(parent: type[nnUNetTrainerGDLA], epochs: int) -> Any:  # noqa: ANN401
    def __init__(  # noqa: N807
        self: nnUNetTrainerGDLA,
        plans: dict[str, Any],
        configuration: str,
        fold: int | str,
        dataset_json: dict[str, Any],
        device: torch.device = _CUDA,
    ) -> None:
        parent.__init__(self, plans, configuration, fold, dataset_json, device)
        self.num_epochs = epochs

    return __init__
