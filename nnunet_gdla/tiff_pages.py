"""Whether a TIFF file holds all that its pages promise. Standard library only.

Readers take the pages that they reach before the end of a file that was cut short, and at most mention it on the side.
"""

import os
import struct
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

__all__ = ["check_tiff", "is_tiff"]

_STARTS = {b"II*\0": "<", b"MM\0*": ">", b"II+\0": "<", b"MM\0+": ">"}
_BIG = b"+"
# Where a page's pixels begin, and how many bytes they take: strips, tiles.
_PLACES, _SIZES = (273, 324), (279, 325)
_WHOLE_NUMBERS = {1: "B", 3: "H", 4: "I", 16: "Q"}  # types of a tag's values, as struct calls them


def is_tiff(path: Path) -> bool:
    """Whether the file's first bytes are those of a TIFF, whatever its name."""
    with path.open("rb") as file:
        return file.read(4) in _STARTS


def check_tiff(path: Path) -> int:
    """Follow the chain of pages and compare where their pixels lie with the file's size; pixels are not read.

    Returns:
        How many pages there are.

    Raises:
        EOFError: If a page, or the pixels of one, lie behind the file's end.
        ValueError: If the chain leads back to an earlier page.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        seen: set[int] = set()
        for place, tags in _pages(file, size):
            if place in seen:
                raise ValueError(f"page {len(seen) + 1} is an earlier page again")
            seen.add(place)
            places, sizes = ([*tags.get(one, ()), *tags.get(two, ())] for one, two in (_PLACES, _SIZES))
            if any(begin + length > size for begin, length in zip(places, sizes, strict=False)):
                raise EOFError(f"the file ends within the pixels of page {len(seen)}")
    return len(seen)


def _pages(file: BufferedReader, size: int) -> Iterator[tuple[int, dict[int, tuple[int, ...]]]]:
    """Yield of each page where it begins, and the tags that tell where its pixels lie."""
    start = file.read(4)
    order, big = _STARTS[start], _BIG in start
    offset, count, entry = ("Q", "Q", "HHQ8s") if big else ("I", "H", "HHI4s")
    if big:
        file.seek(8)
    number = 1
    (place,) = _unpack(file, order + offset, number)
    while place:
        if place >= size:
            raise EOFError(f"page {number} would begin behind the file's end")
        file.seek(place)
        (entries,) = _unpack(file, order + count, number)
        fields = [_unpack(file, order + entry, number) for _ in range(entries)]
        (following,) = _unpack(file, order + offset, number)
        telling = [field for field in fields if field[0] in _PLACES + _SIZES and field[1] in _WHOLE_NUMBERS]
        yield place, {tag: _values(file, order, kind, times, inline, number) for tag, kind, times, inline in telling}
        place, number = following, number + 1


def _values(file: BufferedReader, order: str, kind: int, count: int, inline: bytes, page: int) -> tuple[int, ...]:
    form = f"{order}{count}{_WHOLE_NUMBERS[kind]}"
    if struct.calcsize(form) <= len(inline):
        return struct.unpack(form, inline[: struct.calcsize(form)])
    file.seek(int.from_bytes(inline, "little" if order == "<" else "big"), os.SEEK_SET)
    return _unpack(file, form, page)


def _unpack(file: BufferedReader, form: str, page: int) -> tuple[Any, ...]:
    size = struct.calcsize(form)
    if file.tell() + size > os.fstat(file.fileno()).st_size:  # asked first: a damaged count may be of gigabytes
        raise EOFError(f"the file ends within the description of page {page}")
    return struct.unpack(form, file.read(size))
