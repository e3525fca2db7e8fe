"""What a check found, how it is shown, and the wall that keeps one broken check from ending the others."""

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from nnunet_gdla.damage import DAMAGE
from nnunet_gdla.errors import UserError

__all__ = ["BREAKAGES", "Finding", "Level", "collapse", "failed", "one_line", "passed", "run_check", "warned"]

SHOWN = 5

# What foreign code raises on a broken environment or file; other errors end the command, they are no finding.
BREAKAGES: tuple[type[Exception], ...] = (*DAMAGE, AssertionError, ImportError, NameError)


class Level(StrEnum):
    """How bad a finding is: FAIL will break a run or spoil its data, WARN may surprise, PASS is in order."""

    PASS = "PASS"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Args:
        level: PASS, WARN or FAIL.
        title: What was looked at, a few words.
        detail: What was seen there, with names and values.
        fix: What to do; WARN and FAIL never go without.
        pending: Nothing is wrong, but a training cannot start before this was done.

    Raises:
        ValueError: If a WARN or FAIL has no fix.
    """

    level: Level
    title: str
    detail: str
    fix: str = ""
    pending: bool = False

    def __post_init__(self) -> None:
        if self.level is not Level.PASS and not self.fix:
            raise ValueError(f"a {self.level} finding needs a fix: {self.title}: {self.detail}")

    def __str__(self) -> str:
        """The finding as it is printed; the fix stands on a line of its own."""
        line = f"{self.level}  {self.title}: {self.detail}"
        if not self.fix:
            return line
        return f"{line}\n      {'hint' if self.level is Level.PASS else 'fix'}: {self.fix}"


def passed(title: str, detail: str, hint: str = "", *, pending: bool = False) -> Finding:
    """Return a PASS finding, with an optional hint."""
    return Finding(Level.PASS, title, detail, hint, pending)


def warned(title: str, detail: str, fix: str) -> Finding:
    """Return a WARN finding."""
    return Finding(Level.WARN, title, detail, fix)


def failed(title: str, detail: str, fix: str) -> Finding:
    """Return a FAIL finding."""
    return Finding(Level.FAIL, title, detail, fix)


def one_line(error: BaseException) -> str:
    """Return the name and the telling line of an exception; SimpleITK puts its reason last, after a C++ path."""
    if isinstance(error, UserError):
        return str(error)  # a sentence for the user as it is
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__


def run_check(title: str, check: Callable[[], Iterable[Finding]]) -> Generator[Finding, None, Any]:
    """Yield what a check finds; a check that breaks becomes a FAIL that names the exception.

    Args:
        title: What the check looks at, for the finding of a break.
        check: The check; may be a generator, which keeps the findings it made before it broke.

    Yields:
        The findings, in the order in which they are made.

    Returns:
        What the check returns where it is a generator; None where it broke.
    """
    try:
        return (yield from check())
    except BREAKAGES as error:
        yield failed(
            title, f"the check itself broke with {one_line(error)}", "repair what the message names, run again"
        )
        return None


def collapse(findings: Iterable[Finding]) -> list[Finding]:
    """Join findings that differ in their detail only: the first five details, then how many more there are.

    Args:
        findings: Any findings, for example one a file.

    Returns:
        One finding for each level, title and fix, in the order of first appearance.
    """
    groups: dict[tuple[Level, str, str], list[str]] = {}
    for finding in findings:
        groups.setdefault((finding.level, finding.title, finding.fix), []).append(finding.detail)
    return [Finding(level, title, _some(details), fix) for (level, title, fix), details in groups.items()]


def _some(details: list[str]) -> str:
    more = f"; and {len(details) - SHOWN} more" if len(details) > SHOWN else ""
    return "; ".join(details[:SHOWN]) + more
