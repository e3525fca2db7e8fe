"""Intervals and tests against their definitions, and against scipy."""

import math

import numpy as np
import pytest
from scipy import stats

from nnunet_gdla.evaluation.statistics import compare_paired, holm, interval_of_mean, summarise

NAN = float("nan")


def test_a_summary_leaves_out_and_counts_the_undefined() -> None:
    summary = summarise(np.array([1.0, NAN, 4.0, 2.0, NAN]), draws=500, seed=0)
    assert (summary.n, summary.undefined) == (3, 2)
    assert summary.mean == pytest.approx(7 / 3)
    assert summary.median == 2
    assert summary.sd == pytest.approx(np.std([1, 4, 2], ddof=1))
    assert summary.low <= summary.mean <= summary.high


def test_too_few_cases_have_no_interval() -> None:
    one, none = (summarise(np.array(values), draws=50, seed=0) for values in ([0.5, NAN], [NAN, NAN]))
    assert (one.mean, one.median, one.n, one.undefined) == (0.5, 0.5, 1, 1)
    assert all(math.isnan(value) for value in (one.sd, one.low, one.high, none.mean, none.median, none.low))
    assert (none.n, none.undefined) == (0, 2)


def test_intervals_depend_on_the_seed_alone() -> None:
    values = np.random.default_rng(0).random(30)
    first = interval_of_mean(values, draws=300, seed=1)
    assert first == interval_of_mean(values, draws=300, seed=1)
    assert first != interval_of_mean(values, draws=300, seed=2)


def test_intervals_in_parts_equal_those_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).random(30)
    at_once = interval_of_mean(values, draws=301, seed=1)
    monkeypatch.setattr("nnunet_gdla.evaluation.statistics._CHUNK", 400)
    assert interval_of_mean(values, draws=301, seed=1) == at_once


def test_intervals_hold_the_mean_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(300):
        low, high = interval_of_mean(rng.normal(2, 1, 60), draws=400, seed=0)
        inside += low <= 2 <= high
    assert 0.9 < inside / 300 < 0.98


def test_the_interval_equals_scipys_bootstrap() -> None:
    values = np.random.default_rng(0).random(50)
    low, high = interval_of_mean(values, draws=20000, seed=0)
    scipys = stats.bootstrap((values,), np.mean, n_resamples=20000, method="percentile", rng=np.random.default_rng(5))
    assert (low, high) == pytest.approx(tuple(scipys.confidence_interval), abs=2e-3)


@pytest.mark.parametrize("count", [2, 6, 13, 20, 80])
def test_paired_differences(count: int) -> None:
    rng = np.random.default_rng(count)
    a, b = rng.random(count), rng.random(count)
    found = compare_paired(a, b, draws=400, seed=0)
    assert found.difference == pytest.approx(a.mean() - b.mean())
    assert found.p == pytest.approx(stats.wilcoxon(a, b).pvalue)
    assert found.low <= found.difference <= found.high
    swapped = compare_paired(b, a, draws=400, seed=0)
    assert (swapped.difference, swapped.p) == pytest.approx((-found.difference, found.p))


def test_undefined_pairs_are_left_out_and_counted() -> None:
    found = compare_paired(np.array([1, NAN, 3, 5.0]), np.array([0.5, 2, NAN, 4]), draws=50, seed=0)
    assert (found.n, found.undefined, found.mean_a, found.mean_b, found.difference) == (2, 2, 3, 2.25, 0.75)
    nothing = compare_paired(np.array([NAN]), np.array([1.0]), draws=50, seed=0)
    assert (nothing.n, nothing.undefined) == (0, 1)
    assert math.isnan(nothing.p)


def test_equal_models_have_no_p_value() -> None:
    a = np.random.default_rng(0).random(12)
    found = compare_paired(a, a, draws=50, seed=0)
    assert (found.difference, found.low, found.high) == (0, 0, 0)
    assert math.isnan(found.p)


def test_some_equal_cases_and_ties_are_no_trouble() -> None:
    a = np.array([0.8, 0.9, 0.7, 0.6, 0.5, 0.4, 0.3])
    b = a - np.array([0.1, 0.1, 0.1, 0, 0, -0.1, 0.2])
    found = compare_paired(a, b, draws=50, seed=0)
    assert 0 < found.p <= 1
    exact = stats.wilcoxon([1, 1, 1, 0, 0, -1, 2]).pvalue
    assert found.p == pytest.approx(exact)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1, 1]
    assert holm([]) == []


def test_holm_counts_only_the_tests_there_are() -> None:
    adjusted = holm([0.02, NAN, 0.03])
    assert adjusted[0] == adjusted[2] == pytest.approx(0.04)
    assert math.isnan(adjusted[1])
