"""Planners that nnU-Net finds by name, imported when asked for."""

__all__ = ["PLANNERS"]

PLANNERS: tuple[str, ...] = ("nnUNetPlannerGDLA",)


def __getattr__(name: str) -> type:
    if name == "nnUNetPlannerGDLA":
        from nnunet_gdla.plans.nnunet_planner_gdla import nnUNetPlannerGDLA

        return nnUNetPlannerGDLA
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
