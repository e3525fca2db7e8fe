"""An existing plan: does the trainer accept it, is the configuration supported, does a training step fit the memory?"""

import contextlib
import difflib
import io
import os
import warnings
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nnunet_gdla.commands.checks import check_weights, is_usable
from nnunet_gdla.commands.dataset_json import read_json
from nnunet_gdla.commands.findings import BREAKAGES, Finding, failed, one_line, passed, warned
from nnunet_gdla.commands.registration_check import find_trainer
from nnunet_gdla.layers import AttentionBlock, DifferentialAttention, LinearAttention, SoftmaxAttention
from nnunet_gdla.networks import PVTGDLA
from nnunet_gdla.plans.nnunet_gdla_memory import GIB, Device, largest_batch, training_memory
from nnunet_gdla.plans.nnunet_gdla_sizes import NetworkSize

__all__ = ["Planned", "check_plans", "network_size", "usual_encoder"]

_ATTENTIONS = {LinearAttention: "linear", SoftmaxAttention: "self", DifferentialAttention: "diff"}
_DEVICES: dict[str, Device] = {"cuda": "cuda", "cpu": "cpu", "mps": "mps"}
_NO_PLANS = ("dataset.json", "dataset_fingerprint.json", "splits_final.json")
# Pixels; the padding of nnU-Net's widest blur, 3 on each side, must be less than a side.
_SMALLEST_SIDE = 4
# Beyond this there is no doubt: the model is good to 15 %, and on a CPU spares more than half a GiB for nnU-Net.
_SURELY_TOO_MUCH = 1.25


@dataclass(frozen=True)
class Planned:
    """A configuration that can be trained, as far as its plans go.

    Args:
        folder: The dataset's folder in nnUNet_preprocessed.
        plans: nnU-Net's manager of the plans.
        configuration: nnU-Net's manager of the configuration.
        name: Name of the configuration.
        plans_name: Name of the plans' file, without its ending.
        dataset_json: The dataset.json beside the plans, which is the one that a training reads.
        trainer: The trainer.
        network: The network that it builds.
    """

    folder: Path
    plans: Any
    configuration: Any
    name: str
    plans_name: str
    dataset_json: dict[str, Any]
    trainer: type
    network: torch.nn.Module


def check_plans(
    dataset: str, plans_name: str, configuration: str, trainer_name: str, device: str, *, asked: bool = False
) -> Generator[Finding, None, Planned | None]:
    """Yield what is wrong with a dataset's plan for this trainer; says so if there is none yet.

    Args:
        dataset: Full name of the dataset.
        plans_name: Name of the plans, the file's name without ".json".
        configuration: Name of the configuration, usually "2d".
        trainer_name: Name of the trainer, as for -tr.
        device: "cpu", "cuda" or "mps".
        asked: The user named these plans, so that it is an error if there are none.

    Returns:
        What they plan, None where that fails.
    """
    preprocessed = os.environ.get("nnUNet_preprocessed")
    folder = Path(preprocessed or "") / dataset
    path = folder / f"{plans_name}.json"
    if preprocessed and path.is_dir():
        yield failed("plans", f"{path} is a folder; nnU-Net reads and writes a file there", "move it away")
        return None
    if not preprocessed or not path.is_file():
        others = _other_plans(folder, plans_name) if preprocessed else []
        make = _planning_command(dataset, plans_name)
        if not asked:
            hint = f"there is -p {', -p '.join(others)}" if others else f"next, when nothing fails: {make}"
            yield passed("plans", f"no {plans_name} for {dataset} yet", hint, pending=True)
        elif others:
            yield failed("plans", f"{dataset} has no plans {plans_name}", f"there is -p {', -p '.join(others)}")
        else:
            yield failed("plans", f"{dataset} has no plans {plans_name}, nor any others", make)
        return None
    plans = read_json(path)
    if isinstance(plans, Finding):
        yield plans
        return None
    dataset_json = read_json(folder / "dataset.json")
    if isinstance(dataset_json, Finding):
        yield failed("dataset.json", dataset_json.detail, "copy the one of the raw dataset there, and plan again")
        return None
    trainer = find_trainer(trainer_name)
    if isinstance(trainer, Finding):  # the look-up has reported it already
        return None
    return (yield from _check_configuration(plans, configuration, dataset_json, trainer, device, folder, plans_name))


def _other_plans(folder: Path, asked: str) -> list[str]:
    """Names of all plans in a folder, whatever they are called, the nearest first."""
    names = []
    for path in folder.glob("*.json"):
        if path.name not in ("dataset.json", "dataset_fingerprint.json", "splits_final.json"):
            content = read_json(path)
            if not isinstance(content, Finding) and isinstance(content.get("configurations"), dict):
                names.append(path.stem)
    wanted = asked.removesuffix(".json").lower()
    return sorted(names, key=lambda name: (-difflib.SequenceMatcher(None, wanted, name.lower()).ratio(), name))


def _planning_command(dataset: str, plans_name: str) -> str:
    number = int(dataset[7:10])
    if plans_name == "nnUNetPlans":
        return f"nnUNetv2_plan_and_preprocess -d {number} -c 2d"
    name = "" if plans_name == "nnUNetGDLAPlans" else f" --plans-name {plans_name}"
    return f"nnunet-gdla plan -d {number}{name} --preprocess"


def usual_encoder(trainer: type) -> str:
    """Return the encoder that a trainer builds from stock plans."""
    from nnunet_gdla.trainers.nnunet_gdla_network import DEFAULT_ENCODER

    return str(getattr(trainer, "encoder", None) or DEFAULT_ENCODER)


