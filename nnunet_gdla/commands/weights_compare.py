"""Do a checkpoint and the plans beside it mean the same network? A gate that differs spoils results silently."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nnunet_gdla.commands.dataset_json import read_json
from nnunet_gdla.commands.findings import Finding, failed, passed, warned
from nnunet_gdla.errors import UserError
from nnunet_gdla.networks.decoder import DEFAULT_ROPE
from nnunet_gdla.networks.weights_file import read_content
from nnunet_gdla.words import counted

__all__ = [
    "DEFAULT_HEADS",
    "RECORD",
    "USUAL_HEADS",
    "check_models",
    "compare_with_plans",
    "planned_arguments",
    "recorded_arguments",
]

RECORD = "nnunet_gdla"
DEFAULT_HEADS = {"pvt_v2_b0": [1, 2, 5]}  # of the others:
USUAL_HEADS = [2, 4, 10]  # channels / 32
_DEFAULTS = {"encoder": "pvt_v2_b2", "decoder": "gdla", "gate": "silu"}


def planned_arguments(plans: Mapping[str, Any], configuration: str = "2d") -> dict[str, Any] | None:
    """Arguments that a configuration of plans gives `PVTGDLA`; None where it names another network, or is not there."""
    configurations = plans.get("configurations")
    if not isinstance(configurations, Mapping):
        return None
    seen: set[str] = set()
    chosen = configurations.get(configuration)
    while isinstance(chosen, Mapping) and "architecture" not in chosen and configuration not in seen:
        seen.add(configuration)
        configuration = str(chosen.get("inherits_from"))
        chosen = configurations.get(configuration)
    architecture = chosen.get("architecture") if isinstance(chosen, Mapping) else None
    if not isinstance(architecture, Mapping):
        return None
    arguments = architecture.get("arch_kwargs")
    ours = str(architecture.get("network_class_name")).startswith("nnunet_gdla.")
    return dict(arguments) if ours and isinstance(arguments, Mapping) else None


def recorded_arguments(checkpoint: Mapping[str, Any]) -> dict[str, Any] | None:
    """Arguments with which a checkpoint's weights were made: its own record, or else the plans it was trained with."""
    record = checkpoint.get(RECORD)
    if isinstance(record, Mapping):
        return dict(record)
    start = checkpoint.get("init_args")
    plans = start.get("plans") if isinstance(start, Mapping) else None
    if not isinstance(start, Mapping) or not isinstance(plans, Mapping):
        return None
    return planned_arguments(plans, str(start.get("configuration")))


def compare_with_plans(
    checkpoint: Mapping[str, Any], plans: Mapping[str, Any], *, title: str, file: Path
) -> list[Finding]:
    """Say where plans mean another network than the checkpoint's weights were made with.

    Args:
        checkpoint: An nnU-Net checkpoint.
        plans: The plans that would build its network.
        title: What is looked at, for the findings.
        file: Where the plans are, for the findings.

    Returns:
        One finding per argument that differs; nothing where the checkpoint does not say what it was made with.
    """
    recorded = recorded_arguments(checkpoint)
    if recorded is None:
        return []
    start = checkpoint.get("init_args")
    configuration = str(start.get("configuration", "2d")) if isinstance(start, Mapping) else "2d"
    planned = planned_arguments(plans, configuration)
    own, theirs = _effective(recorded), _effective(planned or {})
    if planned is None:
        if own["gate"] in (theirs["gate"], None):
            return []
        detail = f"the weights need gate {own['gate']}, {file} names no network of ours: trainers take silu"
        return [warned(title, detail, "use the plans that were written with these weights")]
    findings = []
    for name in own:
        if own[name] != theirs[name]:
            silent = name in ("gate", "rope") or (name == "num_heads" and own["decoder"] in ("self", "linear"))
            effect = "predictions would be wrong without any error" if silent else "the weights do not fit that network"
            detail = f"the weights were made with {name} {own[name]}, {file} says {theirs[name]}: {effect}"
            fix = f'write "{name}": {json.dumps(own[name])} into arch_kwargs there, or convert or train again'
            findings.append(warned(title, detail, fix))
    return findings


def _check_model_folder(folder: Path) -> Iterator[Finding]:
    """Compare each fold's checkpoint of a model folder with its plans.json, which nnU-Net predicts with."""
    plans = read_json(folder / "plans.json")
    if isinstance(plans, Finding):
        yield plans
        return
    title = f"model {folder.name}"
    agreeing = 0
    for file in sorted(folder.glob("fold_*/checkpoint_*.pth")):
        try:
            checkpoint = read_content(file)
        except UserError as error:
            yield failed(title, str(error), "train or convert it again")
            continue
        if not isinstance(checkpoint, Mapping) or recorded_arguments(checkpoint) is None:
            continue
        findings = compare_with_plans(checkpoint, plans, title=title, file=folder / "plans.json")
        findings += _compare_training_plans(checkpoint, plans, folder, title)
        yield from findings
        agreeing += not findings
    if agreeing:
        yield passed(title, f"{counted(agreeing, 'checkpoint')} in agreement with the plans")


def check_models(dataset: str) -> Iterator[Finding]:
    """Check the models of ours in a dataset's results folder; says nothing where there is none."""
    results = os.environ.get("nnUNet_results")
    if results:
        for plans in sorted((Path(results) / dataset).glob("*__*__*/plans.json")):
            yield from _check_model_folder(plans.parent)


def _compare_training_plans(
    checkpoint: Mapping[str, Any], plans: Mapping[str, Any], folder: Path, title: str
) -> list[Finding]:
    """The plans of the same name in nnUNet_preprocessed, with which the next training would build its network."""
    file = Path(os.environ.get("nnUNet_preprocessed", "")) / folder.parent.name / f"{plans.get('plans_name')}.json"
    if "nnUNet_preprocessed" not in os.environ or not file.is_file():
        return []
    content = read_json(file)
    return (
        [content] if isinstance(content, Finding) else compare_with_plans(checkpoint, content, title=title, file=file)
    )


def _effective(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What the network makes of the arguments, for those that change results or whether the weights fit."""
    own = {name: arguments.get(name, default) for name, default in _DEFAULTS.items()}
    own["rope"] = None
    if own["decoder"] != "gdla":
        rope = arguments.get("rope")
        own["rope"], own["gate"] = DEFAULT_ROPE.get(own["decoder"]) if rope is None else rope, None
    heads = arguments.get("num_heads")
    own["num_heads"] = DEFAULT_HEADS.get(own["encoder"], USUAL_HEADS) if heads is None else list(heads)
    return own
