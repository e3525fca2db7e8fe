"""Where datasets lie, and where nnU-Net reads their splits."""

import json
import os
from pathlib import Path

from nnunet_gdla.errors import UserError
from nnunet_gdla.recipes.files import write_json

__all__ = ["dataset_folder", "place_splits", "preprocessed_folder", "raw_folder"]


def raw_folder(out: Path | None) -> Path:
    """Return the folder of raw datasets, the named one or nnU-Net's.

    Raises:
        UserError: If there is neither.
    """
    if out is not None:
        return out.resolve()
    named = os.environ.get("nnUNet_raw")
    if not named:
        raise UserError("nnUNet_raw is not set: export nnUNet_raw=FOLDER, or name a folder with --out")
    return Path(named).resolve()


def preprocessed_folder() -> Path | None:
    """Return nnU-Net's folder of preprocessed datasets, None where the variable is not set."""
    named = os.environ.get("nnUNet_preprocessed")
    return Path(named).resolve() if named else None


def dataset_folder(raw: Path, dataset_id: int, name: str) -> Path:
    """Return the folder of the dataset.

    Raises:
        UserError: If another dataset has this number: nnU-Net would refuse both.
    """
    for parent in (raw, preprocessed_folder()):
        others = sorted(parent.glob(f"Dataset{dataset_id:03d}_*")) if parent is not None else []
        for other in others:
            if other.name != name:
                raise UserError(f"number {dataset_id} is taken by {other}; choose another one with -d")
    return raw / name


def place_splits(dataset: Path) -> str:
    """Copy the splits of a raw dataset to where nnU-Net reads them, and say what was done.

    A different file that is there already is kept under another name.
    """
    source = dataset / "splits_final.json"
    preprocessed = preprocessed_folder()
    if preprocessed is None:
        return (
            f"nnUNet_preprocessed is not set; before the training run: "
            f'mkdir -p "$nnUNet_preprocessed/{dataset.name}" && cp "{source}" "$nnUNet_preprocessed/{dataset.name}/"'
        )
    target = preprocessed / dataset.name / "splits_final.json"
    content = json.loads(source.read_text(encoding="utf-8"))
    if target.is_file():
        old = target.read_text(encoding="utf-8")
        if old == source.read_text(encoding="utf-8"):
            return f"splits: {target} (unchanged)"
        kept = target.with_name("splits_final.before_convert.json")
        target.replace(kept)
        write_json(target, content)
        return f"splits: {target} (another one was there, now {kept.name})"
    write_json(target, content)
    return f"splits: {target}"
