"""Tables in Markdown, with a plain mark where a target is missed."""

import math

import pytest

from benchmarks.measure import Table, Timing, at_least, at_most, machine_line


def timing(seconds: float) -> Timing:
    return Timing((seconds,) * 3, (seconds / 2,) * 3)


def test_rows_show_figures_target_and_whether_it_was_reached() -> None:
    table = Table("Title", "Claim.", "python -m benchmarks.it", notes=["A note."])
    table.add_times("evaluation", timing(0.2), timing(0.05), at_least(2))
    table.add_times("training", timing(0.2), timing(0.3), at_most(1.2))
    table.add_bytes("kept", 10_000_000, 6_000_000, at_most(0.5))
    table.add_times("another", timing(0.2), timing(0.1))
    lines = table.markdown().splitlines()
    assert lines[:5] == ["## Title", "", "Claim.", "", "`python -m benchmarks.it`"]
    assert "| evaluation | 200 ms | 50 ms | 4.00x | 4.00x | at least 2x | yes |" in lines
    assert "| training | 200 ms | 300 ms | 1.50x | 1.50x | at most 1.2x | **missed** |" in lines
    assert "| kept | 10.0 MB | 6.0 MB | 0.600x |  | at most 0.5x | **missed** |" in lines
    assert "| another | 200 ms | 100 ms | 2.00x | 2.00x |  |  |" in lines
    assert lines[-1] == "A note."
    assert table.missed == ["training", "kept"]
    widths = {line.count("|") for line in lines if line.startswith("|")}
    assert len(widths) == 1


def test_a_ratio_that_is_not_a_number_is_missed() -> None:
    assert not at_least(2).met(math.nan)
    assert not at_most(2).met(math.nan)


def test_rows_that_do_not_fit_are_refused() -> None:
    table = Table("Title", "Claim.", "command", columns=("size", "time"))
    with pytest.raises(ValueError, match="size, time"):
        table.add("224")
    with pytest.raises(ValueError, match="no figure"):
        table.add("224", "1 s", target=at_most(4.2))


def test_the_machine_is_described_in_one_line() -> None:
    assert "torch" in machine_line()
    assert "\n" not in machine_line()
