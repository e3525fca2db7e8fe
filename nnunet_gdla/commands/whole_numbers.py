"""Whole numbers on the command line, as types for argparse. Standard library only."""

import argparse

__all__ = ["natural", "positive", "two_or_more"]


def positive(text: str) -> int:
    """Read 1 or more.

    Raises:
        argparse.ArgumentTypeError: If it is something else.
    """
    number = _whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is too small; give 1 or more")
    return number


def two_or_more(text: str) -> int:
    """Read 2 or more: what takes an interval, for instance.

    Raises:
        argparse.ArgumentTypeError: If it is something else.
    """
    number = _whole(text)
    if number < 2:
        raise argparse.ArgumentTypeError(f"{number} is too small; give 2 or more")
    return number


def natural(text: str) -> int:
    """Read 0 or more.

    Raises:
        argparse.ArgumentTypeError: If it is something else.
    """
    number = _whole(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} is negative; give 0 or more")
    return number


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
