"""The recipe on loss and bins, with what its text calls right asserted where the program only prints."""

import numpy as np
import pytest

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.survival import time_bin_edges, time_bins
from tests.mil.recipes import run_recipe


def test_the_recipe_passes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    names = run_recipe(monkeypatch, 24, NLL="tests.mil.adapters:NLL", BINS="tests.mil.adapters:BINS")
    printed = capsys.readouterr().out
    assert names["bad"] == []
    assert "mean of singles == batch: True" in printed
    assert "unaffected by the others: True" in printed
    assert "unique=False" not in printed
    assert "sorted=False" not in printed
    for refused in ("zero and negative", "NaN time"):
        (line,) = (line for line in printed.splitlines() if line.startswith(refused))
        assert "UserError" in line


@pytest.mark.parametrize("time", [np.nan, 0.0, -5.0, np.inf])
def test_one_impossible_time_is_refused(time: float) -> None:
    with pytest.raises(UserError, match="of 41 survival times"):
        time_bin_edges(np.r_[time, np.arange(1.0, 41)], np.ones(41))


def test_later_times_fall_into_the_last_bin() -> None:
    edges = time_bin_edges([10.0, 20.0, 30.0, 40.0], [1, 1, 1, 1])
    assert time_bins([1.0, 1e6], edges).tolist() == [0, 3]
