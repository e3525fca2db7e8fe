"""A small dataset with plans and preprocessed data, made by nnU-Net's preprocessor without its processes."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nnunetv2.preprocessing.preprocessors.default_preprocessor import DefaultPreprocessor
from nnunetv2.utilities.plans_handling.plans_handler import PlansManager

from nnunet_gdla.commands.dataset_files import list_training_cases
from nnunet_gdla.commands.dataset_json import describe
from nnunet_gdla.networks.pvt_gdla import PLAN_STRIDES

__all__ = ["FOLDERS", "PLANS", "edit_json", "fresh", "hard_copy", "prepare"]

FOLDERS = ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results")
PLANS = "nnUNetPlans"


def prepare(raw: Path, preprocessed: Path, reader: str, spacing: list[float]) -> Path:
    """Write plans for a raw dataset and preprocess it.

    Args:
        raw: The raw dataset.
        preprocessed: nnUNet_preprocessed.
        reader: Name of nnU-Net's reader.
        spacing: Of the 2d configuration.

    Returns:
        The dataset's folder in nnUNet_preprocessed.
    """
    folder = preprocessed / raw.name
    data, truth = folder / f"{PLANS}_2d", folder / "gt_segmentations"
    for each in (data, truth):
        each.mkdir(parents=True)
    shutil.copy(raw / "dataset.json", folder)
    (folder / "dataset_fingerprint.json").write_text("{}")
    description = describe(json.loads((raw / "dataset.json").read_text()))
    plans = _plans(raw.name, reader, spacing, len(description.channels))
    (folder / f"{PLANS}.json").write_text(json.dumps(plans))
    manager = PlansManager(plans)
    configuration = manager.get_configuration("2d")
    for case in list_training_cases(raw, description):
        DefaultPreprocessor(verbose=False).run_case_save(
            str(data / case.name),
            [str(path) for path in case.images],
            str(case.label),
            manager,
            configuration,
            description.content,
        )
        shutil.copy2(str(case.label), truth / f"{case.name}{description.ending}")
    return folder


def _plans(dataset: str, reader: str, spacing: list[float], channels: int) -> dict[str, Any]:
    intensities = dict.fromkeys(("max", "mean", "median", "min", "percentile_00_5", "percentile_99_5", "std"), 1.0)
    resampling = {"order": 3, "order_z": 0, "force_separate_z": None}
    configuration = {
        "data_identifier": f"{PLANS}_2d",
        "preprocessor_name": "DefaultPreprocessor",
        "batch_size": 2,
        "patch_size": [32, 32],
        "median_image_size_in_voxels": [40.0, 48.0],
        "spacing": spacing,
        "normalization_schemes": ["ZScoreNormalization"] * channels,
        "use_mask_for_norm": [False] * channels,
        "resampling_fn_data": "resample_data_or_seg_to_shape",
        "resampling_fn_data_kwargs": {**resampling, "is_seg": False},
        "resampling_fn_seg": "resample_data_or_seg_to_shape",
        "resampling_fn_seg_kwargs": {**resampling, "is_seg": True, "order": 1},
        "resampling_fn_probabilities": "resample_data_or_seg_to_shape",
        "resampling_fn_probabilities_kwargs": {**resampling, "is_seg": False, "order": 1},
        "architecture": {
            "network_class_name": "nnunet_gdla.networks.PVTGDLA",
            "arch_kwargs": {"encoder": "pvt_v2_b0", "decoder": "gdla", "gate": "silu", "strides": PLAN_STRIDES},
            "_kw_requires_import": [],
        },
        "batch_dice": True,
    }
    return {
        "dataset_name": dataset,
        "plans_name": PLANS,
        "original_median_spacing_after_transp": [1.0, *spacing],
        "original_median_shape_after_transp": [1, 40, 48],
        "image_reader_writer": reader,
        "transpose_forward": [0, 1, 2],
        "transpose_backward": [0, 1, 2],
        "configurations": {"2d": configuration},
        "experiment_planner_used": "ExperimentPlanner",
        "label_manager": "LabelManager",
        "foreground_intensity_properties_per_channel": {str(number): intensities for number in range(channels)},
    }


def hard_copy(source: Path, target: Path) -> None:
    """Copy a tree by links; whoever changes a file has to replace it, as `fresh` does."""
    shutil.copytree(source, target, copy_function=os.link)


def fresh(path: Path) -> Path:
    """Give a linked file a content of its own, before it is changed in place."""
    content = path.read_bytes()
    state = path.stat()
    path.unlink()
    path.write_bytes(content)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    return path


def edit_json(path: Path, edit: Callable[[Any], Any]) -> None:
    """Write what `edit` makes of a JSON file's content; the content itself where it returns None."""
    content = json.loads(path.read_text())
    changed = edit(content)
    path.unlink()
    path.write_text(json.dumps(content if changed is None else changed))
