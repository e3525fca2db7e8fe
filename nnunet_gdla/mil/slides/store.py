"""Slides of a cohort by name, with the files that were used last kept open."""

import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py

from nnunet_gdla.mil.slides.placing import Placing
from nnunet_gdla.mil.slides.reader import open_file, read_open, read_slide
from nnunet_gdla.mil.slides.slide import ReadOptions, Slide, SortRows, Unit

__all__ = ["SlideStore"]


class SlideStore(Mapping[str, Slide]):
    """Read slides by name; every process has its own open files, and what was found about a slide's lattice is kept.

    A copy in another process (a data loader's worker, started in whatever way) opens its own files. Warnings of single
    slides are not repeated here: the pre-flight report has them.
    """

    def __init__(
        self,
        paths: Mapping[str, Path],
        *,
        max_open: int = 16,
        feature_key: str | None = None,
        stride: float | int | None = None,
        unit: Unit | None = None,
        allow_isolated: bool = False,
        need_coords: bool = True,
        max_patches: int | None = None,
        sort_rows: SortRows | None = None,
    ) -> None:
        """Keep the paths; nothing is open_file yet.

        Args:
            paths: File of every slide name.
            max_open: Files that stay open at once.
            feature_key: See `read_slide`, as all that follow.
            stride: Distance of neighbouring patches.
            unit: Unit of the coordinates.
            allow_isolated: Take slides whose patches hardly have neighbours.
            need_coords: Coordinates are needed.
            max_patches: Cap per slide.
            sort_rows: "lattice", or None.
        """
        if max_open < 1:
            raise ValueError(f"max_open must be at least 1, got {max_open}")
        self.paths = {slide_id: Path(path) for slide_id, path in paths.items()}
        self.max_open = max_open
        self.options = ReadOptions(feature_key, stride, unit, allow_isolated, need_coords, max_patches, sort_rows)
        self._open: OrderedDict[str, h5py.File] = OrderedDict()
        self._process = os.getpid()
        self._placing: dict[str, Placing] = {}

    def __getitem__(self, slide_id: str) -> Slide:
        if slide_id not in self.paths:
            raise KeyError(f"no slide {slide_id!r} among the {len(self.paths)} of this store")
        path = self.paths[slide_id]
        if path.suffix.lower() == ".pt":
            options = self.options
            return read_slide(
                path,
                need_coords=options.need_coords,
                max_patches=options.max_patches,
                sort_rows=options.sort_rows,
            )
        file = self._file(slide_id, path)
        slide, self._placing[slide_id] = read_open(file, path, self.options, self._placing.get(slide_id))
        return slide

    def __iter__(self) -> Iterator[str]:
        return iter(self.paths)

    def __len__(self) -> int:
        return len(self.paths)

    def __contains__(self, slide_id: object) -> bool:
        return slide_id in self.paths

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": OrderedDict()}

    def close(self) -> None:
        """Close all files; they open again when they are needed."""
        while self._open:
            self._open.popitem()[1].close()

    def _file(self, slide_id: str, path: Path) -> h5py.File:
        if self._process != os.getpid():  # forked: the handles share their position with those of the parent
            self._open, self._process = OrderedDict(), os.getpid()
        if slide_id in self._open:
            self._open.move_to_end(slide_id)
            return self._open[slide_id]
        while len(self._open) >= self.max_open:
            self._open.popitem(last=False)[1].close()
        self._open[slide_id] = open_file(path)
        return self._open[slide_id]
