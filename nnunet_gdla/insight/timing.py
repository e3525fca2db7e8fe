"""Times of several networks that can be compared: measured in one process, one call of each in turn."""

import time
from collections.abc import Callable, Mapping
from statistics import median

import torch

__all__ = ["median_ratio", "time_alternating"]


def time_alternating(
    calls: Mapping[str, Callable[[], object]],
    *,
    repeats: int,
    warmup: int = 1,
    device: torch.device | None = None,
    clock: Callable[[], float] = time.perf_counter,
    after_call: Callable[[], object] | None = None,
) -> dict[str, list[float]]:
    """Time each call in every round, the rounds starting with another one each.

    What slows the machine for a while meets all of them, so that the ratio of two within a round says more than the
    ratio of their means.

    Args:
        calls: What to time, by name.
        repeats: Rounds that are kept.
        warmup: Rounds before them that are not.
        device: A CUDA or MPS device is waited for before and after each call.
        clock: Seconds since some moment; `time.process_time` leaves out what other programs take from the processor,
            and adds up the threads of this one.
        after_call: Called after each, for a progress bar.

    Returns:
        Seconds of each round, by name.

    Raises:
        ValueError: If there is no round to keep.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    names = list(calls)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-warmup, repeats):
        first = number % len(names) if names else 0
        for name in names[first:] + names[:first]:
            _wait_for(device)
            begin = clock()
            calls[name]()
            _wait_for(device)
            if number >= 0:
                seconds[name].append(clock() - begin)
            if after_call is not None:
                after_call()
    return seconds


def median_ratio(seconds: list[float], rival: list[float]) -> float:
    """Median over rounds of one time over the other's."""
    return median(own / other for own, other in zip(seconds, rival, strict=True))


def _wait_for(device: torch.device | None) -> None:
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device is not None and device.type == "mps":
        torch.mps.synchronize()
