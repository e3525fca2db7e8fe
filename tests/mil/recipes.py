"""Run the programs of the recipes in `../shared/bugs/inputs` against our code."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.paths import SHARED

__all__ = ["run_recipe"]

FENCED = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def run_recipe(monkeypatch: pytest.MonkeyPatch, number: int, **hooks: str) -> dict[str, Any]:
    """Run every program of a recipe with these hooks in the environment; it asserts by itself.

    Args:
        monkeypatch: Takes the hooks back afterwards.
        number: The recipe's.
        **hooks: Variable and "module:name", as the recipe describes them.

    Returns:
        The names that the program has left.
    """
    found = sorted((SHARED / "bugs" / "inputs").glob(f"{number:02d}_*.md"))
    if not found:
        pytest.skip(f"no recipe {number} in ../shared/bugs/inputs beside the checkout")
    for variable, target in hooks.items():
        monkeypatch.setenv(variable, target)
    names: dict[str, Any] = {"__name__": f"recipe_{number}"}
    for path in found:
        programs = FENCED.findall(Path(path).read_text(encoding="utf-8"))
        assert programs, f"{path.name} holds no program"
        for program in programs:
            exec(compile(program, path.name, "exec"), names)
    return names
