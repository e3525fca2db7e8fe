"""Cohorts and settings so small that a training takes seconds."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd

from nnunet_gdla.mil.config import Config, config_from_dict

DIM = 16
MODEL: dict[str, Any] = {"width": 24, "depth": 2, "num_heads": 2, "num_landmarks": 8, "gate_hidden": 8}
TRAIN: dict[str, Any] = {
    "epochs": 3,
    "accumulate": 4,
    "lr": 1e-3,
    "workers": 0,
    "bootstrap": 20,
    "accelerator": "cpu",
}


def write_slide(path: Path, features: np.ndarray, stride: int = 256) -> None:
    """A slide as TRIDENT writes it: patches row by row, six in a row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = np.arange(len(features))
    with h5py.File(path, "w") as file:
        file["features"] = features
        coords = file.create_dataset("coords", data=np.stack([cells % 6, cells // 6], 1) * stride)
        coords.attrs["patch_size_level0"] = stride


def make_cohort(
    folder: Path,
    task: str,
    *,
    slides: int = 24,
    slides_per_patient: int = 1,
    dim: int = DIM,
    seed: int = 0,
    classes: str = "ab",
) -> None:
    """`folder/cohort.csv` and `folder/h5`; the class, or a short time, shows in every patch."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(slides):
        patient = number // slides_per_patient
        kind = patient % len(classes)
        features = rng.standard_normal((30, dim)).astype(np.float32)
        features[:, kind] += 2
        write_slide(folder / "h5" / f"s{number:02d}.h5", features)
        row: dict[str, Any] = {"slide_id": f"s{number:02d}", "patient_id": f"p{patient:02d}", "label": classes[kind]}
        if task == "survival":
            row |= {"time": 1.0 + patient if kind else 40.0 + patient, "event": int(patient % 5 != 0)}
        rows.append(row)
    pd.DataFrame(rows).to_csv(folder / "cohort.csv", index=False)


def small_config(folder: Path, task: str, *, model: dict[str, Any] | None = None, **train: Any) -> Config:  # noqa: ANN401
    """Settings for a cohort of `make_cohort`."""
    return config_from_dict(
        {
            "data": {"table": str(folder / "cohort.csv"), "features": str(folder / "h5"), "task": task},
            "split": {"val_share": 0.2, "test_share": 0.25},
            "model": MODEL if model is None else model,
            "train": TRAIN | train,
        }
    )
