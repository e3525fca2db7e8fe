"""`nnunet-gdla weights show`: what is in a file."""

import argparse
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nnunet_gdla.commands.dataset_json import read_json
from nnunet_gdla.commands.findings import Finding
from nnunet_gdla.commands.weights_compare import compare_with_plans, planned_arguments, recorded_arguments
from nnunet_gdla.commands.weights_kind import Contents, Kind, classify
from nnunet_gdla.errors import UserError
from nnunet_gdla.networks.encoder import build_encoder
from nnunet_gdla.networks.released_layout import encoder_of_shapes, misfits, read_layout
from nnunet_gdla.networks.weights import WEIGHTS_VARIABLE
from nnunet_gdla.networks.weights_file import read_content
from nnunet_gdla.words import counted

__all__ = ["describe", "run"]

SHOWN = 3
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
_OPEN = {
    "decoder": "self or linear (their tensors are alike)",
    "gate": "silu or sigmoid (the tensors cannot tell; released networks: sigmoid)",
    "num_heads": "the tensors cannot tell (released networks: channels / 32)",
    "rope": "the tensors cannot tell (released networks: on for self and diff, off for linear)",
}
_ARGUMENTS = ("decoder", "gate", "num_heads", "rope", "ffn", "local_mixing", "differential")

_FAULTS = ("missing or of another shape", "unknown", "does not fit", "not finite")
_UNKNOWN = "cannot be told"

Line = tuple[str, str]


def run(args: argparse.Namespace) -> int:
    """Describe each file of `args.files`; return 0, or 1 where one is damaged or none that can be read."""
    code = 0
    for number, name in enumerate(args.files):
        path = Path(name)
        if number:
            print(flush=True)
        try:
            lines = list(describe(path))
        except UserError as error:
            print(f"nnunet-gdla weights: {error}", file=sys.stderr, flush=True)
            code = 1
            continue
        width = max(len(title) for title, _ in lines)
        for title, text in lines:
            print(f"{title + ':':<{width + 2}}{text}")
        for finding in _beside_plans(path):
            print(finding)
    return code


def describe(path: Path) -> Iterator[Line]:
    """Yield what is in a file, as title and text.

    Raises:
        UserError: If the file is damaged or none that can be read.
    """
    contents = classify(read_content(path))
    yield "file", f"{path} ({_size(path.stat().st_size)})"
    yield "kind", str(contents.kind) + (f", {contents.note}" if contents.note else "")
    lines = list(_count(contents.tensors)) if contents.tensors else []
    if contents.is_encoder or contents.is_network:
        lines += _encoder(contents) if contents.is_encoder else _network(contents)
    elif contents.kind is Kind.PLANS:
        lines += _plans(contents.extras)
    elif contents.kind is Kind.DATASET:
        lines += _dataset(contents.extras)
    yield from lines
    yield from _extras(contents)
    fits = not any((title in _FAULTS and text != "none") or text.startswith(_UNKNOWN) for title, text in lines)
    if fits and (advice := _advice(path, contents)):
        yield "use", advice


def _count(tensors: Mapping[str, Tensor]) -> Iterator[Line]:
    parameters = sum(tensor.numel() for name, tensor in tensors.items() if not name.endswith(_BUFFERS))
    yield "tensors", f"{len(tensors)}, {parameters:,} parameters"
    types = Counter(str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values())
    yield "dtype", ", ".join(f"{name} ({count})" for name, count in types.most_common())
    bad = [name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all())]
    named = f" ({', '.join(bad[:SHOWN])}{' ...' if len(bad) > SHOWN else ''})" if bad else ""
    yield "not finite", f"{counted(len(bad), 'tensor')}{named}" if bad else "none"


def _encoder(contents: Contents) -> Iterator[Line]:
    state = contents.in_our_names()
    try:
        name = encoder_of_shapes(state)
    except ValueError as error:
        yield "encoder", f"{_UNKNOWN}: {error}"
        return
    stem = state.get("patch_embed.proj.weight")
    channels = stem.shape[1] if stem is not None and stem.ndim == 4 else 3
    with torch.device("meta"):
        own = build_encoder(name, channels, 0.0)[0].state_dict()
    wrong = [key for key in own if key not in state or state[key].shape != own[key].shape]
    unknown = [key for key in state if key not in own]
    yield "encoder", name + ("" if wrong or unknown else ", complete")
    yield "input channels", str(channels)
    head = contents.tensors.get("head.weight")
    if head is not None:
        yield "classes", f"{head.shape[0]} of a classifier, which is not used"
    for what, keys in zip(_FAULTS, (wrong, unknown), strict=False):
        if keys:
            yield (
                what,
                f"{counted(len(keys), 'tensor')} ({', '.join(keys[:SHOWN])}{' ...' if len(keys) > SHOWN else ''})",
            )


