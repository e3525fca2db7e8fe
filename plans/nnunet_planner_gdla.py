"""nnUNetPlannerGDLA: stock 2D preprocessing, with patch and batch from a memory model of our network."""

import json
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, SupportsIndex

import numpy as np
from nnunetv2.experiment_planning.experiment_planners.default_experiment_planner import ExperimentPlanner
from nnunetv2.paths import nnUNet_preprocessed
from nnunetv2.preprocessing.resampling.default_resampling import compute_new_shape
from nnunetv2.utilities.json_export import recursive_fix_for_json_export
from nnunetv2.utilities.label_handling.label_handling import LabelManager
from numpy.typing import NDArray

from nnunet_gdla.errors import install_excepthook
from nnunet_gdla.files import replaced
from nnunet_gdla.in_use import in_use
from nnunet_gdla.networks.pvt_gdla import PLAN_STRIDES
from nnunet_gdla.plans.nnunet_gdla_folders import fill_folder, free_identifier, unnamed_folders
from nnunet_gdla.plans.nnunet_gdla_memory import (
    GIB,
    Device,
    TrainingMemory,
    check_target,
    largest_batch,
    training_memory,
)
from nnunet_gdla.plans.nnunet_gdla_patch import MIN_BATCH, choose_batch, choose_patch
from nnunet_gdla.plans.nnunet_gdla_reuse import choose_data, current_identifier, read_json
from nnunet_gdla.plans.nnunet_gdla_sizes import NetworkSize

__all__ = ["nnUNetPlannerGDLA"]


