"""The naming rule of our trainers; standard library only until a name is resolved."""

import functools
import re
from typing import Any

from nnunet_gdla.errors import install_excepthook

__all__ = ["EXAMPLES", "RULE", "contradiction", "is_ours", "looks_like_ours", "resolve"]

RULE = (
    "nnUNetTrainerGDLA | nnUNetTrainerPVTLinearAttn | nnUNetTrainerPVTSelfAttn | nnUNetTrainerPVTDiffAttn, "
    "then [_B0|_B1|_B3|_B4|_B5][_Paper | [_DiceCE][_NoMirroring]][_1epoch|_Nepochs] in this order"
)
EXAMPLES = (
    "nnUNetTrainerGDLA",
    "nnUNetTrainerGDLA_B0",
    "nnUNetTrainerGDLA_Paper",
    "nnUNetTrainerGDLA_DiceCE",
    "nnUNetTrainerGDLA_NoMirroring",
    "nnUNetTrainerGDLA_1epoch",
    "nnUNetTrainerGDLA_B4_DiceCE_NoMirroring_500epochs",
    "nnUNetTrainerPVTLinearAttn",
    "nnUNetTrainerPVTSelfAttn_50epochs",
    "nnUNetTrainerPVTDiffAttn_B1",
    "nnUNetTrainerPVTSelfAttn_B0_Paper_2epochs",
)

_STEMS = ("nnUNetTrainerGDLA", "nnUNetTrainerPVTLinearAttn", "nnUNetTrainerPVTSelfAttn", "nnUNetTrainerPVTDiffAttn")
_NAME = re.compile(
    rf"(?P<stem>{'|'.join(_STEMS)})(?:_(?P<encoder>B[01345]))?"
    r"(?:(?P<paper>_Paper)|(?P<dice_ce>_DiceCE)?(?P<no_mirroring>_NoMirroring)?)"
    r"(?:_(?P<epochs>1(?=epoch)|[1-9][0-9]*(?=epochs))epochs?)?"
)


def is_ours(name: str) -> bool:
    """Whether a name follows the rule."""
    return _NAME.fullmatch(name) is not None


def looks_like_ours(name: str) -> bool:
    """Whether somebody who wrote this name probably meant one of ours."""
    return name.startswith(("nnUNetTrainerGDLA", "nnUNetTrainerPVT"))


def contradiction(name: str) -> str:
    """What a wrong name contradicts, `_Paper` or any training, as a sentence; empty if nothing does."""
    parts = name.split("_")
    if re.fullmatch("0+epochs?", parts[-1]):
        return f"_{parts[-1]} would train nothing, write at least _1epoch; "
    if "Paper" not in parts:
        return ""
    why = {
        "DiceCE": "_DiceCE contradicts _Paper, whose loss is the paper's boundary DoU",
        "NoMirroring": "_NoMirroring contradicts _Paper, which flips in training and never in prediction",
    }
    found = [reason for part, reason in why.items() if part in parts]
    return "; ".join(found) + "; leave it out or leave _Paper out; " if found else ""


@functools.cache
def resolve(name: str) -> type[Any]:
    """The trainer class of a name; asked twice it is the same class, so that it pickles.

    Raises:
        AttributeError: If the name does not follow the rule (nnU-Net then goes on searching).
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise AttributeError(f"{name!r} is not a trainer of nnunet_gdla; {contradiction(name)}names are {RULE}")
    install_excepthook()
    from nnunet_gdla.trainers.nnunet_gdla_variants import build_trainer

    return build_trainer(
        name,
        stem=match["stem"],
        encoder=f"pvt_v2_{match['encoder'].lower()}" if match["encoder"] else None,
        paper=match["paper"] is not None,
        dice_ce=match["dice_ce"] is not None,
        no_mirroring=match["no_mirroring"] is not None,
        epochs=int(match["epochs"]) if match["epochs"] else None,
    )
