"""The paper's comparators: same encoder, recipe and stem, other attention in the decoder."""

from typing import ClassVar

from nnunet_gdla.trainers.nnunet_trainer_gdla import nnUNetTrainerGDLA

__all__ = ["nnUNetTrainerPVTDiffAttn", "nnUNetTrainerPVTLinearAttn", "nnUNetTrainerPVTSelfAttn"]


class nnUNetTrainerPVTLinearAttn(nnUNetTrainerGDLA):
    """Linear attention in the decoder."""

    decoder: ClassVar[str] = "linear"


class nnUNetTrainerPVTSelfAttn(nnUNetTrainerGDLA):
    """Softmax attention in the decoder."""

    decoder: ClassVar[str] = "self"


class nnUNetTrainerPVTDiffAttn(nnUNetTrainerGDLA):
    """Softmax differential attention in the decoder."""

    decoder: ClassVar[str] = "diff"