class nnUNetPlannerGDLA(ExperimentPlanner):
    """Plan the 2d configuration: nnU-Net's preprocessing, PVTGDLA, patch and batch that fit the memory target.

    Patches are multiples of 32 and cover the median image where two of them fit the target, else they are the largest
    that do, in the shape of the median image. The batch fills the target and shows at most 5 % of the data, as in stock
    planning. 3D configurations are left out: the network is 2D. Takes the arguments of nnU-Net's ExperimentPlanner.

    Subclasses may set `encoder` and `decoder`. What stock commands cannot say is set on the instance before
    `plan_experiment`: `device` ("cuda", or "cpu": float32, RAM, small batches), `fixed_patch`, `fixed_batch`,
    `reuse_data`, with which the plans name data that are there already, and `preprocess`, which then makes those that
    are not, under the name of plans that it is given. Reuse is off by default because nnU-Net's own preprocessing
    deletes the folder that the plans name before it fills it; only one that a training of ours reads is spared.

    Raises:
        UserError: If the memory target is no number of at least 0.001 GB.
    """

    encoder: ClassVar[str] = "pvt_v2_b2"
    decoder: ClassVar[str] = "gdla"

    def __init__(
        self,
        dataset_name_or_id: str | int,
        gpu_memory_target_in_gb: float | int = 8,
        preprocessor_name: str = "DefaultPreprocessor",
        plans_name: str = "nnUNetGDLAPlans",
        overwrite_target_spacing: list[float] | tuple[float, ...] | None = None,
        suppress_transpose: bool = False,
    ) -> None:
        install_excepthook()
        check_target(gpu_memory_target_in_gb)
        super().__init__(
            dataset_name_or_id,
            gpu_memory_target_in_gb,
            preprocessor_name,
            plans_name,
            overwrite_target_spacing,
            suppress_transpose,
        )
        self.device: Device = "cuda"
        self.fixed_patch: Sequence[int] | None = None
        self.fixed_batch: int | None = None
        self.reuse_data = False
        self.preprocess: Callable[[str], None] | None = None
        self.data_ready = False
        self.memory: TrainingMemory | None = None
        self.notes: list[str] = []

    @staticmethod
    def static_estimate_VRAM_usage(  # noqa: N802
        patch_size: Sequence[SupportsIndex],
        input_channels: int,
        output_channels: int,
        arch_class_name: str,
        arch_kwargs: dict[str, Any],
        arch_kwargs_req_import: tuple[str, ...],
    ) -> int:
        """One: stock planning asks about its own U-Net, and patch and batch come from our memory model instead."""
        return 1

    def determine_transpose(self) -> tuple[list[int], list[int]]:
        """Stock order of axes, except that an axis with a single slice comes first, whatever its spacing.

        Stock planning puts the axis of the largest spacing first; with one slice and pixels wider than the slice is
        thick, its 2D images would be lines.
        """
        forward, backward = super().determine_transpose()
        forward = [int(axis) for axis in forward]
        flat = np.flatnonzero(np.median(self.dataset_fingerprint["shapes_after_crop"], 0) == 1)
        if not self.suppress_transpose and len(flat) == 1 and forward[0] != flat[0]:
            forward = [int(flat[0]), *(axis for axis in range(3) if axis != flat[0])]
        else:
            return forward, [int(axis) for axis in backward]
        return forward, [forward.index(axis) for axis in range(3)]

    def plan_experiment(self) -> dict[str, Any]:
        """Plan the 2d configuration, save the plans and return them."""
        self.notes = []
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
            self._note(f"{type(self).__name__} plans the 2d configuration only: PVT-GDLA is a 2D network.")
        plan = self._plan_2d(spacing[forward][1:], median_shape[1:], voxels)
        self.plans = {
            "dataset_name": self.dataset_name,
            "plans_name": self.plans_identifier,
            "original_median_spacing_after_transp": np.median(fingerprint["spacings"], 0)[forward].tolist(),
            "original_median_shape_after_transp": [
                round(edge) for edge in np.median(fingerprint["shapes_after_crop"], 0)[forward].tolist()
            ],
            "image_reader_writer": self.determine_reader_writer().__name__,
            "transpose_forward": forward,
            "transpose_backward": backward,
            "configurations": {"2d": plan},
            "experiment_planner_used": type(self).__name__,
            "label_manager": "LabelManager",
            "foreground_intensity_properties_per_channel": fingerprint["foreground_intensity_properties_per_channel"],
        }
        self._settle_data()
        print(f"2D PVT-GDLA configuration:\n{plan}\n")
        self.save_plans(self.plans)
        for sentence in unnamed_folders(self._folder(), self.generate_data_identifier("2d")):
            self._note(sentence)
        return self.plans

    def save_plans(self, plans: dict[str, Any]) -> None:
        """Save the plans in one step, and keep configurations that the user added to an earlier file."""
        recursive_fix_for_json_export(plans)
        path = self._folder() / f"{self.plans_identifier}.json"
        for name, configuration in (read_json(path) or {}).get("configurations", {}).items():
            plans["configurations"].setdefault(name, configuration)
        text = json.dumps(plans, indent=4)
        replaced(path, lambda unfinished: unfinished.write_text(text))
        print(f"Plans were saved to {path}")

    def _settle_data(self) -> None:
        """Choose the data identifier, make the data if asked to, and copy dataset.json, as stock planning does."""
        folder, flat = self._folder(), self.plans["configurations"]["2d"]
        own = flat["data_identifier"]
        raw_description = Path(self.raw_dataset_folder) / "dataset.json"
        if self.reuse_data:
            data = choose_data(
                folder,
                self.plans,
                self.dataset,
                self.dataset_json,
                shapes=self.dataset_fingerprint["shapes_after_crop"],
                replace=self.preprocess is not None,
            )
            flat["data_identifier"], self.data_ready = data.identifier, data.ready
            for note in data.notes:
                self._note(note)
        else:
            flat["data_identifier"] = self._spare_what_is_read(own)
        replaced(folder / "dataset.json", lambda unfinished: shutil.copy(raw_description, unfinished))
        if self.preprocess is not None and not self.data_ready:
            flat["data_identifier"] = fill_folder(folder, self.plans, own, self.preprocess)
            self.data_ready = True

    def _spare_what_is_read(self, own: str) -> str:
        current = current_identifier(self._folder(), self.plans_identifier, own)
        if not in_use(self._folder() / current):
            return current
        other = free_identifier(self._folder(), own)
        self._note(f"A training reads {current} now, so these plans name {other}, which has to be made.")
        return other

    def _folder(self) -> Path:
        return Path(str(nnUNet_preprocessed)) / self.dataset_name

    def _plan_2d(
        self, spacing: NDArray[np.float64], median_shape: NDArray[np.float64], voxels: float
    ) -> dict[str, Any]:
        plan: dict[str, Any] = self.get_plans_for_configuration(
            spacing, median_shape, self.generate_data_identifier("2d"), voxels, {}
        )
        size = self._network_size()
        budget = round(self.UNet_vram_target_GB * GIB)
        patch = list(self.fixed_patch or choose_patch(size, median_shape.tolist(), budget, self.device))
        share = round(voxels * self.max_dataset_covered / math.prod(patch))
        plan["patch_size"] = patch
        plan["batch_size"] = self.fixed_batch or choose_batch(size, patch, budget, self.device, share)
        plan["architecture"] = {
            "network_class_name": "nnunet_gdla.networks.PVTGDLA",
            "arch_kwargs": {"encoder": self.encoder, "decoder": self.decoder, "gate": "silu", "strides": PLAN_STRIDES},
            "_kw_requires_import": [],
        }
        plan["batch_dice"] = True
        self._predict_memory(size, plan, budget)
        return plan

    def _network_size(self) -> NetworkSize:
        description = self.dataset_json
        channels = description["channel_names"] if "channel_names" in description else description["modality"]
        labels = LabelManager(description["labels"], description.get("regions_class_order"))
        return NetworkSize(self.encoder, self.decoder, len(channels), labels.num_segmentation_heads)

    def _predict_memory(self, size: NetworkSize, plan: dict[str, Any], budget: int) -> None:
        self.memory = training_memory(size, plan["patch_size"], plan["batch_size"], self.device)
        needed = self.memory.total
        if needed > budget:
            self._note(
                f"A step with patch {plan['patch_size']} and batch {plan['batch_size']} needs about "
                f"{needed / GIB:.1f} GiB, more than the {budget / GIB:g} given: {self._advice(size, plan, budget)}."
            )

    def _advice(self, size: NetworkSize, plan: dict[str, Any], budget: int) -> str:
        fitting = largest_batch(size, plan["patch_size"], budget, self.device)
        if self.fixed_batch and fitting >= 1:
            return f"a batch of {fitting} fits"
        if self.fixed_patch:
            patch = choose_patch(size, [float(edge) for edge in self.fixed_patch], budget, self.device)
            if largest_batch(size, patch, budget, self.device) >= MIN_BATCH:
                return f"a patch of {patch[0]} x {patch[1]} with a batch of {MIN_BATCH} fits"
        return "take a smaller encoder or give more"

    def _note(self, sentence: str) -> None:
        self.notes.append(sentence)
        print(sentence)
