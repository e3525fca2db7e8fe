"""The table of docs/field_inputs.md is complete, and the tests that it names exist."""

import re
from functools import cache

import pytest

from tests.paths import ROOT

ROWS = {
    match[1]: re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", match[0])
    for match in re.finditer(
        r"^\| ([SMC]\d+) \|.*$", (ROOT / "docs" / "field_inputs.md").read_text("utf-8"), re.MULTILINE
    )
}


@cache
def _tests_of(path: str) -> frozenset[str]:
    return frozenset(re.findall(r"^def (test_\w+)\(", (ROOT / path).read_text("utf-8"), re.MULTILINE))


def test_no_row_is_left_out() -> None:
    assert list(ROWS) == [
        f"{kind}{number}" for kind, count in zip("SMC", (24, 20, 7), strict=True) for number in range(1, count + 1)
    ]


@pytest.mark.parametrize("row", ROWS)
def test_a_test_holds_it(row: str) -> None:
    assert ROWS[row]
    for path, name in ROWS[row]:
        assert name in _tests_of(path)
