"""Folders and files that a training writes: is one of them a file for a folder, a folder for a file, or read-only?"""

import os
from collections.abc import Iterator
from pathlib import Path

from nnunet_gdla.commands.findings import Finding, failed

__all__ = ["check_places"]

_IN_MODEL = ("plans.json", "dataset.json", "dataset_fingerprint.json")
_IN_FOLD = (
    *("checkpoint_latest.pth", "checkpoint_best.pth", "checkpoint_final.pth"),
    *("debug.json", "progress.png"),
)


def check_places(model: Path, fold: int | str | None, prepared: Path) -> Iterator[Finding]:
    """Yield what keeps a training from writing into its folders.

    Args:
        model: The folder of the model, RESULTS/DATASET/TRAINER__PLANS__CONFIGURATION.
        fold: The fold; None: all that were begun.
        prepared: The dataset's folder in nnUNet_preprocessed, into which nnU-Net writes the folds where there are none.
    """
    folds = [model / f"fold_{fold}"] if fold is not None else sorted(model.glob("fold_*"))
    path = [model.parents[1], model.parent, model]
    wrong = [each for each in path if _is_other(each)] or [each for each in folds if _is_other(each)]
    if not wrong:
        wrong += [each / "validation" for each in folds if _is_other(each / "validation")]
    for each in wrong:
        yield failed("results", f"{each} is no folder; a training needs one there", "move it away")
    if any(each in path for each in wrong):
        return
    begun = [folder for folder in (model, *folds) if folder.is_dir()]
    # Of what is not there yet, the nearest folder above is the one that is written.
    for folder in begun if model.is_dir() else [next((each for each in reversed(path) if each.is_dir()), path[0])]:
        if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
            yield _read_only("results", folder)
    for folder in begun:
        for name in _IN_MODEL if folder == model else _IN_FOLD:
            if (folder / name).is_dir():
                yield failed("results", f"{folder / name} is a folder; a training writes a file there", "move it away")
            elif (folder / name).exists() and not os.access(folder / name, os.W_OK):
                yield _read_only("results", folder / name)
    if fold != "all" and not (prepared / "splits_final.json").exists() and not os.access(prepared, os.W_OK | os.X_OK):
        yield _read_only("splits", prepared)


def _is_other(path: Path) -> bool:
    """Whether something lies there that is no folder; a link that leads nowhere is such a thing too."""
    return os.path.lexists(path) and not path.is_dir()


def _read_only(title: str, path: Path) -> Finding:
    return failed(title, f"{path} cannot be written; a training writes there", f"chmod u+w '{path}'")
