"""Slides on their way into a training: which one when, read by worker processes, one slide a step."""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.bundle_info import BundleInfo
from nnunet_gdla.mil.neighbours import CACHE_BYTES, NeighbourCache, NeighbourOptions, Neighbours, find_neighbours
from nnunet_gdla.mil.slides import Slide, SlideStore
from nnunet_gdla.ops.neighbours import NeighbourGraph

__all__ = [
    "Bag",
    "EpochSampler",
    "EverySlideOnce",
    "SlideBags",
    "Visit",
    "bags_of",
    "found_neighbours",
    "model_inputs",
    "process_rank",
    "slide_loader",
]

T = TypeVar("T")


class Visit(NamedTuple):
    """One step of one process.

    Attributes:
        position: Place in the order of the epoch.
        number: Number of the slide; -1: this process has nothing to do in this step.
        share: Weight of the slide's loss in its optimiser step, 1 / slides of the step.
        last: Whether the optimiser steps after it.
    """

    position: int
    number: int
    share: float = 1.0
    last: bool = False


@dataclass(frozen=True)
class Bag:
    """What a step gets; `slide` is None where the process only waits for the others.

    `neighbours` are those that the models of the run look at.
    """

    visit: Visit
    slide: Slide | None
    neighbours: Mapping[NeighbourOptions, Neighbours] = field(default_factory=dict)

    def pin_memory(self) -> "Bag":
        """Return a copy that CUDA fetches faster; the loader asks for it."""
        if self.slide is None:
            return self
        coords = None if self.slide.coords is None else self.slide.coords.pin_memory()
        pinned = dataclasses.replace(self.slide, features=self.slide.features.pin_memory(), coords=coords)
        return Bag(self.visit, pinned, {options: each.pin_memory() for options, each in self.neighbours.items()})


class SlideBags(Dataset[Bag]):
    """Slides by number, with their neighbours. Every process opens its files and has its cache itself.

    Handles of H5 files do not survive a fork.

    Args:
        paths: Files by slide name.
        slide_ids: The slides in the order of their numbers.
        read_options: Keywords of `read_slide`.
        wanted: What the models look at.
        remember: Keep the neighbours of slides that are visited again; only where their rows are always the same.
    """

    def __init__(
        self,
        paths: Mapping[str, Path],
        slide_ids: Sequence[str],
        read_options: Mapping[str, Any],
        wanted: Sequence[NeighbourOptions] = (),
        *,
        remember: bool = False,
    ) -> None:
        self.paths = {name: paths[name] for name in slide_ids}
        self.slide_ids = tuple(slide_ids)
        self.read_options = dict(read_options)
        self.wanted, self.remember = tuple(wanted), remember
        self._store: SlideStore | None = None
        self._cache: NeighbourCache | None = None
        self._process = -1

    def __len__(self) -> int:
        return len(self.slide_ids)

    def __getitem__(self, visit: Visit) -> Bag:
        if visit.number < 0:
            return Bag(visit, None)
        slide = self.read(visit.number)
        if self._cache is None:
            return Bag(visit, slide, found_neighbours(slide, self.wanted))
        return Bag(visit, slide, self._cache.get(visit.number, partial(found_neighbours, slide, self.wanted)))

    def read(self, index: int) -> Slide:
        """Read one slide."""
        if self._store is None or self._process != os.getpid():
            self._store, self._process = SlideStore(self.paths, **self.read_options), os.getpid()
            worker = get_worker_info()
            share = CACHE_BYTES // (worker.num_workers if worker is not None else 1)
            self._cache = NeighbourCache(share) if self.remember else None
        return self._store[self.slide_ids[index]]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_store": None, "_cache": None, "_process": -1}


