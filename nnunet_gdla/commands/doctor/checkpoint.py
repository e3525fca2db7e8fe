"""The checkpoint from which `nnUNetv2_train --c` would go on: which one is it, and does it belong to this training?"""

import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nnunet_gdla.commands.doctor.places import check_places
from nnunet_gdla.commands.findings import Finding, Level, failed, passed, warned
from nnunet_gdla.commands.plans_check import Planned
from nnunet_gdla.errors import UserError
from nnunet_gdla.networks.weights_file import read_content
from nnunet_gdla.words import counted

__all__ = ["check_checkpoints", "check_results"]

# In the order in which nnU-Net looks for them.
_NAMES = ("checkpoint_final.pth", "checkpoint_latest.pth", "checkpoint_best.pth")
_NEEDED = (
    "network_weights",
    "optimizer_state",
    "logging",
    "current_epoch",
    "init_args",
    "_best_ema",
    "grad_scaler_state",
)


def check_results(planned: Planned, fold: int | str | None, *, resume: bool) -> Iterator[Finding]:
    """Yield what stands in the way of a model's output folder."""
    results = os.environ.get("nnUNet_results")
    if not results:
        fix = "export nnUNet_results=/path/to/nnUNet_results"
        yield failed("nnUNet_results", "not set; a training cannot write its model", fix)
        return
    yield from check_places(_model_folder(planned), fold, planned.folder)
    folder = _model_folder(planned) / f"fold_{fold}"
    there = [name for name in _NAMES if (folder / name).is_file()]
    if fold is not None and there and not resume:
        detail = f"{folder} holds {', '.join(there)} of an earlier training, which a new one overwrites"
        yield warned("results", detail, "add --c to go on with it, or move it away")


def check_checkpoints(planned: Planned, fold: int | str | None, *, full: bool) -> Iterator[Finding]:
    """Yield what is wrong with the checkpoint of a fold, or of each fold that has one.

    Args:
        planned: The plans and what belongs to them.
        fold: The fold that will be continued; None: all that were begun.
        full: Read all of the file, not its table of contents and its first and last record alone.
    """
    if not os.environ.get("nnUNet_results"):
        return  # that is reported already
    model = _model_folder(planned)
    folds = [model / f"fold_{fold}"] if fold is not None else sorted(model.glob("fold_*"))
    begun = [folder for folder in folds if any((folder / name).is_file() for name in _NAMES)]
    for folder in begun:
        yield from _check_fold(folder, planned, full=full)
    if not begun:
        others = sorted({path.parents[1].name for path in model.parent.glob("*__*__*/fold_*/checkpoint_*.pth")})
        there = f"; there is {', '.join(others[:5])}" if others else ""
        detail = f"{folds[0] if fold is not None else model} holds none{there}"
        yield warned("checkpoint", detail, "look at -tr, -p, -c and -f: nnU-Net starts a new training instead")


def _model_folder(planned: Planned) -> Path:
    results = Path(os.environ["nnUNet_results"]) / str(planned.plans.dataset_name)
    return results / f"{planned.trainer.__name__}__{planned.plans.plans_name}__{planned.name}"


def _check_fold(folder: Path, planned: Planned, *, full: bool) -> Iterator[Finding]:
    there = [folder / name for name in _NAMES if (folder / name).is_file()]
    chosen, rest = there[0], there[1:]
    try:
        content = read_content(chosen)
        damage = _first_damage(chosen, whole=full)
    except UserError as error:
        content, damage = None, str(error)
    if damage is not None:
        yield failed("checkpoint", damage, _instead(rest))
        return
    problems = list(_compare(chosen, content, folder.name.removeprefix("fold_"), planned))
    if not problems and (bad := _not_finite(content)):
        detail = f"{chosen} holds values that are not finite ({bad}): the training had diverged when it was saved"
        problems = [failed("checkpoint", detail, _instead(rest))]
    yield from problems
    if any(problem.level is Level.FAIL for problem in problems):
        return
    if chosen.name == "checkpoint_best.pth":
        detail = f"{chosen} is the only one: nnU-Net goes on after its epoch, {content['current_epoch']}"
        yield warned("checkpoint", detail, "nothing to do if that is meant; later epochs are lost")
    elif chosen.name == "checkpoint_final.pth":
        yield passed("checkpoint", f"{chosen} is of a finished training; --c validates it again")
    else:
        yield passed("checkpoint", f"{chosen}, {counted(int(content['current_epoch']), 'epoch')} done")


def _instead(rest: list[Path]) -> str:
    good = [path.name for path in rest if _is_usable(path)]
    if good:
        return f"move it away; nnU-Net then goes on from {good[0]} beside it"
    return "move it away, with what is left beside it, and train again without --c"


