"""Run code as users have it: without the type and shape checks that the tests put around every function."""

from collections.abc import Iterator
from contextlib import contextmanager

import jaxtyping

__all__ = ["unchecked"]


@contextmanager
def unchecked() -> Iterator[None]:
    """Switch the checks off inside, so that a wrong argument reaches the package's own messages."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
