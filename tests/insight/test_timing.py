"""Order and number of the timed calls; the times themselves belong to the machine."""

import time
from collections.abc import Callable

import pytest

from nnunet_gdla.insight import time_alternating
from nnunet_gdla.insight.timing import median_ratio


def recording(made: list[str], name: str) -> Callable[[], None]:
    return lambda: made.append(name)


def test_every_round_has_all_and_begins_with_another() -> None:
    made: list[str] = []
    bar: list[None] = []
    calls = {name: recording(made, name) for name in "abc"}
    seconds = time_alternating(calls, repeats=3, warmup=1, after_call=lambda: bar.append(None))
    assert [len(rounds) for rounds in seconds.values()] == [3, 3, 3]
    assert "".join(made) == "cab" + "abc" + "bca" + "cab"
    assert len(bar) == len(made)


def test_times_are_seconds() -> None:
    seconds = time_alternating({"slow": lambda: time.sleep(0.02), "fast": lambda: None}, repeats=2)
    assert min(seconds["slow"]) >= 0.02
    assert max(seconds["fast"]) < min(seconds["slow"])


def test_another_clock_can_be_read() -> None:
    ticks = iter([0.0, 1.0, 10.0, 13.0])
    assert time_alternating({"one": lambda: None}, repeats=2, warmup=0, clock=lambda: next(ticks)) == {"one": [1, 3]}


def test_the_ratio_is_taken_within_rounds() -> None:
    assert median_ratio([2.0, 20.0, 3.0], [1.0, 10.0, 3.0]) == 2


def test_no_round_is_an_error() -> None:
    with pytest.raises(ValueError, match="repeats must be at least 1, got 0"):
        time_alternating({}, repeats=0)
