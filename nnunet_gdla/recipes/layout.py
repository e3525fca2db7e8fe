"""What every converter says of a download: its cases, how to write one, and every file that it leaves out."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from nnunet_gdla.errors import UserError

__all__ = [
    "Case",
    "CaseProblem",
    "Found",
    "Options",
    "Record",
    "Skipped",
    "Target",
    "list_files",
    "locate",
    "natural",
    "sort_out",
    "unknown_layout",
]

_LISTED = 25
_JUNK = re.compile(r"(^|/)(__MACOSX/|\._|\.DS_Store$|Thumbs\.db$|desktop\.ini$)")


class CaseProblem(ValueError):  # noqa: N818 - one case that cannot be used is no failure of the conversion
    """Why one case cannot be used; the conversion leaves it out, names it, and goes on."""


@dataclass(frozen=True)
class Options:
    """What changes the written files.

    Args:
        size: Edge of the square that photographs are scaled to; None keeps their size.
        label_order: Numbering of organs in a Synapse copy; "auto" tells it by their sizes.
    """

    size: int | None = None
    label_order: str = "auto"


@dataclass(frozen=True)
class Case:
    """One image and its labels.

    Args:
        name: Its name in the nnU-Net dataset.
        group: What must not be torn apart by a split, such as the patient.
        sources: The files that it is made of; their order is the converter's own.
        aliases: Other names by which a split file may call it.
        pool: Empty, or the part of the release that stands outside the paper's split.
    """

    name: str
    group: str
    sources: tuple[Path, ...]
    aliases: tuple[str, ...] = ()
    pool: str = ""


@dataclass(frozen=True)
class Target:
    """Where one case is written."""

    image: Path
    label: Path
    options: Options


@dataclass(frozen=True)
class Record:
    """What was written of one case.

    Args:
        shape: Size of the array, as stored (height, width for images).
        voxels: Number of voxels of each label.
        spacing_mm: Spacing along the axes of `shape`; empty where the source has none.
        remarks: Words to be counted over all cases.
    """

    shape: tuple[int, ...]
    voxels: dict[int, int]
    spacing_mm: tuple[float, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Skipped:
    """A file or case left out, and why."""

    name: str
    reason: str


@dataclass
class Found:
    """A download that was understood.

    Args:
        cases: In the order of their names.
        write: Writes one case, a function of a module, so that other processes find it.
        channel_names: For dataset.json.
        labels: For dataset.json.
        file_ending: For dataset.json.
        files: Number of files that were looked at.
        skipped: Every file that is in no case.
        notes: What the user has to know.
    """

    cases: list[Case]
    write: Callable[[Case, Target], Record]
    channel_names: dict[str, str]
    labels: dict[str, int]
    file_ending: str
    files: int
    skipped: list[Skipped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def natural(path: Path | str) -> list[tuple[int, str]]:
    """Sorting key that puts "benign (9)" before "benign (10)"."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"([0-9]+)", str(path))]


def list_files(source: Path) -> list[Path]:
    """Return all files below a folder, sorted by name.

    Raises:
        UserError: If there is no such folder.
    """
    if not source.is_dir():
        raise UserError(f"{source} is not a folder; unpack the download and name the folder")
    found, seen = [], {source.resolve()}
    for parent, folders, names in os.walk(source, followlinks=True):
        found += [Path(parent) / name for name in names]
        # A link may lead back to a folder above it.
        new = {name: (Path(parent) / name).resolve() for name in folders}
        folders[:] = [name for name in folders if new[name] not in seen]
        seen.update(new.values())
    return sorted(found, key=natural)


def locate(source: Path, name: str, depth: int = 4) -> list[Path]:
    """Return the folders called `name` at or a few levels below a folder."""
    level, found = [source], []
    for _ in range(depth):
        found += [folder for folder in level if folder.name == name]
        level = [below for folder in level for below in sorted(folder.iterdir()) if _is_inside(below)]
    return found


def sort_out(
    files: Iterable[Path], used: Iterable[Path], source: Path, why: Callable[[str], str | None]
) -> list[Skipped]:
    """Return every file that is not used, with the reason that `why` gives for its path below the source."""
    taken = set(used)
    left = [path.relative_to(source).as_posix() for path in files if path not in taken]
    return [Skipped(name, _reason(name, why)) for name in left]


def _reason(name: str, why: Callable[[str], str | None]) -> str:
    if _JUNK.search(name):
        return "left by an operating system or an unpacker"
    return why(name) or "no file of the public layout"


def unknown_layout(source: Path, expected: str, why: str) -> UserError:
    """Say what a folder lacks, what was expected, and what is there."""
    files = list_files(source)
    endings = Counter("".join(path.suffixes[-2:]) or "no ending" for path in files)
    there = sorted({_above(path.relative_to(source)) for path in files}, key=natural)
    listing = [f"  {name}" for name in there[:_LISTED]]
    if len(there) > _LISTED:
        listing.append(f"  ... and {len(there) - _LISTED} more")
    counts = ", ".join(f"{count} {ending}" for ending, count in endings.most_common(8)) or "no files"
    return UserError(
        f"{source} has no layout that is known here: {why}; expected is {expected}. There are {counts}:\n"
        + "\n".join(listing or ["  (empty)"])
    )


def _is_inside(folder: Path) -> bool:
    return folder.is_dir() and folder.name != "__MACOSX"


def _above(path: Path) -> str:
    return path.as_posix() if len(path.parts) < 3 else "/".join((*path.parts[:2], "..."))
