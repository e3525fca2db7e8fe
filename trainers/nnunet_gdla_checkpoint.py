"""Checkpoints: written in one step, and looked at before they are loaded."""

import os
import pickle
import shlex
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from nnunetv2.utilities.plans_handling.plans_handler import PlansManager
from torch import Tensor

from nnunet_gdla.damage import DAMAGE, reason
from nnunet_gdla.errors import TrainingStopped, UserError
from nnunet_gdla.networks.misfits import state_misfits
from nnunet_gdla.words import counted

__all__ = ["changed_plans", "read_checkpoint", "refuse_other_network", "write_checkpoint"]

_NEEDED = ("network_weights", "optimizer_state", "logging", "current_epoch", "init_args")
_GIB = 2**30
_UNREADABLE: tuple[type[Exception], ...] = (*DAMAGE, pickle.UnpicklingError, zipfile.BadZipFile)


def write_checkpoint(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a neighbour of `path`, then put it in place: what stops it leaves the earlier checkpoint.

    Raises:
        TrainingStopped: If it cannot be written.
    """
    unfinished = path.with_name(f".unfinished-{path.name}")  # the same each time, so that a killed training leaves one
    try:
        write(unfinished)
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)
    except (OSError, RuntimeError) as error:
        # torch tells a full disk by the place in its own source where it noticed.
        if isinstance(error, RuntimeError) and "inline_container" not in str(error):
            raise
        free = shutil.disk_usage(path.parent).free / _GIB
        earlier = "the earlier one stays; " if path.is_file() else ""
        raise TrainingStopped(
            f"{path} could not be written ({reason(error, unfinished)}; {free:.1f} GiB are free there): {earlier}"
            "make room and continue with --c"
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Content of a checkpoint, its tensors mapped from the file.

    Raises:
        UserError: If it is damaged, or no checkpoint of a training; says what to do with the files beside it.
    """
    if not path.exists():
        other = "leave --val_best out" if path.name == "checkpoint_best.pth" else "take another checkpoint"
        raise UserError(f"{path} does not exist; {other}")
    content = _content_or_fault(path)
    if isinstance(content, str):
        raise UserError(f"{path} {content}; {_what_next(path)}")
    return content


def _content_or_fault(path: Path) -> dict[str, Any] | str:
    try:
        with path.open("rb") as file:
            if not file.read(1):
                return "is empty"
    except OSError as error:
        return f"cannot be read ({reason(error, path)})"
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as parts:
                damaged = parts.testzip()  # torch itself reads changed bytes without looking at their checksum
            if damaged is not None:
                return f"is damaged (checksum of {damaged})"
            content = torch.load(path, map_location="cpu", weights_only=False, mmap=True)
        else:
            content = torch.load(path, map_location="cpu", weights_only=False)  # a form that torch wrote before 1.6
    except _UNREADABLE as error:
        return f"is cut, damaged or not a checkpoint ({_first_clause(error)})"
    if not isinstance(content, dict):
        return f"holds a {type(content).__name__}, not a checkpoint of an nnU-Net training"
    missing = [key for key in _NEEDED if key not in content]
    if missing:
        return f"is not a checkpoint of an nnU-Net training: it lacks {', '.join(missing)}"
    if not isinstance(content["current_epoch"], int):
        return f"has the current_epoch {content['current_epoch']!r}, which is no number of epochs"
    return content


def _first_clause(error: Exception) -> str:
    return (str(error).strip().split("\n", 1)[0].split(". ", 1)[0] or type(error).__name__)[:150]


def _what_next(path: Path) -> str:
    quoted = shlex.quote(str(path))
    aside = f"put it aside with: mv {quoted} {quoted}.damaged"
    if path.name == "checkpoint_best.pth":
        return f"{aside} ; the same command without --val_best does not need it"
    if path.name not in ("checkpoint_latest.pth", "checkpoint_final.pth"):
        return "take another checkpoint"
    for name in ("checkpoint_latest.pth", "checkpoint_best.pth"):  # nnU-Net's order
        beside = path.with_name(name)
        if name != path.name and beside.is_file():
            content = _content_or_fault(beside)
            if not isinstance(content, str) and not all(
                bool(value.isfinite().all()) for value in content["network_weights"].values()
            ):
                content = "holds weights that are not finite"
            if isinstance(content, str):
                return f"{aside} ; {name} beside it {content}, put that aside too and train again without --c"
            return f"{aside} ; training with --c then continues from {name}, after epoch {content['current_epoch'] - 1}"
    return f"{aside} ; no other checkpoint lies beside it, so train again without --c"


def refuse_other_network(path: str, content: Mapping[str, Any], own: Mapping[str, Tensor]) -> None:
    """Compare a checkpoint's network with the one that the plans and dataset.json make.

    Raises:
        UserError: If tensors are missing, unknown, of another shape or not finite.
    """
    state = {
        name if name in own else name.removeprefix("module."): tensor
        for name, tensor in content["network_weights"].items()
    }
    misfits = state_misfits(state, own)
    if not misfits:
        return
    if len(misfits) == 1 and " not finite (" in misfits[0]:
        best = Path(path).name == "checkpoint_best.pth"
        raise UserError(
            f"{path} holds weights that are not finite, {misfits[0]}: the training had diverged when it was saved; "
            + ("train again without --c, validate without --val_best" if best else _what_next(Path(path)))
        )
    heads = [name for name in own if ".seg_layers." in name and name in state and state[name].shape != own[name].shape]
    if heads:
        misfits.insert(0, f"{counted(len(state[heads[0]]), 'output channel')} where there are {len(own[heads[0]])} now")
    raise UserError(
        f"{path} does not fit this network: {'; '.join(misfits)}. Continue with the plans and dataset.json it was "
        "trained with (plans.json and dataset.json in the results folder), or train again without --c; "
        "-pretrained_weights takes the weights of a network that differs in classes only"
    )


def changed_plans(content: Mapping[str, Any], plans_manager: PlansManager, configuration: str) -> Iterator[str]:
    """What of the plans differs from those that a checkpoint was trained with, as "what before -> now"."""
    earlier = deepcopy(content["init_args"].get("plans"))
    if not isinstance(earlier, dict) or configuration not in earlier.get("configurations", {}):
        return
    before = PlansManager(earlier).get_configuration(configuration).configuration
    now = plans_manager.get_configuration(configuration).configuration
    for key in ("data_identifier", "patch_size", "batch_size", "spacing", "normalization_schemes"):
        if before.get(key) != now.get(key):
            yield f"{key} {before.get(key)} -> {now.get(key)}"
