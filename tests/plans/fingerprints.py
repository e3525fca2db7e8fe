"""Datasets that exist as dataset.json, empty files and a made-up fingerprint: all that planning looks at."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Shape", "plan_of", "write_fingerprint"]

Shape = tuple[int, int, int]
BINARY = {"background": 0, "object": 1}


def write_fingerprint(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    shapes: Sequence[Shape],
    *,
    spacing: Sequence[float] = (999.0, 1.0, 1.0),
    channels: int = 1,
    labels: Mapping[str, Any] = BINARY,
    num_training: int | None = None,
    **more: Any,  # noqa: ANN401 - entries of dataset.json
) -> str:
    """Make Dataset700_Form anew in `root`, point nnU-Net there and return its name."""
    name = "Dataset700_Form"
    raw, preprocessed = root / "raw" / name, root / "preprocessed" / name
    for folder in (raw / "imagesTr", raw / "labelsTr", preprocessed):
        folder.mkdir(parents=True, exist_ok=True)
    for case in range(len(shapes)):
        for channel in range(channels):
            (raw / "imagesTr" / f"case{case}_{channel:04d}.nii.gz").touch()
        (raw / "labelsTr" / f"case{case}.nii.gz").touch()
    description = {
        "channel_names": {str(channel): "MR" for channel in range(channels)},
        "labels": dict(labels),
        "numTraining": num_training or len(shapes),
        "file_ending": ".nii.gz",
        "overwrite_image_reader_writer": "SimpleITKIO",
    } | more
    intensities = dict.fromkeys(("max", "mean", "median", "min", "percentile_00_5", "percentile_99_5", "std"), 1.0)
    fingerprint = {
        "spacings": [list(map(float, spacing)) for _ in shapes],
        "shapes_after_crop": [list(shape) for shape in shapes],
        "median_relative_size_after_cropping": 1.0,
        "foreground_intensity_properties_per_channel": {str(channel): intensities for channel in range(channels)},
    }
    (raw / "dataset.json").write_text(json.dumps(description))
    (preprocessed / "dataset_fingerprint.json").write_text(json.dumps(fingerprint))
    for variable, folder in (("nnUNet_raw", raw.parent), ("nnUNet_preprocessed", preprocessed.parent)):
        monkeypatch.setenv(variable, str(folder))
    monkeypatch.setenv("nnUNet_results", str(root / "results"))
    return name


def plan_of(planner: Any) -> dict[str, Any]:  # noqa: ANN401
    """The 2d configuration that a planner saves, read back from the file."""
    planner.plan_experiment()
    file = Path(planner.raw_dataset_folder).parents[1] / "preprocessed" / planner.dataset_name
    saved: dict[str, Any] = json.loads((file / f"{planner.plans_identifier}.json").read_text())
    configuration: dict[str, Any] = saved["configurations"]["2d"]
    return configuration
