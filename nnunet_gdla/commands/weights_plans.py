"""Plans for a network that was not planned by nnU-Net: a released one, with the preprocessing it was trained on."""

from collections.abc import Mapping, Sequence
from typing import Any

from nnunet_gdla.errors import UserError
from nnunet_gdla.networks.pvt_gdla import PLAN_STRIDES

__all__ = ["choose_normalization", "make_plans"]

# The window that the released Synapse networks saw. nnU-Net's scheme for CT clips at two percentiles, subtracts the
# mean and divides by the standard deviation of the training images: with these numbers it scales the window to [0, 1].
CT_WINDOW = {
    "min": -125.0,
    "max": 275.0,
    "percentile_00_5": -125.0,
    "percentile_99_5": 275.0,
    "mean": -125.0,
    "std": 400.0,
    "median": 75.0,
}
NO_STATISTICS = {
    "min": 0.0,
    "max": 1.0,
    "percentile_00_5": 0.0,
    "percentile_99_5": 1.0,
    "mean": 0.0,
    "std": 1.0,
    "median": 0.5,
}
SCHEMES = {
    "ct-window": "CTNormalization",
    "rgb": "RGBTo01Normalization",
    "minmax": "RescaleTo01Normalization",
    "zscore": "ZScoreNormalization",
    "none": "NoNormalization",
}
PHOTOGRAPHS = (".png", ".bmp", ".tif")


def choose_normalization(asked: str, dataset_json: Mapping[str, Any]) -> list[str]:
    """Name nnU-Net's scheme for each channel.

    Args:
        asked: "auto" or a key of `SCHEMES`, for all channels.
        dataset_json: Names the channels, and tells photographs by their file ending.
    """
    from nnunetv2.preprocessing.normalization.map_channel_name_to_normalization import get_normalization_scheme

    channels = [str(name) for name in _channels(dataset_json).values()]
    if asked != "auto":
        return [SCHEMES[asked]] * len(channels)
    if len(channels) == 3 and str(dataset_json["file_ending"]).lower() in PHOTOGRAPHS:
        return [SCHEMES["rgb"]] * 3
    return [str(get_normalization_scheme(name).__name__) for name in channels]


def make_plans(
    *,
    name: str,
    dataset: str,
    dataset_json: Mapping[str, Any],
    arguments: Mapping[str, Any],
    schemes: Sequence[str],
    patch_size: Sequence[int],
    spacing: Sequence[float],
    batch_size: int,
) -> dict[str, Any]:
    """Make plans with a 2d configuration that names `PVTGDLA`.

    Args:
        name: Name of the plans.
        dataset: Full name of the dataset.
        dataset_json: Its dataset.json; says by which class images are read.
        arguments: Keyword arguments of `PVTGDLA`.
        schemes: nnU-Net's normalisation of each channel; for CT with the fixed window.
        patch_size: Height and width.
        spacing: Width of a pixel to which images are resampled.
        batch_size: For trainings.

    Raises:
        UserError: If a number is out of range.
    """
    if min(patch_size) < 1 or batch_size < 1 or not all(0 < width < float("inf") for width in spacing):
        raise UserError("--patch-size, --spacing and --batch-size must be greater than 0; correct the one that is not")
    widths = [float(width) for width in spacing]
    statistics = {
        str(number): dict(CT_WINDOW if scheme == "CTNormalization" else NO_STATISTICS)
        for number, scheme in enumerate(schemes)
    }
    configuration = {
        "data_identifier": f"{name}_2d",
        "batch_size": batch_size,
        **_preprocessing(schemes, patch_size, widths),
        "architecture": {
            "network_class_name": "nnunet_gdla.networks.PVTGDLA",
            "arch_kwargs": {**arguments, "strides": PLAN_STRIDES},
            "_kw_requires_import": [],
        },
        "batch_dice": True,
    }
    return {
        "dataset_name": dataset,
        "plans_name": name,
        "original_median_spacing_after_transp": [999.0, *widths],
        "original_median_shape_after_transp": [1, *patch_size],
        "image_reader_writer": _reader(dataset_json),
        "transpose_forward": [0, 1, 2],
        "transpose_backward": [0, 1, 2],
        "configurations": {"2d": configuration},
        "experiment_planner_used": "nnunet-gdla weights convert",
        "label_manager": "LabelManager",
        "foreground_intensity_properties_per_channel": statistics,
    }


def _preprocessing(schemes: Sequence[str], patch_size: Sequence[int], spacing: Sequence[float]) -> dict[str, Any]:
    """What is done to images, with nnU-Net's default resampling as its own planner writes it."""
    plan: dict[str, Any] = {
        "preprocessor_name": "DefaultPreprocessor",
        "patch_size": list(patch_size),
        "median_image_size_in_voxels": [float(edge) for edge in patch_size],
        "spacing": list(spacing),
        "normalization_schemes": list(schemes),
        "use_mask_for_norm": [False] * len(schemes),
    }
    for what, is_seg, order in (("data", False, 3), ("seg", True, 1), ("probabilities", False, 1)):
        plan[f"resampling_fn_{what}"] = "resample_data_or_seg_to_shape"
        plan[f"resampling_fn_{what}_kwargs"] = {
            "is_seg": is_seg,
            "order": order,
            "order_z": 0,
            "force_separate_z": None,
        }
    return plan


def _reader(dataset_json: Mapping[str, Any]) -> str:
    from nnunetv2.imageio.reader_writer_registry import determine_reader_writer_from_dataset_json

    try:
        return str(determine_reader_writer_from_dataset_json(dict(dataset_json), verbose=False).__name__)
    except RuntimeError as error:
        raise UserError(
            f"nnU-Net has no reader for file ending {dataset_json['file_ending']!r}; use one such as .png or .nii.gz"
        ) from error


def _channels(dataset_json: Mapping[str, Any]) -> dict[str, Any]:
    channels: dict[str, Any] = dataset_json["channel_names" if "channel_names" in dataset_json else "modality"]
    return channels
