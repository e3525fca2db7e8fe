"""Planners that nnU-Net finds by name, imported when asked for."""

from typing import TYPE_CHECKING

__all__ = ["PLANNERS"]

_ENCODERS = {
    "nnUNetPlannerGDLA": "pvt_v2_b2",
    "nnUNetPlannerGDLA_B0": "pvt_v2_b0",
    "nnUNetPlannerGDLA_B1": "pvt_v2_b1",
    "nnUNetPlannerGDLA_B3": "pvt_v2_b3",
    "nnUNetPlannerGDLA_B4": "pvt_v2_b4",
    "nnUNetPlannerGDLA_B5": "pvt_v2_b5",
}
PLANNERS: tuple[str, ...] = tuple(_ENCODERS)


if TYPE_CHECKING:  # a real class for type checkers, also to derive from
    from nnunet_gdla.plans.nnunet_planner_gdla import nnUNetPlannerGDLA as nnUNetPlannerGDLA


def __getattr__(name: str) -> "type[nnUNetPlannerGDLA]":
    if name in _ENCODERS:
        from nnunet_gdla.plans.nnunet_planner_gdla_variants import planner_of

        return planner_of(_ENCODERS[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *PLANNERS})