class EpochSampler(Sampler[Visit]):
    """The order of an epoch, from (seed, epoch) alone, cut into optimiser steps and dealt to the processes.

    With several processes every optimiser step has the same slides as with one: each process takes every n-th slide of
    the step, and a process without one waits. Only where a step has fewer slides than there are processes it grows to
    their number.

    Args:
        count: Number of slides.
        accumulate: Slides per optimiser step; the last step of an epoch may have fewer.
        seed: Seed of the run.
        weights: Chance of each slide, drawn with replacement. None: every slide once.
        world: Processes that train together.
    """

    def __init__(
        self, count: int, accumulate: int, seed: int, weights: Sequence[float] | None = None, *, world: int = 1
    ) -> None:
        self.count, self.seed = count, seed
        self.world, self.window = world, max(accumulate, world)
        self.weights = None if weights is None else np.asarray(weights, dtype=np.float64) / np.sum(weights)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Lightning says which epoch comes."""
        self.epoch = epoch

    def order(self) -> list[int]:
        """Return the slides of the epoch in order."""
        rng = np.random.default_rng([self.seed, self.epoch])
        if self.weights is None:
            return rng.permutation(self.count).tolist()
        return rng.choice(self.count, self.count, p=self.weights).tolist()

    def optimiser_steps(self) -> int:
        """Return the optimiser steps of an epoch."""
        return -(-self.count // self.window)

    def __len__(self) -> int:
        return sum(1 for _ in self._starts())

    def __iter__(self) -> Iterator[Visit]:
        rank, order = process_rank()[0], self.order()
        for start in self._starts():
            position = start + rank
            first = start // self.window * self.window
            end = min(first + self.window, self.count)
            index = order[position] if position < end else -1
            yield Visit(position, index, 1 / (end - first), last=start + self.world >= end)

    def _starts(self) -> Iterator[int]:
        """Positions of the first process, step by step."""
        for first in range(0, self.count, self.window):
            yield from range(first, min(first + self.window, self.count), self.world)


class EverySlideOnce(Sampler[Visit]):
    """All slides in order, dealt to the processes; none twice, none left out."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        rank, world = process_rank()
        return len(range(rank, self.count, world))

    def __iter__(self) -> Iterator[Visit]:
        rank, world = process_rank()
        for index in range(rank, self.count, world):
            yield Visit(index, index)


def process_rank() -> tuple[int, int]:
    """Return the number of this process and how many train together."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def bags_of(
    table: pd.DataFrame, info: BundleInfo, models: Sequence[nn.Module] = (), *, remember: bool = False
) -> SlideBags:
    """Return the slides of a cohort table, read as the models want them; `remember` as for `SlideBags`."""
    paths = {str(row.slide_id): Path(str(row.path)) for row in table.itertuples()}
    wanted = dict.fromkeys(each for model in models if (each := neighbour_options(model)) is not None)
    return SlideBags(paths, list(paths), info.read_options(), tuple(wanted), remember=remember)


def neighbour_options(model: nn.Module) -> NeighbourOptions | None:
    """Return what a model wants to know of the neighbours; None where it looks at none."""
    options: NeighbourOptions | None = getattr(model, "neighbour_options", None)
    return options


def found_neighbours(slide: Slide, wanted: Sequence[NeighbourOptions]) -> dict[NeighbourOptions, Neighbours]:
    """Return the neighbours of a slide's patches, by what is wanted; nothing without coordinates."""
    if slide.coords is None or slide.stride is None:
        return {}
    place = slide.coords, slide.stride, slide.lattices
    return {options: find_neighbours(slide.features, *place, options) for options in wanted}


def model_inputs(
    model: nn.Module,
    slide: Slide,
    device: torch.device,
    neighbours: Mapping[NeighbourOptions, Neighbours] | None = None,
) -> dict[str, Any]:
    """Return the keyword arguments of a model's `forward`: a batch of one slide on the device.

    Args:
        model: Which wants to know its neighbours, or not.
        slide: As read.
        device: Where the model is.
        neighbours: Those that were found when it was read; what is missing is found here.
    """
    coords = None if slide.coords is None else slide.coords[None].to(device, non_blocking=True)
    inputs = {"features": slide.features[None].to(device, non_blocking=True), "coords": coords, "stride": slide.stride}
    options = neighbour_options(model)
    if options is None:
        return inputs
    found = (neighbours or {}).get(options) or found_neighbours(slide, [options]).get(options)
    if found is None:  # without coordinates; the model says so
        return inputs
    graph = NeighbourGraph(*(part.to(device, non_blocking=True) for part in found.graph))
    homogeneity = None if found.homogeneity is None else found.homogeneity.to(device, non_blocking=True)
    return inputs | {"graph": graph, "homogeneity": homogeneity}


def slide_loader(bags: SlideBags, sampler: Sampler[Visit], *, workers: int, pin_memory: bool) -> DataLoader[Bag]:
    """Return a loader of single slides.

    Args:
        bags: The slides.
        sampler: Their order.
        workers: Processes that read; 0 reads in this one.
        pin_memory: For CUDA.
    """
    return _SentenceLoader(
        bags,
        batch_size=None,
        sampler=sampler,
        num_workers=workers,
        collate_fn=_as_it_is,
        pin_memory=pin_memory,
        persistent_workers=workers > 0,
    )


class _SentenceLoader(DataLoader[Bag]):
    """A loader whose readers' sentences reach the user as they were, without the traceback of a process."""

    def __iter__(self) -> Any:  # noqa: ANN401 - torch's iterator type is private
        try:
            yield from super().__iter__()
        except UserError as error:
            raise UserError(str(error).rpartition(f"{UserError.__name__}: ")[2].strip()) from None


def _as_it_is(item: T) -> T:
    return item
