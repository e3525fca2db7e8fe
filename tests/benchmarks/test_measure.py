"""The helpers measure what they say."""

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

from benchmarks.measure import DifferenceError, Timing, alternate, compare_outputs, kept_bytes, peak_memory

ROWS, WIDTH = 50, 100
ONE = ROWS * WIDTH * 4


@pytest.fixture
def linear() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


def test_kept_bytes_are_those_of_the_results_that_backward_needs(linear: nn.Linear) -> None:
    x = torch.randn(ROWS, WIDTH)
    assert kept_bytes(lambda: linear(x), [linear, x]) == 0
    assert kept_bytes(lambda: torch.relu(linear(x)), [linear, x]) == ONE
    assert kept_bytes(lambda: torch.relu(linear(x)), [x]) == ONE, "a weight whose input needs no gradient is not kept"
    assert kept_bytes(lambda: linear(x), [linear]) == ONE, "an input that was not named counts"
    assert kept_bytes(lambda: torch.exp(torch.relu(linear(x))), [linear, x]) == 2 * ONE


def test_a_storage_that_is_kept_twice_counts_once(linear: nn.Linear) -> None:
    x = torch.randn(ROWS, WIDTH)

    def squared_halves() -> Tensor:
        one, two = linear(x).chunk(2, dim=-1)
        return one.square() + two.square()

    assert kept_bytes(squared_halves, [linear, x]) == ONE


def test_a_graph_that_is_gone_does_not_count(linear: nn.Linear) -> None:
    x = torch.randn(ROWS, WIDTH)

    def with_side_branch() -> Tensor:
        torch.exp(linear(x)).sum()
        return linear(x)

    assert kept_bytes(with_side_branch, [linear, x]) == 0


def test_counting_leaves_nothing_behind(linear: nn.Linear) -> None:
    outputs = []

    def forward() -> Tensor:
        y = torch.exp(linear(torch.ones(ROWS, WIDTH)))
        outputs.append(weakref.ref(y))
        return y

    gc.disable()
    try:
        kept_bytes(forward)
        assert outputs[0]() is None
    finally:
        gc.enable()


def test_peak_memory_is_that_of_the_call() -> None:
    count = 25_000_000
    assert count * 4 <= peak_memory("tests.benchmarks.allocating:ones", count) < 1.2 * count * 4


def test_calls_run_in_turn_and_the_first_round_does_not_count() -> None:
    order: list[str] = []
    times = alternate({name: lambda name=name: order.append(name) for name in ("rival", "ours")}, 3)
    assert order == ["rival", "ours", "ours", "rival"] * 2
    assert all(len(timing.cpu_rounds) == len(timing.wall_rounds) == 3 for timing in times.values())
    with pytest.raises(ValueError, match="at least 1"):
        alternate({"rival": lambda: None}, 0)


def test_the_ratio_is_the_median_over_rounds() -> None:
    rival = Timing(cpu_rounds=(2.0, 30.0, 4.0), wall_rounds=(1.0, 1.0, 1.0))
    ours = Timing(cpu_rounds=(1.0, 10.0, 4.0), wall_rounds=(2.0, 2.0, 2.0))
    assert rival.over(ours) == 2.0
    assert rival.wall_over(ours) == 0.5
    assert (rival.cpu, ours.wall) == (4.0, 2.0)


def test_equal_results_give_their_largest_difference() -> None:
    rival, ours = [torch.tensor([1.0, 100.0]), {"loss": 2.0}], [torch.tensor([1.01, 100.0]), {"loss": 2.0}]
    assert compare_outputs(rival, ours, rtol=1e-3) == pytest.approx(1e-4, rel=1e-3)


@pytest.mark.parametrize(
    ("ours", "message"),
    [
        ([torch.tensor([1.0, 2.5])], r"result\[0\].* 0\.5 "),
        ([torch.tensor([1.0, torch.nan])], r"result\[0\].* nan "),
        ([torch.tensor([1.0])], r"result\[0\].*shape"),
        ([torch.tensor([1.0, 2.0])] * 2, "list"),
        ({"a": torch.tensor([1.0, 2.0])}, "dict"),
    ],
)
def test_different_results_are_an_error_that_says_where(ours: object, message: str) -> None:
    with pytest.raises(DifferenceError, match=message):
        compare_outputs([torch.tensor([1.0, 2.0])], ours, rtol=1e-3)
