"""Which attention, correction and placement go together, and in which blocks a correction acts."""

import math
from typing import Literal, NamedTuple, get_args

__all__ = ["Attention", "Combination", "Placement", "acts_in_block", "read_combination"]

Attention = Literal["nystrom", "softmax", "linear", "gdla", "diff"]
Placement = Literal["post", "pre_q", "pre_k", "pre_v"]

ALLOWED = (
    "correction 'none' with every attention; 'srp', 'fixed:<beta>' and 'fixed:learned' with nystrom, softmax, linear, "
    "gdla; 'xsa' with nystrom, softmax, linear; placement 'pre_q', 'pre_k', 'pre_v' for srp and fixed with nystrom, "
    "softmax; everything else is placed 'post'"
)
ATTENTIONS_OF = {
    "none": ("nystrom", "softmax", "linear", "gdla", "diff"),
    "srp": ("nystrom", "softmax", "linear", "gdla"),
    "fixed": ("nystrom", "softmax", "linear", "gdla"),
    "xsa": ("nystrom", "softmax", "linear"),
}


class Combination(NamedTuple):
    """Checked choices: `correction` without its value, `beta` only where it is "fixed"."""

    attention: Attention
    correction: Literal["none", "srp", "fixed", "xsa"]
    placement: Placement
    beta: float | Literal["learned"] | None = None

    @property
    def needs_graph(self) -> bool:
        """Whether the correction looks at neighbours."""
        return self.correction in ("srp", "fixed")


def read_combination(attention: str, correction: str, placement: str) -> Combination:
    """Check three choices against each other.

    Args:
        attention: "nystrom", "softmax", "linear", "gdla" or "diff".
        correction: "srp", "xsa", "none", "fixed:<number>" or "fixed:learned".
        placement: "post", "pre_q", "pre_k" or "pre_v"; a hyphen will do.

    Raises:
        ValueError: If a choice is unknown or they do not go together; the message lists what does.
    """
    kind, _, value = correction.partition(":")
    where = placement.replace("-", "_")
    beta = _read_beta(correction, value) if kind == "fixed" else None
    fits = kind in ATTENTIONS_OF and attention in ATTENTIONS_OF[kind] and where in get_args(Placement)
    if fits and where != "post":
        fits = kind in ("srp", "fixed") and attention in ("nystrom", "softmax")
    if not fits or (kind != "fixed" and correction != kind):
        raise ValueError(
            f"attention {attention!r} with correction {correction!r} and placement {placement!r} is not available; "
            f"choose {ALLOWED}"
        )
    return Combination(attention, kind, where, beta)  # type: ignore[arg-type] # checked above


def _read_beta(correction: str, value: str) -> float | Literal["learned"]:
    if value == "learned":
        return "learned"
    try:
        beta = float(value)
    except ValueError:
        beta = math.nan
    if not math.isfinite(beta):
        raise ValueError(f"correction {correction!r} must name a number or 'learned' behind the colon, as 'fixed:1.0'")
    return beta


def acts_in_block(combination: Combination, block: int, depth: int) -> bool:
    """Whether the correction can reach the class token from this block, and so is built there.

    Behind the last attention only the class row is read: corrected patch rows and queries would not show. Corrected
    keys and values do, and so does XSA, which corrects the class row too.
    """
    if combination.correction == "none":
        return False
    return block < depth - 1 or combination.correction == "xsa" or combination.placement in ("pre_k", "pre_v")
