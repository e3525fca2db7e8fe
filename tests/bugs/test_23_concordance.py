"""The recipe's oracle on 300 random cohorts, ties and undefined cases; what its text asks for beyond the program."""

import math

import pytest

from nnunet_gdla.mil.survival import concordance_index
from tests.mil.recipes import run_recipe


def test_the_recipe_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    names = run_recipe(monkeypatch, 23, CINDEX="tests.mil.adapters:CINDEX")
    assert names["worst"] == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_risk_that_is_no_number_is_an_error(bad: float) -> None:
    with pytest.raises(ValueError, match="risk is not finite for 1 of 3"):
        concordance_index([1.0, 2.0, 3.0], [1, 1, 1], [1.0, bad, 2.0])


def test_perfectly_ordered_risks_score_one() -> None:
    assert concordance_index([1.0, 2.0, 3.0, 4.0], [1, 1, 0, 1], [4.0, 3.0, 2.0, 1.0]) == 1.0
