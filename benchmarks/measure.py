"""What every benchmark needs: times in turn, bytes kept for backward, peak memory, equal outputs, tables."""

import importlib
import json
import os
import resource
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from benchmarks.table import Table, Target, at_least, at_most, machine_line

__all__ = [
    "Call",
    "DifferenceError",
    "Table",
    "Target",
    "Timing",
    "alternate",
    "at_least",
    "at_most",
    "compare_outputs",
    "kept_bytes",
    "machine_line",
    "peak_memory",
]

Call = Callable[[], object]


class DifferenceError(Exception):
    """Rival and ours do not compute the same; no ratio of them means anything."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, round by round.

    Args:
        cpu_rounds: Processor time, summed over the threads of the process; other programs hardly disturb it.
        wall_rounds: Time that passed.
    """

    cpu_rounds: tuple[float, ...]
    wall_rounds: tuple[float, ...]

    @property
    def cpu(self) -> float:
        """Median processor seconds."""
        return median(self.cpu_rounds)

    @property
    def wall(self) -> float:
        """Median seconds that passed."""
        return median(self.wall_rounds)

    def over(self, other: "Timing") -> float:
        """Median over the rounds of this processor time over the other's: how many times faster the other is."""
        return median(own / its for own, its in zip(self.cpu_rounds, other.cpu_rounds, strict=True))

    def wall_over(self, other: "Timing") -> float:
        """Median over the rounds of this passed time over the other's."""
        return median(own / its for own, its in zip(self.wall_rounds, other.wall_rounds, strict=True))


def alternate(runs: Mapping[str, Call], repeats: int) -> dict[str, Timing]:
    """Time calls in turn in this process, each round starting with another one; a first round does not count.

    What slows the machine for a while meets all of them, so that the ratio of two within a round can be trusted.

    Raises:
        ValueError: If there is no round to count.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    names = list(runs)
    cpu: dict[str, list[float]] = {name: [] for name in names}
    wall: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(repeats + 1):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            began = time.process_time(), time.perf_counter()
            result = runs[name]()
            ended = time.process_time(), time.perf_counter()
            del result  # not while the clock runs: a graph of tensors takes its time
            if turn:
                cpu[name].append(ended[0] - began[0])
                wall[name].append(ended[1] - began[1])
    return {name: Timing(tuple(cpu[name]), tuple(wall[name])) for name in names}


class _Kept:
    """One tensor that autograd keeps; goes when autograd lets go of it."""

    def __init__(self, tensor: Tensor) -> None:
        # Not the tensor itself: an output that its own node keeps would be a cycle and never be freed.
        self.tensor = tensor.detach()


def kept_bytes(call: Call, given: Iterable[Tensor | nn.Module] = ()) -> int:
    """Count the bytes that autograd keeps for the backward pass once `call` has returned.

    Args:
        call: A forward pass; what it returns must hold its graph.
        given: Inputs, and modules whose parameters and buffers are there anyway: their storages do not count.

    Returns:
        The sizes of the storages behind all tensors still saved, each storage once. A custom function that hides a
        tensor in its context without `save_for_backward` escapes; none of ours does.
    """
    there = {tensor.untyped_storage().data_ptr() for tensor in _tensors_of(given)}
    kept: weakref.WeakSet[_Kept] = weakref.WeakSet()

    def pack(tensor: Tensor) -> _Kept:
        packed = _Kept(tensor)
        kept.add(packed)
        return packed

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed.tensor):
        held = call()
    storages = [packed.tensor.untyped_storage() for packed in kept]
    sizes = {storage.data_ptr(): storage.nbytes() for storage in storages if storage.data_ptr() not in there}
    del held
    return sum(sizes.values())


def _tensors_of(given: Iterable[Tensor | nn.Module]) -> Iterator[Tensor]:
    for one in given:
        if isinstance(one, nn.Module):
            yield from one.parameters()
            yield from one.buffers()
        else:
            yield one


def peak_memory(target: str, *arguments: object) -> int:
    """Measure in a fresh process how far the resident set grows beyond its size at the start.

    Args:
        target: "module:function"; the function makes everything ready and returns the call to measure.
        arguments: For the function; JSON values.

    Returns:
        Bytes of the largest resident set during the call, less those before it.
    """
    settings = json.dumps({"target": target, "arguments": arguments, "threads": torch.get_num_threads()})
    command = [sys.executable, "-m", "benchmarks.measure", settings]
    root = Path(__file__).resolve().parents[1]
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=root)
    return int(finished.stdout.splitlines()[-1])


def _measure_peak(settings: Mapping[str, object]) -> int:
    torch.set_num_threads(int(str(settings["threads"])))
    module, function = str(settings["target"]).split(":")
    arguments = settings["arguments"]
    assert isinstance(arguments, list)
    call: Call = getattr(importlib.import_module(module), function)(*arguments)
    _forget_largest_resident_set()
    start = _largest_resident_set()
    held = call()
    grown = _largest_resident_set() - start
    del held
    return grown


def _forget_largest_resident_set() -> None:
    """Start anew from what the process holds now, where the system lets one."""
    if os.access("/proc/self/clear_refs", os.W_OK):
        Path("/proc/self/clear_refs").write_text("5")


def _largest_resident_set() -> int:
    status = Path("/proc/self/status")
    if status.is_file():
        # Not ru_maxrss, which a process on Linux inherits from the one that started it.
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        return int(lines["VmHWM"].split()[0]) * 1024
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024


def compare_outputs(rival: object, ours: object, rtol: float, atol: float = 0.0) -> float:
    """Check that two results are the same numbers, tensor by tensor.

    Args:
        rival: A tensor, a number, or any nesting of sequences and mappings of these.
        ours: The same nesting.
        rtol: Allowed difference over the largest entry of the rival's tensor.
        atol: Added to that.

    Returns:
        The largest difference over the largest entry of its tensor.

    Raises:
        DifferenceError: If shapes differ, or an entry by more than that or is not a number; the message says where.
    """
    worst = 0.0
    for place, one, two in _pairs(rival, ours, "result"):
        if one.shape != two.shape:
            raise DifferenceError(f"{place}: the rival has shape {tuple(one.shape)}, ours {tuple(two.shape)}")
        if not one.numel():
            continue
        scale, difference = float(one.abs().max()), float((one - two).abs().max())
        if not difference <= atol + rtol * scale:
            raise DifferenceError(
                f"{place}: the largest difference is {difference:.3g} where the rival's largest entry is {scale:.3g}; "
                f"allowed {atol + rtol * scale:.3g}"
            )
        worst = max(worst, difference / scale if scale else 0.0)
    return worst


def _pairs(rival: object, ours: object, place: str) -> Iterator[tuple[str, Tensor, Tensor]]:
    if isinstance(rival, Tensor | float | int) and isinstance(ours, Tensor | float | int):
        yield place, torch.as_tensor(rival).detach().double(), torch.as_tensor(ours).detach().double()
    elif isinstance(rival, Mapping) and isinstance(ours, Mapping) and rival.keys() == ours.keys():
        for key in rival:
            yield from _pairs(rival[key], ours[key], f"{place}.{key}")
    elif isinstance(rival, Sequence) and isinstance(ours, Sequence) and len(rival) == len(ours):
        for number, (one, two) in enumerate(zip(rival, ours, strict=True)):
            yield from _pairs(one, two, f"{place}[{number}]")
    else:
        raise DifferenceError(
            f"{place or 'result'}: the rival gives {type(rival).__name__}, ours {type(ours).__name__}"
        )


if __name__ == "__main__":
    print(_measure_peak(json.loads(sys.argv[1])))
