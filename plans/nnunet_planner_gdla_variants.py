"""Planners of the other encoders: nnUNetPlannerGDLA_B0 and its kin, each with plans of its own name."""

import functools

from nnunet_gdla.plans.nnunet_planner_gdla import nnUNetPlannerGDLA

__all__ = ["planner_of"]

_DEFAULT = nnUNetPlannerGDLA.encoder.rpartition("_")[2].upper()


@functools.cache
def planner_of(encoder: str) -> type[nnUNetPlannerGDLA]:
    """The planner whose plans name this encoder; asked twice it is the same class.

    Args:
        encoder: "pvt_v2_b0" to "pvt_v2_b5".
    """
    short = encoder.rpartition("_")[2].upper()
    return nnUNetPlannerGDLA if short == _DEFAULT else _build(encoder, short)


def _build(encoder_name: str, short: str) -> type[nnUNetPlannerGDLA]:
    class Variant(nnUNetPlannerGDLA):
        """One planner of the family; its name, and words of its own, come below."""

        encoder = encoder_name

        def __init__(
            self,
            dataset_name_or_id: str | int,
            gpu_memory_target_in_gb: float | int = 8,
            preprocessor_name: str = "DefaultPreprocessor",
            plans_name: str = f"nnUNetGDLAPlans_{short}",
            overwrite_target_spacing: list[float] | tuple[float, ...] | None = None,
            suppress_transpose: bool = False,
        ) -> None:
            super().__init__(
                dataset_name_or_id,
                gpu_memory_target_in_gb,
                preprocessor_name,
                plans_name,
                overwrite_target_spacing,
                suppress_transpose,
            )

    Variant.__name__ = Variant.__qualname__ = f"nnUNetPlannerGDLA_{short}"
    Variant.__doc__ = f"nnUNetPlannerGDLA with the encoder {encoder_name} and plans nnUNetGDLAPlans_{short}."
    return Variant
