"""Tables of the benchmarks: what was claimed, what was reached, in Markdown."""

import datetime
import math
import os
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from benchmarks.measure import Timing  # which hands the table on to everybody

__all__ = ["Table", "Target", "at_least", "at_most", "machine_line"]

_COLUMNS = ("what", "rival", "ours", "rival / ours", "by wall clock")


@dataclass(frozen=True)
class Target:
    """A bound on a ratio."""

    bound: float
    at_least: bool

    def met(self, reached: float) -> bool:
        """Whether a ratio keeps to the bound; one that is not a number does not."""
        return reached >= self.bound if self.at_least else reached <= self.bound

    def __str__(self) -> str:
        return f"{'at least' if self.at_least else 'at most'} {self.bound:g}x"


def at_least(bound: float) -> Target:
    """A ratio that must not be smaller."""
    return Target(bound, at_least=True)


def at_most(bound: float) -> Target:
    """A ratio that must not be larger."""
    return Target(bound, at_least=False)


@dataclass
class Table:
    """One claim and the figures for it.

    Args:
        title: Heading.
        claim: A sentence or more: what is compared with what, and how.
        command: How to make this table alone.
        columns: Headings of the cells; `target` and `reached` follow by themselves.
        notes: Lines under the table.
    """

    title: str
    claim: str
    command: str
    columns: tuple[str, ...] = _COLUMNS
    notes: list[str] = field(default_factory=list)
    rows: list[tuple[tuple[str, ...], float | None, Target | None]] = field(default_factory=list)

    def add(self, *cells: str, reached: float | None = None, target: Target | None = None) -> None:
        """Append a row of cells; with a target, `reached` is the ratio that it bounds.

        Raises:
            ValueError: If there are more or fewer cells than columns, or a target has nothing to bound.
        """
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells do not fit the columns {', '.join(self.columns)}")
        if target is not None and reached is None:
            raise ValueError(f"row {cells[0]!r} has a target and no figure for it")
        self.rows.append((cells, reached, target))

    def add_times(self, what: str, rival: "Timing", ours: "Timing", target: Target | None = None) -> None:
        """Append a row of processor times; the ratio is rival over ours, or ours over rival for a target "at most".

        The wall clock's ratio stands beside it and is bound by nothing: other programs move it.
        """
        swap = target is not None and not target.at_least
        ratio, wall = (ours.over(rival), ours.wall_over(rival)) if swap else (rival.over(ours), rival.wall_over(ours))
        cells = (what, _milliseconds(rival.cpu), _milliseconds(ours.cpu), f"{ratio:.2f}x", f"{wall:.2f}x")
        self.add(*cells, reached=ratio, target=target)

    def add_bytes(self, what: str, rival: int, ours: int, target: Target | None = None) -> None:
        """Append a row of memory; the ratio is ours over rival."""
        ratio = ours / rival if rival else 1.0 if not ours else math.inf
        self.add(what, _megabytes(rival), _megabytes(ours), f"{ratio:.3f}x", "", reached=ratio, target=target)

    @property
    def missed(self) -> list[str]:
        """First cells of the rows whose target is missed."""
        return [cells[0] for cells, reached, target in self.rows if _verdict(reached, target).startswith("**")]

    def markdown(self) -> str:
        """Render heading, claim, command, rows and notes."""
        columns = (*self.columns, "target", "reached")
        lines = [f"## {self.title}", "", self.claim, "", f"`{self.command}`", ""]
        lines += [_line(columns), _line(tuple("---" for _ in columns))]
        for cells, reached, target in self.rows:
            lines.append(_line((*cells, "" if target is None else str(target), _verdict(reached, target))))
        for note in self.notes:
            lines += ["", note]
        return "\n".join(lines) + "\n"


def machine_line() -> str:
    """Processor, cores, threads in use, versions and today's date."""
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    return (
        f"{_processor()}, {os.cpu_count()} cores, {torch.get_num_threads()} thread(s), Python "
        f"{platform.python_version()}, torch {torch.__version__}, {today}"
    )


def _processor() -> str:
    described = Path("/proc/cpuinfo")
    if described.is_file():
        for line in described.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _verdict(reached: float | None, target: Target | None) -> str:
    if target is None or reached is None:
        return ""
    return "yes" if target.met(reached) else "**missed**"


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 0.1 else f"{1e3 * seconds:.0f} ms"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
