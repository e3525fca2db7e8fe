"""An existing plan: does the trainer accept it, is the configuration supported, does a training step fit the memory?"""

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from nnunet_gdla.commands.checks import check_weights
from nnunet_gdla.commands.dataset_json import read_json
from nnunet_gdla.commands.findings import BREAKAGES, Finding, failed, one_line, passed, warned
from nnunet_gdla.commands.registration_check import find_trainer
from nnunet_gdla.layers import AttentionBlock, DifferentialAttention, LinearAttention, SoftmaxAttention
from nnunet_gdla.networks import PVTGDLA
from nnunet_gdla.plans.nnunet_gdla_memory import GIB, Device, largest_batch, training_memory
from nnunet_gdla.plans.nnunet_gdla_sizes import NetworkSize

__all__ = ["check_plans", "network_size", "usual_encoder"]

_ATTENTIONS = {LinearAttention: "linear", SoftmaxAttention: "self", DifferentialAttention: "diff"}
_DEVICES: dict[str, Device] = {"cuda": "cuda", "cpu": "cpu", "mps": "mps"}
# Beyond this there is no doubt: the model is good to 15 %, and on a CPU spares more than half a GiB for nnU-Net.
_SURELY_TOO_MUCH = 1.25


def check_plans(dataset: str, plans_name: str, configuration: str, trainer_name: str, device: str) -> Iterator[Finding]:
    """Yield what is wrong with a dataset's plan for this trainer; says so if there is none yet.

    Args:
        dataset: Full name of the dataset.
        plans_name: Name of the plans, the file's name without ".json".
        configuration: Name of the configuration, usually "2d".
        trainer_name: Name of the trainer, as for -tr.
        device: "cpu", "cuda" or "mps".
    """
    preprocessed = os.environ.get("nnUNet_preprocessed")
    folder = Path(preprocessed or "") / dataset
    path = folder / f"{plans_name}.json"
    if not preprocessed or not path.is_file():
        others = sorted(other.stem for other in folder.glob("*lans*.json")) if preprocessed else []
        hint = (
            f"there is -p {', -p '.join(others)}"
            if others
            else f"next, when nothing fails: nnUNetv2_plan_and_preprocess -d {int(dataset[7:10])} -c 2d"
        )
        yield passed("plans", f"no {plans_name} for {dataset} yet", hint)
        return
    plans = read_json(path)
    if isinstance(plans, Finding):
        yield plans
        return
    dataset_json = read_json(folder / "dataset.json")
    if isinstance(dataset_json, Finding):
        yield dataset_json
        return
    trainer = find_trainer(trainer_name)
    if not isinstance(trainer, Finding):  # where it is one, the look-up has reported it already
        yield from _check_configuration(plans, configuration, dataset_json, trainer, device)


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
    plans: dict[str, Any], name: str, dataset_json: dict[str, Any], trainer: type, device: str
) -> Iterator[Finding]:
    from nnunetv2.utilities.plans_handling.plans_handler import PlansManager

    manager = PlansManager(plans)
    title = f"plans {manager.plans_name}"
    flat = [known for known in manager.available_configurations if _is_2d(manager.get_configuration(known))]
    if name not in flat:
        state = "is not supported: this network is 2D" if name in manager.available_configurations else "does not exist"
        fix = f"use -c {' or -c '.join(flat)}" if flat else "nnUNetv2_plan_and_preprocess -c 2d"
        yield failed(title, f"configuration {name} {state}", fix)
        return
    deep = [known for known in manager.available_configurations if known not in flat]
    chosen = manager.get_configuration(name)
    heads = manager.get_label_manager(dataset_json).num_segmentation_heads
    channels = len(dataset_json["channel_names"])
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            network = trainer.build_network_architecture(manager, chosen, channels, heads, True)  # type: ignore[attr-defined]
    except BREAKAGES as error:
        fix = "choose the trainer that fits these plans, or other plans with -p"
        yield failed(title, f"{trainer.__name__} refuses {name}: {one_line(error)}", fix)
        return
    rest = f"; {', '.join(deep)} in there is not supported" if deep else ""
    yield passed(title, f"{name}: patch {chosen.patch_size}, batch {chosen.batch_size}, {type(network).__name__}{rest}")
    if isinstance(network, PVTGDLA):
        yield _compare_memory(network, chosen.patch_size, chosen.batch_size, _DEVICES[device])
        if network.encoder_name != usual_encoder(trainer):  # that one was looked at before
            yield from check_weights(network.encoder_name)


def _is_2d(configuration: Any) -> bool:  # noqa: ANN401 - nnU-Net has no types
    return len(configuration.patch_size) == 2 and configuration.previous_stage_name is None


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
    """Free and total memory of the device; None where the standard library cannot tell (Windows)."""
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
