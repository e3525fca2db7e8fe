"""The commands as they are typed, and masks for them."""

import argparse
import shlex
from pathlib import Path

import numpy as np
import pytest

from tests.evaluation.mask_files import blob, write_cases

__all__ = ["SHAPE", "parsed", "typed", "work"]

SHAPE = (4, 12, 14)


def parsed(line: str) -> argparse.Namespace:
    from nnunet_gdla.commands import arguments_evaluation  # a conftest may not import ours: the shape checks come first

    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    arguments_evaluation.evaluate(commands.add_parser("evaluate"))
    arguments_evaluation.compare(commands.add_parser("compare"))
    return parser.parse_args(shlex.split(line))


def typed(line: str) -> int:
    from nnunet_gdla.commands import compare, evaluate

    args = parsed(line)
    return {"evaluate": evaluate, "compare": compare}[args.command].run(args)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight cases of two classes: `good` predictions, `bad` ones, and the truth."""
    monkeypatch.chdir(tmp_path)

    def labels(case: int, error: int) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
        made = blob(SHAPE, error)
        made[:, : 2 + case % 3, -2:] = 2
        return made

    for name, errors in (("truth", [0] * 8), ("good", [0, 0, 1, 0, 1, 1, 0, 0]), ("bad", [2, 1, 2, 3, 2, 3, 2, 1])):
        write_cases(tmp_path / name, {f"case{case}": labels(case, error) for case, error in enumerate(errors)})
    return tmp_path
