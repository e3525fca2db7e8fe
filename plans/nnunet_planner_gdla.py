"""nnUNetPlannerGDLA: stock 2D planning with our network in the plans."""

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from nnunetv2.experiment_planning.experiment_planners.default_experiment_planner import ExperimentPlanner
from nnunetv2.paths import nnUNet_preprocessed
from nnunetv2.preprocessing.resampling.default_resampling import compute_new_shape
from nnunetv2.utilities.get_network_from_plans import get_network_from_plans
from numpy.typing import NDArray

from nnunet_gdla.networks.pvt_gdla import PLAN_STRIDES

__all__ = ["nnUNetPlannerGDLA"]

PATCH_MULTIPLE = 32


class nnUNetPlannerGDLA(ExperimentPlanner):
    """Plan the 2d configuration as nnU-Net does, with PVTGDLA and patches that are multiples of 32.

    The stock batch size is lowered by as much as the patch grows. 3D configurations are left out: the network is 2D.
    Takes the arguments of nnU-Net's ExperimentPlanner; plans are called nnUNetGDLAPlans unless told otherwise.
    """

    encoder = "pvt_v2_b2"

    def __init__(
        self,
        dataset_name_or_id: str | int,
        gpu_memory_target_in_gb: float = 8,
        preprocessor_name: str = "DefaultPreprocessor",
        plans_name: str = "nnUNetGDLAPlans",
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

    @staticmethod
    def static_estimate_VRAM_usage(  # noqa: N802
        patch_size: Sequence[SupportsIndex],
        input_channels: int,
        output_channels: int,
        arch_class_name: str,
        arch_kwargs: dict[str, Any],
        arch_kwargs_req_import: tuple[str, ...],
    ) -> int:
        """Feature-map elements of a network; leaves torch's thread count alone, which stops with nnUNet_n_proc_DA=0."""
        network = get_network_from_plans(
            arch_class_name, arch_kwargs, arch_kwargs_req_import, input_channels, output_channels, allow_init=False
        )
        return int(network.compute_conv_feature_map_size(patch_size))

    def plan_experiment(self) -> dict[str, Any]:
        """Plan the 2d configuration, save the plans and return them."""
        forward, backward = self.determine_transpose()
        spacing = self.determine_fullres_target_spacing()
        fingerprint = self.dataset_fingerprint
        sizes = [
            compute_new_shape(size, own, spacing)
            for own, size in zip(fingerprint["spacings"], fingerprint["shapes_after_crop"], strict=True)
        ]
        median_shape = np.median(sizes, 0)[forward]
        voxels = float(np.prod(median_shape, dtype=np.float64) * self.dataset_json["numTraining"])
        if median_shape[0] != 1:
            print("nnUNetPlannerGDLA plans the 2d configuration only: PVT-GDLA is a 2D network.")
        plan = self._plan_2d(spacing[forward][1:], median_shape[1:], voxels)
        print(f"2D PVT-GDLA configuration:\n{plan}\n")
        preprocessed = Path(str(nnUNet_preprocessed)) / self.dataset_name
        preprocessed.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(self.raw_dataset_folder) / "dataset.json", preprocessed / "dataset.json")
        self.plans = {
            "dataset_name": self.dataset_name,
            "plans_name": self.plans_identifier,
            "original_median_spacing_after_transp": np.median(fingerprint["spacings"], 0)[forward].tolist(),
            "original_median_shape_after_transp": [
                round(edge) for edge in np.median(fingerprint["shapes_after_crop"], 0)[forward].tolist()
            ],
            "image_reader_writer": self.determine_reader_writer().__name__,
            "transpose_forward": [int(axis) for axis in forward],
            "transpose_backward": [int(axis) for axis in backward],
            "configurations": {"2d": plan},
            "experiment_planner_used": type(self).__name__,
            "label_manager": "LabelManager",
            "foreground_intensity_properties_per_channel": fingerprint["foreground_intensity_properties_per_channel"],
        }
        self.save_plans(self.plans)
        return self.plans

    def _plan_2d(
        self, spacing: NDArray[np.float64], median_shape: NDArray[np.float64], voxels: float
    ) -> dict[str, Any]:
        plan: dict[str, Any] = self.get_plans_for_configuration(
            spacing, median_shape, self.generate_data_identifier("2d"), voxels, {}
        )
        stock_patch = [int(edge) for edge in plan["patch_size"]]
        patch = [math.ceil(edge / PATCH_MULTIPLE) * PATCH_MULTIPLE for edge in stock_patch]
        growth = math.prod(patch) / math.prod(stock_patch)
        plan["patch_size"] = patch
        plan["batch_size"] = max(self.UNet_min_batch_size, int(plan["batch_size"] / growth))
        plan["architecture"] = {
            "network_class_name": "nnunet_gdla.networks.PVTGDLA",
            "arch_kwargs": {"encoder": self.encoder, "decoder": "gdla", "gate": "silu", "strides": PLAN_STRIDES},
            "_kw_requires_import": [],
        }
        plan["batch_dice"] = True
        return plan
