"""`nnunet-gdla efficiency`: parameters, multiply-adds and time of our networks and nnU-Net's."""

import argparse
import contextlib
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from nnunet_gdla.commands.arguments_efficiency import RIVAL
from nnunet_gdla.commands.efficiency_networks import Candidate, build_candidate
from nnunet_gdla.commands.efficiency_table import Row, markdown, write_csv
from nnunet_gdla.errors import UserError
from nnunet_gdla.insight import count_parameters, count_products, time_alternating
from nnunet_gdla.words import counted

__all__ = ["run"]

_SMALLEST_SIZE = 32
_WARMUP = 2


def run(args: argparse.Namespace) -> int:
    """Count, time, print the table and write it.

    Args:
        args: `sizes`, `networks`, `channels`, `classes`, `batch`, `device`, `threads`, `clock`, `repeats`, `training`,
            `no_time` and `out`.

    Returns:
        Exit code 0.

    Raises:
        UserError: If an argument makes no sense, the device is missing or too small, or the file cannot be written.
    """
    _check(args)
    sizes, networks = list(dict.fromkeys(args.sizes)), list(dict.fromkeys(args.networks))
    passes = 0 if args.no_time else 1 + args.training
    total = len(sizes) * len(networks) * (1 + passes * (args.repeats + _WARMUP))
    rows: list[Row] = []
    with _threads(args.threads), tqdm(total=total, unit="call", leave=False, dynamic_ncols=True) as bar:
        for size in sizes:
            rows += _measure(size, networks, args, bar)
        threads = torch.get_num_threads()
    print(_conditions(args, threads))
    print()
    print(markdown(rows, rival=RIVAL))
    if args.out is not None:
        write_csv(Path(args.out), rows, rival=RIVAL)
    return 0


def _check(args: argparse.Namespace) -> None:
    for size in args.sizes:
        if size < _SMALLEST_SIZE:
            raise UserError(f"--sizes {size} is too small for these networks: give {_SMALLEST_SIZE} or more.")
    for option in ("channels", "classes", "batch", "repeats", "threads"):
        value = getattr(args, option)
        if value is not None and value < 1:
            raise UserError(f"--{option} {value} makes no sense: give 1 or more.")
    if args.no_time and args.training:
        raise UserError("--no-time and --training exclude each other: leave one out.")
    if args.clock == "cpu" and args.device != "cpu":
        raise UserError(f"--clock cpu does not see the work of --device {args.device}: leave --clock out.")
    if args.out is not None:
        out = Path(args.out)
        if out.is_dir() or not out.absolute().parent.is_dir():
            raise UserError(f"--out {out} is a folder or lies in none: give a file in a folder that exists.")
    try:
        torch.empty(1, device=args.device)
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA raises the latter
        raise UserError(f"--device {args.device} cannot be used here ({error}): try --device cpu.") from error


@contextlib.contextmanager
def _threads(number: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(before if number is None else number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _measure(size: int, networks: list[str], args: argparse.Namespace, bar: "tqdm[object]") -> list[Row]:
    """Return the rows of one image size; all networks are in memory together, to be timed in turn."""
    candidates, rows = [], []
    for name in networks:
        bar.set_description(f"{size}: counting {name}")
        with torch.device("meta" if args.no_time else "cpu"):  # what is only counted needs no weights
            candidate = build_candidate(name, size, channels=args.channels, classes=args.classes)
        edge = candidate.input_size
        products = count_products(candidate.network, (1, args.channels, edge, edge))
        rows.append(Row(name, size, edge, args.channels, args.classes, count_parameters(candidate.network), products))
        candidates.append(candidate)
        bar.update()
    if args.no_time:
        return rows
    bar.set_description(f"{size}: timing")
    forward = _time(candidates, args, bar, training=False)
    both = _time(candidates, args, bar, training=True) if args.training else {}
    return [replace(row, forward=forward[row.network], training=both.get(row.network, [])) for row in rows]


def _time(
    candidates: list[Candidate], args: argparse.Namespace, bar: "tqdm[object]", *, training: bool
) -> dict[str, list[float]]:
    """Return seconds per image of every round, by network."""
    device = torch.device(args.device)
    try:
        calls = {
            candidate.name: _call(candidate, args.channels, args.batch, device, training=training)
            for candidate in candidates
        }
        seconds = time_alternating(
            calls,
            repeats=args.repeats,
            warmup=_WARMUP,
            device=device,
            clock=time.process_time if args.clock == "cpu" else time.perf_counter,
            after_call=bar.update,
        )
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"the memory of {args.device} is too small for these networks and sizes in batches of {args.batch}: lower "
            "--batch or give fewer --sizes and --networks."
        ) from error
    return {name: [second / args.batch for second in rounds] for name, rounds in seconds.items()}


def _call(
    candidate: Candidate, channels: int, batch: int, device: torch.device, *, training: bool
) -> Callable[[], object]:
    """Return a function that runs the network once: forward in inference mode, or a training step without update."""
    network: Any = candidate.network.to(device).train(training)
    network.decoder.deep_supervision = training
    image = torch.randn(batch, channels, candidate.input_size, candidate.input_size, device=device)

    def forward() -> None:
        with torch.inference_mode():
            network(image)

    def forward_and_backward() -> None:
        network.zero_grad(set_to_none=True)
        sum(output.square().mean() for output in network(image)).backward()

    return forward_and_backward if training else forward


def _conditions(args: argparse.Namespace, threads: int) -> str:
    """Say in a sentence or two what the numbers below hold for."""
    images = f"Images of {counted(args.channels, 'channel')}, {counted(args.classes, 'class', 'classes')}."
    if args.no_time:
        return f"{images} Multiply-adds of one image."
    where = f"{counted(threads, 'thread')} on the CPU" if args.device == "cpu" else args.device
    kind = "processor time" if args.clock == "cpu" else "time"
    return (
        f"{images} Multiply-adds and {kind} of one image, in batches of {args.batch}; median of {args.repeats} rounds "
        f"in turn, {where}, torch {torch.__version__}, {platform.system()} {platform.machine()}."
    )
