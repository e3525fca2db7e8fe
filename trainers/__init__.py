"""Trainers that nnU-Net finds by name; `nnunet_gdla.trainers.NAME` resolves any name of the naming rule.

Nothing is imported before a trainer is asked for: nnU-Net's search for somebody else's trainer passes through here.
"""

from typing import TYPE_CHECKING

from nnunet_gdla.trainers.nnunet_gdla_naming import EXAMPLES, RULE, is_ours, resolve

__all__ = ["EXAMPLES", "RULE", "is_ours", "resolve"]

if TYPE_CHECKING:  # real classes for type checkers, also to derive from
    from nnunet_gdla.trainers.nnunet_trainer_gdla import nnUNetTrainerGDLA as nnUNetTrainerGDLA
    from nnunet_gdla.trainers.nnunet_trainer_pvt_attention import nnUNetTrainerPVTDiffAttn as nnUNetTrainerPVTDiffAttn
    from nnunet_gdla.trainers.nnunet_trainer_pvt_attention import (
        nnUNetTrainerPVTLinearAttn as nnUNetTrainerPVTLinearAttn,
    )
    from nnunet_gdla.trainers.nnunet_trainer_pvt_attention import nnUNetTrainerPVTSelfAttn as nnUNetTrainerPVTSelfAttn


def __getattr__(name: str) -> "type[nnUNetTrainerGDLA]":
    if is_ours(name):
        return resolve(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *EXAMPLES})
