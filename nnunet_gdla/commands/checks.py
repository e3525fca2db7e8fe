"""Is this environment in order? Interpreter, packages, nnU-Net's folders, weights, compiling, and one training step.

Each check yields its findings and imports what it looks at itself, so that a broken package spoils one check only.
"""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

from nnunet_gdla.commands.findings import Finding, failed, passed, warned
from nnunet_gdla.variables import path_mistake
from nnunet_gdla.words import counted

__all__ = [
    "check_compile",
    "check_folders",
    "check_interpreter",
    "check_nnunet",
    "check_processes",
    "check_timm",
    "check_torch",
    "check_training_step",
    "check_weights",
    "is_usable",
]

FEW_CORES = 4
FOLDERS = {
    "nnUNet_raw": "the datasets",
    "nnUNet_preprocessed": "plans and preprocessed data",
    "nnUNet_results": "trained models",
}
SMALL_MACHINE = (
    "for a small machine: export nnUNet_def_n_proc=1 nnUNet_n_proc_DA=1 nnUNet_compile=f, "
    "-npfp 1 -np 1 when planning and preprocessing, -npp 0 -nps 0 when predicting"
)


def check_interpreter() -> Iterator[Finding]:
    """Say which Python runs this, and on what."""
    here = f"{platform.python_version()} at {sys.executable}, {platform.platform()}"
    if sys.version_info < (3, 11):  # noqa: UP036 - an install with --ignore-requires-python gets as far as this
        yield failed("Python", here, "install into Python 3.11 or newer")
    else:
        yield passed("Python", here)


def check_nnunet() -> Iterator[Finding]:
    """Say where nnU-Net is and whether its version is one that we are written for."""
    yield from _check_version("nnunetv2", (2, 8), (3,))


def check_timm() -> Iterator[Finding]:
    """Say which timm there is; the PVTv2 encoders come from it."""
    yield from _check_version("timm", (1, 0, 16), None)


def check_torch(device: str) -> Iterator[Finding]:
    """Say which torch there is and whether the device can be used."""
    yield from _check_version("torch", (2, 8), None, excluded=(2, 9))  # nnU-Net excludes 2.9 as well
    if importlib.util.find_spec("torch") is None:
        return
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        fix = "check nvidia-smi and the torch build (https://pytorch.org), or give -device cpu here and to nnU-Net"
        yield failed("device", "cuda is not available to torch", fix)
    elif device == "mps" and not torch.backends.mps.is_available():
        yield failed("device", "mps is not available to torch", "give -device cpu here and to nnU-Net")
    elif device == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        yield passed("device", f"{torch.cuda.get_device_name(0)}, {total / 2**30:.1f} GiB, CUDA {torch.version.cuda}")
    else:
        yield passed("device", f"{device}, {torch.get_num_threads()} threads on {os.cpu_count()} cores")


def is_usable(device: str) -> bool:
    """Whether torch can use a device: "cpu", "cuda" or "mps"."""
    import torch

    if device == "cuda":
        return torch.cuda.is_available()
    return device != "mps" or torch.backends.mps.is_available()


def check_folders() -> Iterator[Finding]:
    """Say whether nnU-Net's three folders are set, there, and writable where nnU-Net writes."""
    for name, purpose in FOLDERS.items():
        value = os.environ.get(name)
        if not value:
            yield warned(name, f"not set ({purpose})", f"export {name}=/path/to/{name}")
        elif (mistake := path_mistake(name, value)) is not None:
            wrong, fix = mistake.split("; ", 1)
            yield failed(name, wrong, fix)
        elif not Path(value).is_dir():
            taken = os.path.lexists(value)  # nnU-Net makes folders, but not where something else lies
            finding = failed if taken or name == "nnUNet_raw" else warned
            make = "move away what lies there" if taken else f"mkdir -p '{value}'"
            yield finding(name, f"{value} is no folder ({purpose})", f"{make}, or correct the variable")
        elif os.access(value, os.W_OK):
            yield passed(name, value)
        elif name == "nnUNet_raw":
            yield passed(name, f"{value} (read-only, which is enough)")
        else:
            yield failed(name, f"{value} cannot be written", f"chmod u+w '{value}', or name another folder")


def check_processes(device: str) -> Iterator[Finding]:
    """Look at the variables that set nnU-Net's numbers of processes, which it reads when it is imported."""
    values = {name: os.environ.get(name) for name in ("nnUNet_n_proc_DA", "nnUNet_def_n_proc")}
    for name, value in values.items():
        if value is not None and not value.isdecimal():
            yield failed(name, f"{value!r} is no whole number; nnU-Net cannot even be imported", f"export {name}=2")
    if values["nnUNet_n_proc_DA"] == "0":
        fix = "export nnUNet_n_proc_DA=1 for nnUNetv2_plan_and_preprocess; 0 is fine in training"
        yield warned("nnUNet_n_proc_DA", "0 makes nnU-Net's own planner fail", fix)
    if values["nnUNet_def_n_proc"] == "0":
        yield failed("nnUNet_def_n_proc", "0 workers", "export nnUNet_def_n_proc=1")
    cores = os.cpu_count() or 1
    if cores <= FEW_CORES or device == "cpu":
        now = ", ".join(f"{name}={value}" for name, value in values.items() if value is not None)
        yield passed(
            "processes", f"{cores} cores, {now or 'nnU-Net takes its defaults (8 and 12 processes)'}", SMALL_MACHINE
        )


