"""The command line that every benchmark has."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.measure import DifferenceError, Table, machine_line

__all__ = ["DEFAULT_THREADS", "run_script"]

DEFAULT_THREADS = 2


def run_script(table: Callable[[bool], Table], description: str | None) -> None:
    """Print one table, its progress on the error stream.

    Args:
        table: Makes it; True asks for the short version.
        description: The module's docstring.

    Raises:
        SystemExit: If rival and ours do not compute the same.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="more rounds and larger sizes")
    parser.add_argument("--threads", type=int, default=DEFAULT_THREADS, help="default: %(default)s")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there too")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(machine_line(), file=sys.stderr)
    try:
        text = table(not arguments.full).markdown()
    except DifferenceError as error:
        raise SystemExit(f"rival and ours differ: {error}") from error
    print(text)
    if arguments.markdown is not None:
        arguments.markdown.write_text(text, encoding="utf-8")