def _is_usable(path: Path) -> bool:
    try:
        content = read_content(path)
    except UserError:
        return False
    return _first_damage(path, whole=False) is None and not _wrong_kinds(content) and not _not_finite(content)


def _wrong_kinds(content: Any) -> str:  # noqa: ANN401 - anything may be in a file
    """Say what of a checkpoint is missing, or is not what nnU-Net writes there; nothing where all is."""
    missing = [key for key in _NEEDED if not isinstance(content, Mapping) or key not in content]
    if missing:
        return f"lacks {', '.join(missing)}"
    epoch, weights = content["current_epoch"], content["network_weights"]
    if not isinstance(epoch, int) or isinstance(epoch, bool) or epoch < 0:
        return f"has the current_epoch {epoch!r}, which is no number of epochs"
    if not isinstance(weights, Mapping) or not all(isinstance(value, Tensor) for value in weights.values()):
        return "has network_weights that are not tensors by their names"
    for key in ("optimizer_state", "logging", "init_args"):
        if not isinstance(content[key], Mapping):
            return f"has a {type(content[key]).__name__} as {key}"
    best = content["_best_ema"]
    if best is not None and not isinstance(best, float | int | np.number):
        return f"has the _best_ema {best!r}, which is no number"
    return ""


def _not_finite(content: Mapping[str, Any]) -> str:
    """Name the first tensor of the network, or of the optimiser, that holds NaN or Inf; nothing where none does."""
    for name, value in content["network_weights"].items():
        if not bool(torch.isfinite(value).all()):
            return str(name)
    state = content["optimizer_state"].get("state")
    for number, values in (state if isinstance(state, Mapping) else {}).items():
        for name, value in (values if isinstance(values, Mapping) else {}).items():
            if isinstance(value, Tensor) and not bool(torch.isfinite(value).all()):
                return f"{name} of parameter {number} in optimizer_state"
    return ""


def _first_damage(path: Path, *, whole: bool) -> str | None:
    """Compare the checksums of a checkpoint's records, PyTorch's files are zip archives; other formats are passed."""
    if not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as archive:
        records = archive.infolist()
        for record in records if whole else [records[0], records[-1]]:
            try:
                with archive.open(record) as file:
                    while file.read(2**20):
                        pass
            except (zipfile.BadZipFile, EOFError, OSError):
                return f"{path} is damaged: the record {record.filename} does not have its checksum"
    return None


def _compare(path: Path, content: Any, fold: str, planned: Planned) -> Iterator[Finding]:  # noqa: ANN401
    fix = f"move {path.name} away, or name the trainer, plans, configuration and fold it was made with"
    if wrong := _wrong_kinds(content):
        yield failed("checkpoint", f"{path} {wrong}; it is no checkpoint of nnU-Net", fix)
        return
    start = content["init_args"]
    plans = start["plans"] if isinstance(start.get("plans"), Mapping) else {}
    made = {
        "trainer": (content.get("trainer_name"), planned.trainer.__name__),
        "plans": (plans.get("plans_name"), planned.plans.plans_name),
        "configuration": (start.get("configuration"), planned.name),
        "fold": (str(start.get("fold")), fold),
    }
    for what, (theirs, ours) in made.items():
        if theirs is not None and theirs != ours:
            yield failed("checkpoint", f"{path} is of {what} {theirs}, this training of {what} {ours}", fix)
    yield from _compare_weights(path, content, planned, fix)


def _compare_weights(path: Path, content: Mapping[str, Any], planned: Planned, fix: str) -> Iterator[Finding]:
    weights = {str(name).removeprefix("module."): value for name, value in content["network_weights"].items()}
    own = planned.network.state_dict()
    for names, state in ((own.keys() - weights.keys(), "lacks"), (weights.keys() - own.keys(), "has a superfluous")):
        if names:
            yield failed("checkpoint", f"{path} {state} {min(names)}: it is of another network", fix)
            return
    other = [name for name, value in own.items() if tuple(value.shape) != tuple(weights[name].shape)]
    if other:
        shapes = f"{list(weights[other[0]].shape)}, the network has {list(own[other[0]].shape)}"
        detail = f"{path}: {other[0]} is {shapes}: other numbers of classes or channels, or another network"
        yield failed("checkpoint", detail, fix)
        return
    stepped = sum(len(group["params"]) for group in content["optimizer_state"].get("param_groups", []))
    if stepped != sum(parameter.requires_grad for parameter in planned.network.parameters()):
        yield failed(
            "checkpoint", f"{path}: its optimiser knows {counted(stepped, 'parameter')}, not the network's", fix
        )
