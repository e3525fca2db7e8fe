"""The checkpoint from which `nnUNetv2_train --c` would go on: which one is it, and does it belong to this training?"""

import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

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
        good = [path.name for path in rest if _is_readable(path)]
        fix = f"move it away; nnU-Net then goes on from {good[0]} beside it" if good else "move it away and train again"
        yield failed("checkpoint", damage, fix)
        return
    problems = list(_compare(chosen, content, folder.name.removeprefix("fold_"), planned))
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


def _is_readable(path: Path) -> bool:
    try:
        read_content(path)
    except UserError:
        return False
    return _first_damage(path, whole=False) is None


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
    missing = [key for key in _NEEDED if not isinstance(content, Mapping) or key not in content]
    if missing:
        yield failed("checkpoint", f"{path} lacks {', '.join(missing)}; it is no checkpoint of nnU-Net", fix)
        return
    start = content["init_args"]
    plans = start.get("plans", {}) if isinstance(start, Mapping) else {}
    made = {
        "trainer": (content.get("trainer_name"), planned.trainer.__name__),
        "plans": (plans.get("plans_name"), planned.plans.plans_name),
        "configuration": (start.get("configuration") if isinstance(start, Mapping) else None, planned.name),
        "fold": (str(start.get("fold")) if isinstance(start, Mapping) else None, fold),
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
    groups = (
        content["optimizer_state"].get("param_groups", []) if isinstance(content["optimizer_state"], Mapping) else []
    )
    stepped = sum(len(group["params"]) for group in groups)
    if stepped != sum(parameter.requires_grad for parameter in planned.network.parameters()):
        yield failed(
            "checkpoint", f"{path}: its optimiser knows {counted(stepped, 'parameter')}, not the network's", fix
        )