def check_compile(device: str) -> Iterator[Finding]:
    """Say whether nnU-Net will use torch.compile in training, why, and whether it can."""
    import torch
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

    asks = SimpleNamespace(device=torch.device(device), print_to_log_file=lambda *_: None)
    variable = os.environ.get("nnUNet_compile")
    setting = "nnUNet_compile is not set" if variable is None else f"nnUNet_compile={variable}"
    if not nnUNetTrainer._do_i_compile(asks):
        why = setting if device == "cuda" and os.name != "nt" else f"nnU-Net never compiles on {_where(device)}"
        yield passed("torch.compile", f"off in training: {why}")
        return
    compiler = next(filter(shutil.which, filter(None, (os.environ.get("CC"), "gcc", "clang", "cc"))), None)
    if compiler is None:
        yield failed(
            "torch.compile", f"on ({setting}), but there is no C compiler", "install gcc, or export nnUNet_compile=f"
        )
    elif importlib.util.find_spec("triton") is None:
        yield failed(
            "torch.compile", f"on ({setting}), but triton is missing", "pip install triton, or export nnUNet_compile=f"
        )
    else:
        yield passed("torch.compile", f"on in training ({setting}), C compiler {shutil.which(compiler)}")


def check_weights(encoder: str) -> Iterator[Finding]:
    """Say what a fresh training's encoder starts from, and whether that file is here and fits; nothing is fetched."""
    from nnunet_gdla.networks import PVTGDLA
    from nnunet_gdla.networks.weights import (
        WEIGHTS_VARIABLE,
        encoder_weights_advice,
        find_encoder_weights,
        load_encoder_weights,
    )
    from nnunet_gdla.trainers.nnunet_gdla_pretrained import encoder_weights_source

    source = encoder_weights_source()
    title = "encoder weights"
    if source is None:
        yield passed(title, f"{WEIGHTS_VARIABLE}=none: trainings start from scratch")
        return
    path = find_encoder_weights(encoder, source)
    if path is None and source == "imagenet":
        detail = f"the ImageNet weights of {encoder} are not on this machine; the first training will try to fetch them"
        fix = f"nothing to do where huggingface.co can be reached; elsewhere: {encoder_weights_advice(encoder)}"
        yield warned(title, detail, fix)
    elif path is None:
        _, _, export = (path_mistake(WEIGHTS_VARIABLE, source) or "").partition("; ")
        fix = export or f"correct the path, or set {WEIGHTS_VARIABLE} to 'imagenet' or 'none'"
        yield failed(title, f"{WEIGHTS_VARIABLE}={source} is no file", fix)
    else:
        try:
            detail = load_encoder_weights(PVTGDLA(3, 2, encoder=encoder), path)
        except ValueError as error:
            yield failed(
                title, str(error), f"set {WEIGHTS_VARIABLE} to a file for {encoder}, to 'imagenet' or to 'none'"
            )
        else:
            yield passed(title, f"{WEIGHTS_VARIABLE}={source}, {detail.removeprefix('encoder: ')}")


def check_training_step(device: str) -> Iterator[Finding]:
    """Run one forward and backward pass of a small network the way nnU-Net would, and look at every gradient."""
    import torch

    from nnunet_gdla.networks import PVTGDLA

    where = torch.device(device)
    start = time.perf_counter()
    network = PVTGDLA(3, 2, encoder="pvt_v2_b0", deep_supervision=True).to(where)
    with torch.autocast(where.type, dtype=torch.float16, enabled=where.type == "cuda"):
        outputs = network(torch.randn(2, 3, 64, 96, device=where))
        loss = sum(output.float().square().mean() for output in outputs)
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in network.named_parameters()}
    bad = [name for name, grad in gradients.items() if grad is None or not bool(grad.isfinite().all())]
    seconds = time.perf_counter() - start
    if not bool(loss.isfinite()) or bad:
        named = ", ".join(bad[:3])
        detail = f"loss {loss.item():g}, {counted(len(bad), 'gradient')} missing or not finite ({named})"
        fix = "try -device cpu; if that passes, update the GPU driver and torch, otherwise reinstall torch and timm"
        yield failed("training step", detail, fix)
    else:
        yield passed(
            "training step", f"PVTGDLA pvt_v2_b0, forward and backward all finite on {device}, {seconds:.1f} s"
        )


def _where(device: str) -> str:
    return "Windows" if device == "cuda" else {"cpu": "a CPU", "mps": "mps"}[device]


def _check_version(
    package: str, lowest: tuple[int, ...], below: tuple[int, ...] | None, excluded: tuple[int, ...] | None = None
) -> Iterator[Finding]:
    wanted = f"{package}>={_dotted(lowest)}"
    wanted += (f",<{_dotted(below)}" if below else "") + (f",!={_dotted(excluded)}.*" if excluded else "")
    fix = f'pip install "{wanted}"'
    spec = importlib.util.find_spec(package)
    if spec is None:
        yield failed(package, "not installed in this environment", fix)
        return
    version = importlib.metadata.version(package)
    numbers = _numbers(version)
    here = f"{version} at {Path(spec.origin).parent if spec.origin else 'an unknown place'}"
    too_new = below is not None and numbers >= below
    if numbers < lowest or too_new or (excluded is not None and numbers[: len(excluded)] == excluded):
        yield failed(package, f"{here} is outside {wanted.removeprefix(package)}", fix)
    else:
        yield passed(package, here)


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (2, 14, 1) of "2.14.1+cpu"."""
    numbers: list[int] = []
    for part in version.split("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)
