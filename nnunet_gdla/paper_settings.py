"""What `nnunet-gdla recipe` writes into its plans and trainers with `_Paper` read: the lengths of the paper's training.

Standard library only.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from nnunet_gdla.errors import UserError

__all__ = ["AUGMENTATIONS", "PAPER_SEED", "SECTION", "SEED_VARIABLE", "PaperSettings", "read_paper_settings"]

SECTION = "nnunet_gdla_paper"  # a key of plans files; nnU-Net passes over keys that it does not know
PAPER_SEED = 42
SEED_VARIABLE = "NNUNET_GDLA_SEED"  # goes before the seed of the plans
AUGMENTATIONS = ("slices", "photographs")


@dataclass(frozen=True)
class PaperSettings:
    """One dataset's training; image size, batch and normalisation stand where nnU-Net reads them.

    Args:
        recipe: Name of the dataset.
        epochs: Length of the training.
        warmup_epochs: How many of them warm up.
        steps_per_epoch: Optimiser steps in each.
        augmentation: "slices" or "photographs".
        seed: Of weights, order of the images and augmentation.
    """

    recipe: str
    epochs: int
    warmup_epochs: int
    steps_per_epoch: int
    augmentation: str
    seed: int = PAPER_SEED

    def section(self) -> dict[str, Any]:
        """Return what stands under `SECTION` in plans."""
        return asdict(self)


def read_paper_settings(plans: Mapping[str, Any]) -> PaperSettings | None:
    """Return the settings in plans, None where there are none.

    Raises:
        UserError: If one is missing, unknown or out of range.
    """
    if SECTION not in plans:
        return None
    section, where = plans[SECTION], f"{SECTION!r} in the plans {plans.get('plans_name')!r}"
    again = "write them again with nnunet-gdla recipe NAME --write-plans --overwrite"
    names = {field.name for field in fields(PaperSettings)}
    if not isinstance(section, dict) or set(section) != names:
        found = ", ".join(map(str, section)) if isinstance(section, dict) else repr(section)
        raise UserError(f"{where} must have exactly {', '.join(sorted(names))}; it has {found}; {again}")
    for key, least in (("epochs", 1), ("warmup_epochs", 0), ("steps_per_epoch", 1), ("seed", 0)):
        value = section[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UserError(f"{key} in {where} is {value!r}; it must be a whole number of at least {least}; {again}")
    if section["warmup_epochs"] >= section["epochs"]:
        raise UserError(
            f"{where} has {section['warmup_epochs']} epochs of warm-up and {section['epochs']} epochs in all; the "
            f"warm-up must be shorter; {again}"
        )
    if section["augmentation"] not in AUGMENTATIONS:
        raise UserError(
            f"augmentation in {where} is {section['augmentation']!r}; choose one of {', '.join(AUGMENTATIONS)}; {again}"
        )
    return PaperSettings(**section)