def _network(contents: Contents) -> Iterator[Line]:
    state = contents.in_our_names()
    try:
        layout = read_layout(state)
        recorded = recorded_arguments(contents.extras) or {}
        arguments = layout.arguments | {name: recorded[name] for name in layout.untold if name in recorded}
        faults = misfits(state, layout, {"decoder": "linear"} | layout.arguments)
    except ValueError as error:
        yield "network", f"{_UNKNOWN}: {error}"
        return
    yield "encoder", arguments["encoder"]
    yield "input channels", str(layout.input_channels)
    yield "classes", str(layout.num_classes)
    for name in _ARGUMENTS:
        if name in arguments:
            said = " (recorded in the file)" if name in layout.untold else ""
            yield _title(name), _text(name, arguments[name]) + said
        elif name in layout.untold:
            yield _title(name), _unplanned(name) if contents.kind is Kind.NNUNET_OURS else _OPEN[name]
    if faults:
        yield "does not fit", "; ".join(faults)


def _extras(contents: Contents) -> Iterator[Line]:
    extras = contents.extras
    if contents.kind in (Kind.NNUNET_OURS, Kind.NNUNET_OTHER):
        start = extras.get("init_args")
        start = start if isinstance(start, Mapping) else {}
        plans = start.get("plans")
        yield "trainer", str(extras.get("trainer_name", "not named"))
        if isinstance(plans, Mapping):
            yield "plans", f"{plans.get('plans_name')} of {plans.get('dataset_name')}"
        yield "configuration", f"{start.get('configuration', 'not named')}, fold {start.get('fold', 'not named')}"
        yield "epochs", str(extras.get("current_epoch", "not named"))
        record = extras.get("nnunet_gdla")
        if isinstance(record, Mapping) and "source" in record:
            yield "converted", f"from {record['source']} by nnunet-gdla {record.get('version')}"
        return
    for name in ("epoch", "global_step"):
        if isinstance(extras.get(name), int | float):
            yield name.replace("_", " "), str(extras[name])


def _plans(plans: Mapping[str, Any]) -> Iterator[Line]:
    yield "plans", f"{plans.get('plans_name')} of {plans.get('dataset_name')}"
    for name, configuration in plans["configurations"].items():
        if not isinstance(configuration, Mapping):
            continue
        arguments = planned_arguments(plans, name)
        if arguments is None:
            network = str((configuration.get("architecture") or {}).get("network_class_name", "")).rpartition(".")[2]
        else:
            shown = {key: arguments[key] for key in ("encoder", "decoder", "gate", "num_heads") if key in arguments}
            network = "PVTGDLA, " + ", ".join(f"{_title(key)} {_text(key, value)}" for key, value in shown.items())
        size = f"patch {configuration.get('patch_size')}, batch {configuration.get('batch_size')}"
        yield name, f"{network or 'inherits'}, {size}"


def _dataset(content: Mapping[str, Any]) -> Iterator[Line]:
    channels = content.get("channel_names", content.get("modality"))
    if isinstance(channels, Mapping):
        yield "input channels", ", ".join(map(str, channels.values()))
    yield "labels", ", ".join(f"{name} {value}" for name, value in content["labels"].items())


def _advice(path: Path, contents: Contents) -> str:
    kind = contents.kind
    if kind in (Kind.ENCODER_ORIGINAL, Kind.ENCODER_TIMM, Kind.ENCODER_FEATURES):
        return f"export {WEIGHTS_VARIABLE}={shlex.quote(str(path.absolute()))}"
    if kind is Kind.RELEASED:
        choice = "" if "decoder" not in read_layout(contents.in_our_names()).untold else " --decoder self (or linear)"
        return f"nnunet-gdla weights convert {shlex.quote(str(path))} --out FOLDER{choice}"
    if kind in (Kind.NNUNET_OURS, Kind.NNUNET_OTHER):
        file = shlex.quote(str(path))
        return f"-pretrained_weights {file} in nnUNetv2_train, or in its model folder by nnUNetv2_predict"
    return ""


def _beside_plans(path: Path) -> Iterator[Finding]:
    """Findings on the plans.json of the model folder in which an nnU-Net checkpoint lies."""
    plans = path.absolute().parent.parent / "plans.json"
    if path.suffix != ".pth" or not path.parent.name.startswith("fold_") or not plans.is_file():
        return
    content, checkpoint = read_json(plans), read_content(path)
    if isinstance(content, Finding):
        yield content
    elif isinstance(checkpoint, Mapping):
        yield from compare_with_plans(checkpoint, content, title="gate and plans", file=plans)


def _unplanned(name: str) -> str:
    """What our trainers build where the plans name no network: the defaults, and the decoder of their own name."""
    built = {"gate": "silu", "decoder": "as the trainer's name says"}.get(name, "the default")
    return f"{built} (its plans do not say)"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count > 1e5 else f"{count / 1e3:.1f} kB"


def _title(name: str) -> str:
    return {"num_heads": "heads", "local_mixing": "local mixing"}.get(name, name)


def _text(name: str, value: object) -> str:
    if name == "num_heads" and isinstance(value, list | tuple):
        return f"{', '.join(map(str, value))} at strides 4, 8, 16"
    return {True: "on", False: "off", None: "none"}[value] if isinstance(value, bool | None) else str(value)