def network_size(network: PVTGDLA) -> NetworkSize:
    """Return what the memory model has to know of a network; what else its plans change is not in that model."""
    block = network.decoder.blocks[0]
    decoder = _ATTENTIONS[type(block.attention)] if isinstance(block, AttentionBlock) else "gdla"
    return NetworkSize(network.encoder_name, decoder, network.input_channels, network.decoder.num_classes)


def _check_configuration(
    plans: dict[str, Any],
    name: str,
    dataset_json: dict[str, Any],
    trainer: type,
    device: str,
    folder: Path,
    plans_name: str,
) -> Generator[Finding, None, Planned | None]:
    from nnunetv2.utilities.label_handling.label_handling import determine_num_input_channels
    from nnunetv2.utilities.plans_handling.plans_handler import PlansManager

    manager = PlansManager(plans)
    title = f"plans {plans_name}"
    again = f"plan again: {_planning_command(folder.name, plans_name)}"
    if not isinstance(plans.get("configurations"), dict):
        yield failed(title, "they hold no configurations", again)
        return None
    flat = [known for known in manager.available_configurations if _is_2d(manager, known)]
    if name not in flat:
        state = "does not exist"
        if name in manager.available_configurations:
            state = _why_unread(manager, name) or "is not supported: this network is 2D"
        fix = f"use -c {' or -c '.join(flat)}" if flat else "nnUNetv2_plan_and_preprocess -c 2d"
        yield failed(title, f"configuration {name} {state}", fix)
        return None
    deep = [known for known in manager.available_configurations if known not in flat]
    chosen = manager.get_configuration(name)
    if not _is_positive([*chosen.patch_size, chosen.configuration.get("batch_size")]):
        sizes = f"patch_size {chosen.patch_size}, batch_size {chosen.configuration.get('batch_size')}"
        yield failed(title, f"{name} has {sizes}", "write whole numbers of at least 1")
        return None
    if min(chosen.patch_size) < _SMALLEST_SIDE:
        detail = f"{name} has patch_size {chosen.patch_size}, which nnU-Net's augmentation cannot blur"
        yield failed(title, detail, f"write sides of at least {_SMALLEST_SIDE}, better multiples of 32")
    try:
        heads = manager.get_label_manager(dataset_json).num_segmentation_heads
        channels = determine_num_input_channels(manager, chosen, dataset_json)
    except BREAKAGES as error:
        detail = f"nnU-Net cannot use them with the dataset.json beside them: {one_line(error)}"
        yield failed(title, detail, f"correct label_manager there and labels and channel_names here, or {again}")
        return None
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nnU-Net's, about where it looks for the network
            network = trainer.build_network_architecture(manager, chosen, channels, heads, True)  # type: ignore[attr-defined]
    except BREAKAGES as error:
        fix = "choose the trainer that fits these plans, or other plans with -p"
        yield failed(title, f"{trainer.__name__} refuses {name}: {one_line(error)}", fix)
        return None
    rest = f"; {', '.join(deep)} in there is not supported" if deep else ""
    yield passed(title, f"{name}: patch {chosen.patch_size}, batch {chosen.batch_size}, {type(network).__name__}{rest}")
    if isinstance(network, PVTGDLA):
        yield _compare_memory(network, chosen.patch_size, chosen.batch_size, _DEVICES[device])
        if network.encoder_name != usual_encoder(trainer):  # that one was looked at before
            yield from check_weights(network.encoder_name)
    return Planned(folder, manager, chosen, name, plans_name, dataset_json, trainer, network)


def _is_2d(manager: Any, name: str) -> bool:  # noqa: ANN401 - nnU-Net has no types
    if _why_unread(manager, name):
        return False
    configuration = manager.get_configuration(name)
    return len(configuration.patch_size) == 2 and configuration.previous_stage_name is None


def _why_unread(manager: Any, name: str) -> str:  # noqa: ANN401
    """Say why a configuration cannot be read, such as a parent that is missing; nothing where it can."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nnU-Net's, about plans of older versions
            len(manager.get_configuration(name).patch_size)
    except BREAKAGES as error:
        return f"cannot be read: {one_line(error)}"
    return ""


def _is_positive(numbers: list[object]) -> bool:
    return all(isinstance(each, int) and not isinstance(each, bool) and each > 0 for each in numbers)


def _compare_memory(network: PVTGDLA, patch_size: list[int], batch_size: int, device: Device) -> Finding:
    size = network_size(network)
    needed = training_memory(size, patch_size, batch_size, device).total / GIB
    detail = f"a training step needs about {needed:.1f} GiB in {'float16' if device == 'cuda' else 'float32'}"
    memory = _memory_gib(device)
    if memory is None:
        return passed("memory", f"{detail}; how much there is cannot be told on this system")
    free, total = memory
    detail = f"{detail}, {free:.1f} of {total:.1f} GiB are free on {device}"
    fitting = largest_batch(size, patch_size, int(free * GIB), device)
    smaller = f"copy the plans under another name with batch_size {fitting}, " if fitting else ""
    fix = f"{smaller}use a smaller encoder (_B0), or free memory"
    if needed > _SURELY_TOO_MUCH * total:
        return failed("memory", detail, fix)
    return warned("memory", detail, fix) if needed > free else passed("memory", detail)


def _memory_gib(device: str) -> tuple[float, float] | None:
    """Free and total memory of the device; None where there is none, or the standard library cannot tell (Windows)."""
    if not is_usable(device):
        return None
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        return free / GIB, total / GIB
    if device == "mps":
        total = torch.mps.recommended_max_memory()
        return (total - torch.mps.driver_allocated_memory()) / GIB, total / GIB
    if not hasattr(os, "sysconf"):
        return None
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return _available_bytes(total) / GIB, total / GIB


def _available_bytes(total: int) -> int:
    """What Linux says a program can have without swapping; elsewhere all there is."""
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return total
