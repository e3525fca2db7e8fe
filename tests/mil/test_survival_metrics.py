"""Survival curves, Brier score and time-dependent AUC against sums over single patients."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torchsurv.metrics.auc import Auc
from torchsurv.metrics.brier_score import BrierScore

from nnunet_gdla.mil.metrics import kaplan_meier, log_rank, survival_metrics
from nnunet_gdla.mil.survival_metrics import CensoringCurve, brier_scores, predicted_survival, time_dependent_auc
from tests.reference.survival import (
    brier_score_naive,
    censoring_naive,
    kaplan_meier_naive,
    log_rank_naive,
    time_dependent_auc_naive,
)
from tests.unchecked import unchecked

Array = np.ndarray[Any, Any]
EDGES = np.array([3.0, 6.0, 9.0])
# by hand: 6-month trial, the textbook's leukaemia times on 6-MP (Freireich 1963)
SIX_MP = (
    [6, 6, 6, 7, 10, 13, 16, 22, 23, 6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35],
    [1] * 9 + [0] * 12,
)
PLACEBO = ([1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23], [1] * 21)


def _sample(seed: int, n: int = 40) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.integers(1, 14, n).astype(float), (rng.random(n) < 0.5).astype(float), np.round(rng.normal(size=n), 1)


def test_kaplan_meier_of_the_textbook() -> None:
    curve = kaplan_meier(*SIX_MP)
    at = dict(zip(curve.time.tolist(), curve.survival.round(4).tolist(), strict=True))
    assert [at[t] for t in (0, 6, 7, 10, 13, 16, 22, 23)] == [1, 0.8571, 0.8067, 0.7529, 0.6902, 0.6275, 0.5378, 0.4482]
    risk = dict(zip(curve.time.tolist(), curve.at_risk.tolist(), strict=True))
    assert [risk[t] for t in (0, 6, 7, 23)] == [21, 21, 17, 6]


def test_kaplan_meier_equals_naive_and_lies_in_its_interval() -> None:
    time, event, _ = _sample(0)
    curve = kaplan_meier(time, event)
    expected = [kaplan_meier_naive(time, event, t) for t in curve.time]
    np.testing.assert_allclose(curve.survival, expected, rtol=1e-12)
    inside = ~np.isnan(curve.low)
    assert inside.sum() > 5
    assert (curve.low[inside] < curve.survival[inside]).all()
    assert (curve.high[inside] > curve.survival[inside]).all()
    assert (np.nan_to_num(curve.low) >= 0).all()


def test_log_rank_of_the_textbook() -> None:
    time, event = np.concatenate([SIX_MP, PLACEBO], axis=1)
    p = log_rank(time, event, np.repeat([0, 1], 21))
    assert p == pytest.approx(math.erfc(math.sqrt(16.79 / 2)), rel=0.01)  # chi-square 16.79


def test_log_rank_equals_naive() -> None:
    for seed in range(20):
        time, event, risk = _sample(seed)
        group = (risk > np.median(risk)).astype(int)
        assert log_rank(time, event, group) == pytest.approx(log_rank_naive(time, event, group), rel=1e-10)


@pytest.mark.parametrize(
    ("time", "event", "group"),
    [([1, 2], [1, 1], [0, 0]), ([1, 2], [0, 0], [0, 1]), ([], [], []), ([2, 2], [1, 1], [0, 1])],
    ids=["one group", "no event", "nobody", "all at once"],
)
def test_log_rank_without_a_difference_to_see(time: list[int], event: list[int], group: list[int]) -> None:
    assert math.isnan(log_rank(time, event, group))


def test_log_rank_is_for_two_groups() -> None:
    with pytest.raises(ValueError, match="two groups, got 3"):
        log_rank([1.0, 2.0, 3.0], [1, 1, 1], [0, 1, 2])


def test_censoring_curve_equals_naive() -> None:
    time, event, _ = _sample(1)
    curve, at = CensoringCurve.of(time, event), np.arange(0, 16, 0.5)
    np.testing.assert_allclose(curve.at(at), [censoring_naive(time, event, t) for t in at], rtol=1e-12)
    before = [censoring_naive(time, event, t, before=True) for t in at]
    np.testing.assert_allclose(curve.before(at), before, rtol=1e-12)


def test_predicted_survival_is_exact_at_edges_and_straight_between() -> None:
    hazards = np.array([[0.1, 0.5, 0.3, 0.2]])
    found = predicted_survival(hazards, EDGES, np.array([0, 1.5, 3, 4.5, 6, 9, 20]))
    np.testing.assert_allclose(found, [[1, 0.95, 0.9, 0.675, 0.45, 0.315, 0.315]])
    two_edges = predicted_survival(hazards, EDGES[:2], np.array([6.0]))
    np.testing.assert_allclose(two_edges, [[0.45]])


def test_brier_and_auc_equal_naive() -> None:
    train = _sample(2, 60)[:2]
    censoring = CensoringCurve.of(*train)
    times = np.arange(1, 10, 0.5)
    for seed in range(5):
        time, event, risk = _sample(seed + 10)
        survival = np.random.default_rng(seed).random((len(time), len(times)))
        brier = [brier_score_naive(time, event, survival[:, i], t, train) for i, t in enumerate(times)]
        np.testing.assert_allclose(brier_scores(time, event, survival, times, censoring), brier, rtol=1e-10)
        auc = [time_dependent_auc_naive(time, event, risk, t, train) for t in times]
        np.testing.assert_allclose(time_dependent_auc(time, event, risk, times, censoring), auc, rtol=1e-10)


def test_weights_without_bound_are_undefined() -> None:
    # everybody in training is censored at 5: nothing can be said about later times
    censoring = CensoringCurve.of([1.0, 5.0, 5.0], [1, 0, 0])
    time, event, times = np.array([2.0, 7.0, 8.0]), np.array([1, 1, 0]), np.array([3.0, 6.0, 7.5])
    brier = brier_scores(time, event, np.full((3, 3), 0.5), times, censoring)
    assert np.isnan(brier).tolist() == [False, True, True]
    auc = time_dependent_auc(time, event, [3.0, 2.0, 1.0], times, censoring)
    assert np.isnan(auc).tolist() == [False, False, True]


def _all_metrics(time: Array, event: Array, risk: Array, hazards: Array) -> dict[str, float]:
    train = _sample(3, 80)[:2]
    return survival_metrics(time, event, risk, hazards=hazards, edges=EDGES, train_time=train[0], train_event=train[1])


def test_a_perfect_model_beats_a_constant_one() -> None:
    time, event, _ = _sample(4, 80)
    bins = np.searchsorted(EDGES, time, side="right")
    perfect = np.where(np.arange(4) >= bins[:, None], 1 - 1e-7, 1e-7)
    good = _all_metrics(time, event, 0.1 * event - time, perfect)
    flat = _all_metrics(time, event, 0 * time, np.full((80, 4), 0.3))
    assert good["c_index"] == 1.0
    assert good["auc_edges"] == 1.0
    assert flat["c_index"] == flat["auc_edges"] == 0.5
    assert good["ibs"] < 0.5 * flat["ibs"]
    assert list(good) == ["c_index", "ibs", "auc_edge1", "auc_edge2", "auc_edge3", "auc_edges"]


@pytest.mark.parametrize(
    ("time", "event"),
    [([5.0], [1]), ([5.0], [0]), ([5.0, 6.0], [0, 0]), ([], [])],
    ids=["one patient", "one censored", "no event", "nobody"],
)
def test_undefined_is_nan(time: list[float], event: list[int]) -> None:
    n = len(time)
    found = _all_metrics(np.array(time), np.array(event), np.zeros(n), np.full((n, 4), 0.3))
    assert math.isnan(found["c_index"])
    assert math.isnan(found["auc_edges"])
    # one patient with an event: squared errors exist up to the event
    assert math.isnan(found["ibs"]) == (sum(event) == 0)


def test_the_score_ends_with_the_last_patient_at_risk() -> None:
    early = survival_metrics(
        [2.0, 4.0], [1, 1], [2.0, 1.0], hazards=np.full((2, 4), 0.3), edges=EDGES, train_time=[9.0], train_event=[1]
    )
    assert 0 < early["ibs"] < 1
    assert math.isnan(early["auc_edge2"])  # nobody left
    assert math.isnan(early["auc_edges"])


def test_without_hazards_there_is_the_concordance_only() -> None:
    assert survival_metrics([1.0, 2.0], [1, 1], [2.0, 1.0]) == {"c_index": 1.0}


def test_unequal_lengths_are_refused() -> None:
    with unchecked(), pytest.raises(ValueError, match="time 2, event 1"):
        kaplan_meier([1.0, 2.0], [1])


def test_torchsurv_says_the_same() -> None:
    rng = np.random.default_rng(0)
    n = 60
    time, event = rng.permutation(n) + 1.0, rng.random(n) < 0.6  # no ties: packages differ there
    risk, times = rng.normal(size=n), np.array([10.0, 20.0, 30.0])
    survival = rng.random((n, 3))
    curve = CensoringCurve.of(time, event)
    args = torch.as_tensor(event), torch.as_tensor(time)
    weight, weight_new = torch.as_tensor(1 / curve.before(time)), torch.as_tensor(1 / curve.at(times))
    theirs = BrierScore()(
        torch.as_tensor(survival), *args, new_time=torch.as_tensor(times), weight=weight, weight_new_time=weight_new
    )
    np.testing.assert_allclose(brier_scores(time, event, survival, times, curve), theirs.numpy(), rtol=1e-6)
    auc = Auc()(
        torch.as_tensor(risk),
        *args,
        auc_type="cumulative",
        weight=weight,
        new_time=torch.as_tensor(times),
        weight_new_time=weight_new,
    )
    ours = time_dependent_auc(time, event, risk, times, curve)
    np.testing.assert_allclose(ours, auc.numpy(), rtol=1e-6)
