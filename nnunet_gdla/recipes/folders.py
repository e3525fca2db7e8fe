"""Where datasets lie, and where nnU-Net reads their splits."""

import itertools
import json
import os
from pathlib import Path

from nnunet_gdla.errors import UserError
from nnunet_gdla.files import replaced
from nnunet_gdla.recipes.files import write_json

__all__ = ["dataset_folder", "outdated", "place_splits", "preprocessed_folder", "raw_folder", "read_splits"]


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


def read_splits(dataset: Path) -> str | None:
    """Return the splits of a raw dataset as text, None where it has none: what an earlier conversion placed."""
    path = dataset / "splits_final.json"
    return path.read_text(encoding="utf-8") if path.is_file() else None


def place_splits(dataset: Path, placed: str | None = None) -> str:
    """Copy the splits of a raw dataset to where nnU-Net reads them, and say what was done.

    A different file that is there already is kept under a new name, unless it is our own.

    Args:
        dataset: The raw dataset.
        placed: Splits that an earlier conversion has put there, as `read_splits` gives them before the next one.
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
        if old == placed:
            write_json(target, content)
            return f"splits: {target} (those of the earlier conversion were there)"
        kept = _free_name(target)

        def write(unfinished: Path) -> None:
            write_json(unfinished, content)
            target.replace(kept)  # not before the new one is written

        replaced(target, write)
        return f"splits: {target} (another one was there, now {kept.name})"
    write_json(target, content)
    return f"splits: {target}"


def outdated(dataset: Path, converted: Path) -> list[str]:
    """Names of what nnU-Net has made of an earlier dataset of that name: the fingerprint and preprocessed data.

    Args:
        dataset: The raw dataset.
        converted: A file that was written with its images.
    """
    preprocessed = preprocessed_folder()
    folder = preprocessed / dataset.name if preprocessed is not None else None
    if folder is None or not folder.is_dir():
        return []
    made = converted.stat().st_mtime_ns
    data = [next(each.glob("*.pkl"), None) for each in sorted(folder.iterdir()) if each.is_dir()]
    files = [folder / "dataset_fingerprint.json", *(file for file in data if file is not None)]
    old = [file for file in files if file.is_file() and file.stat().st_mtime_ns < made]
    return [file.name if file.parent == folder else file.parent.name for file in old]


def _free_name(target: Path) -> Path:
    names = ("splits_final.before_convert" + (f"_{number}" if number > 1 else "") for number in itertools.count(1))
    return next(path for name in names if not (path := target.with_name(f"{name}.json")).exists())
