"""Forms "triton" for tensors of a CPU, in the place of the kernels."""

from collections.abc import Callable
from typing import Any

import pytest

from nnunet_gdla.ops import _self_check
from nnunet_gdla.ops._dispatch import OPERATORS, Form

__all__ = ["right_kernels"]


def right_kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Put forms that are right in the place of all kernels, in a process in which nothing was compared yet.

    Returns:
        The operators in whose place they run, filled as they do.
    """
    monkeypatch.setattr(_self_check, "_verdicts", {})
    monkeypatch.setattr(_self_check, "_warned", set())
    launched: list[str] = []

    def fake(name: str) -> Callable[[Any], Any]:
        def run(call: Any) -> Any:  # noqa: ANN401
            launched.append(name)
            return OPERATORS[name].forms["plain"].run(call)

        return run

    for name, operator in OPERATORS.items():
        monkeypatch.setitem(operator.forms, "triton", Form(fake(name), lambda _: None))
    return launched
