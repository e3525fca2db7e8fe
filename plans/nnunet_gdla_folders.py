"""Folders of preprocessed data: a name that is free, filled before plans name it, and what may be deleted.

A folder that is there is never filled again: trainings may be reading it.
"""

import contextlib
import copy
import itertools
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nnunetv2.utilities.json_export import recursive_fix_for_json_export

from nnunet_gdla.in_use import in_use

__all__ = ["fill_folder", "free_identifier", "identifier_of", "is_of_family", "unnamed_folders"]

_UNFINISHED = ".unfinished-"


def identifier_of(plans: dict[str, Any] | None) -> str | None:
    """Name of the folder that plans name for their 2d data."""
    named = (plans or {}).get("configurations", {}).get("2d", {}).get("data_identifier")
    return named if isinstance(named, str) else None


def is_of_family(identifier: str, own: str) -> bool:
    """Whether a folder's name is `own`, or `own` with a number, as `free_identifier` gives them."""
    return re.fullmatch(rf"{re.escape(own)}(?:_[2-9]|_[1-9]\d+)?", identifier) is not None


def free_identifier(folder: Path, own: str) -> str:
    """`own`, or the first of own_2, own_3, ... where no folder is."""
    names = itertools.chain([own], (f"{own}_{number}" for number in itertools.count(2)))
    return next(name for name in names if not (folder / name).exists())


def fill_folder(folder: Path, plans: dict[str, Any], own: str, preprocess: Callable[[str], None]) -> str:
    """Preprocess into a new folder, which gets its name when it is complete.

    Args:
        folder: The dataset's folder of preprocessed data.
        plans: The new plans, not saved yet.
        own: Identifier of the data that are the plans' own.
        preprocess: Runs nnU-Net's preprocessing for the name of plans in `folder`.

    Returns:
        The identifier that the plans have to name. Whatever stops the preprocessing, nothing new is left.
    """
    name = f"{_UNFINISHED}{os.getpid()}-{plans['plans_name']}"
    described, data = folder / f"{name}.json", folder / f"{name}_2d"
    unfinished = copy.deepcopy(plans)
    unfinished["configurations"]["2d"]["data_identifier"] = data.name
    recursive_fix_for_json_export(unfinished)
    try:
        described.write_text(json.dumps(unfinished))
        preprocess(name)
        return _take_name(data, own)
    finally:
        described.unlink(missing_ok=True)
        shutil.rmtree(data, ignore_errors=True)


def _take_name(data: Path, own: str) -> str:
    while True:
        identifier = free_identifier(data.parent, own)
        try:
            data.rename(data.parent / identifier)
        except OSError:
            if not (data.parent / identifier).exists():
                raise
        else:
            return identifier


def unnamed_folders(folder: Path, own: str) -> Iterator[str]:
    """Say of each folder of data of a plans' own that no plans name now how it can be deleted, a sentence each."""
    known = ""
    for path in folder.glob("[!.]*.json"):
        with contextlib.suppress(OSError):
            known += path.read_text(errors="replace")
    for path in sorted(folder.iterdir()):
        if path.name.startswith(_UNFINISHED):
            yield f"{path} is left of a planning that was interrupted; delete it: rm -r {shlex.quote(str(path))}"
        elif path.is_dir() and is_of_family(path.name, own) and json.dumps(path.name) not in known:
            when = "when the training that reads it has ended" if in_use(path) else "if no training reads it"
            yield f"{path} is named by no plans any more; {when}, delete it: rm -r {shlex.quote(str(path))}"
