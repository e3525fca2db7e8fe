"""Discrete-time survival: golden numbers, formulas, and what must be refused."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.survival import (
    concordance_index,
    hazards,
    risk_score,
    survival_nll,
    time_bin_edges,
    time_bins,
)
from tests.reference.compare import assert_all_close, gradients
from tests.reference.survival import concordance_index_naive, survival_nll_naive
from tests.srp_golden import SrpFile, srp_params
from tests.unchecked import unchecked

golden_file = pytest.mark.parametrize("golden", srp_params("survival"))
BINS = 4


@golden_file
def test_loss_gradient_and_risk_equal_golden(golden: SrpFile) -> None:
    t = golden.tensors
    logits = t["logits"].clone().requires_grad_()
    each = [
        survival_nll(logits[i : i + 1], event=t["event"][i : i + 1], time_bin=t["time_bin"][i : i + 1])
        for i in range(len(logits))
    ]
    mean = survival_nll(logits, event=t["event"], time_bin=t["time_bin"])
    actual = {"nll_each": torch.stack(each), "nll_mean": mean, "risk": risk_score(logits)}
    assert_all_close(actual, {name: t[name] for name in actual}, 5e-6)
    (grad,) = torch.autograd.grad(mean, [logits])
    assert_all_close({"grad": grad}, {"grad": t["grad_logits"]}, 5e-5)


@golden_file
def test_saturated_hazards_equal_golden(golden: SrpFile) -> None:
    t = golden.tensors
    extreme = t["extreme_logits"]
    actual = {
        "extreme_nll_event_bin1": survival_nll(extreme, event=torch.tensor([1]), time_bin=torch.tensor([1])),
        "extreme_nll_cens_bin2": survival_nll(extreme, event=torch.tensor([0]), time_bin=torch.tensor([2])),
        "extreme_risk": risk_score(extreme),
    }
    assert_all_close(actual, {name: t[name] for name in actual}, 5e-6)


@golden_file
def test_bins_equal_golden(golden: SrpFile) -> None:
    a = golden.arrays
    time, num_bins = a["c_time"], len(a["edges"]) + 1
    edges = time_bin_edges(time, a["c_event"], num_bins)
    np.testing.assert_array_equal(edges, a["edges"])
    np.testing.assert_array_equal(time_bins(time, edges), a["bins"])
    np.testing.assert_array_equal(time_bins(edges, edges), a["bins_at_edges"])
    np.testing.assert_array_equal(time_bin_edges(time, a["few_event"], num_bins), a["few_edges"])


@golden_file
def test_six_events_at_one_time_give_one_edge(golden: SrpFile, caplog: pytest.LogCaptureFixture) -> None:
    (edge,) = golden.arrays["tied_edges"]
    time = np.array([edge] * 6 + [edge / 2, 3 * edge])
    np.testing.assert_array_equal(time_bin_edges(time, np.array([1] * 6 + [0, 0])), golden.arrays["tied_edges"])
    assert "2 of 4 time bins are used" in caplog.text


@golden_file
def test_concordance_equals_golden(golden: SrpFile) -> None:
    a = golden.arrays
    strict = concordance_index(a["c_time"], a["c_event"], a["c_risk"], ties="strict")
    assert strict == pytest.approx(float(a["c_index"]), rel=1e-12)
    assert np.isnan(concordance_index(a["c_time"], 0 * a["c_event"], a["c_risk"])) == np.isnan(a["c_index_no_pairs"])


def test_loss_equals_naive_with_gradient() -> None:
    logits = 3 * torch.randn(20, BINS, dtype=torch.float64)
    event, time_bin = torch.randint(0, 2, (20,)), torch.randint(0, BINS, (20,))
    fast, naive = (
        gradients(lambda x, f=f: f(x, event=event, time_bin=time_bin), [logits])
        for f in (survival_nll, survival_nll_naive)
    )
    assert_all_close(fast, naive, 1e-12)


@pytest.mark.parametrize("value", [0.0, 5.0, -5.0, 40.0, -40.0, 200.0, -200.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_confident_models_stay_finite(value: float, dtype: torch.dtype) -> None:
    for seen in (0, 1):
        for last in range(BINS):
            logits = torch.full((1, BINS), value, dtype=dtype, requires_grad=True)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = survival_nll(logits, event=torch.tensor([seen]), time_bin=torch.tensor([last]))
            loss.backward()
            assert loss.dtype == torch.float32
            assert torch.isfinite(loss)
            assert logits.grad is not None
            assert torch.isfinite(logits.grad).all()


def test_event_and_bin_are_told_apart_by_name() -> None:
    with unchecked(), pytest.raises(TypeError, match="positional"):
        survival_nll(torch.zeros(1, BINS), torch.tensor([1]), torch.tensor([1]))  # type: ignore[misc]


@pytest.mark.parametrize(
    ("event", "time_bin", "message"),
    [
        (torch.tensor([2]), torch.tensor([0]), "event must be 1"),
        (torch.tensor([1]), torch.tensor([BINS]), r"time_bin must lie in 0\.\.3"),
        (torch.tensor([1, 0]), torch.tensor([0]), r"event \(2,\) and time_bin \(1,\) must be \(1,\)"),
    ],
)
def test_wrong_targets_are_refused(event: torch.Tensor, time_bin: torch.Tensor, message: str) -> None:
    with unchecked(), pytest.raises(ValueError, match=message):
        survival_nll(torch.zeros(1, BINS), event=event, time_bin=time_bin)


def test_risk_is_minus_the_expected_bins_survived() -> None:
    logits = torch.randn(5, BINS)
    survived = torch.stack([(1 - hazards(logits))[:, : k + 1].prod(1) for k in range(BINS)], 1)
    torch.testing.assert_close(risk_score(logits), -survived.sum(1))


def test_edges_do_not_move_with_rows_that_are_not_training() -> None:
    rng = np.random.default_rng(0)
    time, event = rng.integers(1, 3000, 80).astype(float), rng.random(80) < 0.4
    later = time.copy()
    later[60:] *= 3
    np.testing.assert_array_equal(time_bin_edges(time[:60], event[:60]), time_bin_edges(later[:60], event[:60]))
    assert time_bins(np.array([1e9]), time_bin_edges(time, event)).tolist() == [BINS - 1]


def test_fewer_events_than_bins_are_told(caplog: pytest.LogCaptureFixture) -> None:
    time = np.arange(1.0, 81)
    with caplog.at_level(logging.WARNING):
        edges = time_bin_edges(time, np.arange(80) < 3)
    np.testing.assert_array_equal(edges, np.quantile(time, [0.25, 0.5, 0.75]))
    assert [record.message for record in caplog.records] == [
        "WARN 3 events among 80 training patients make too few for 4 time bins: bin edges are quantiles of all times"
    ]


@pytest.mark.parametrize(
    ("time", "message"),
    [
        ([0.0, -5.0, 3.0], "of 3 survival times 0 are missing or infinite and 2 are not above zero"),
        ([np.nan, 2.0, np.inf], "of 3 survival times 2 are missing or infinite and 0 are not above zero"),
        ([], "no training patient has a survival time"),
    ],
)
def test_times_that_are_none_are_refused(time: list[float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        time_bin_edges(time, [1] * len(time))


def test_event_other_than_0_and_1_is_refused() -> None:
    with pytest.raises(UserError, match="event holds 2; it must be 1"):
        time_bin_edges([1.0, 2.0], [1, 2])


@pytest.mark.parametrize("ties", ["harrell", "strict"])
def test_concordance_equals_naive(ties: Any) -> None:  # noqa: ANN401
    rng = np.random.default_rng(1)
    for _ in range(200):
        n = int(rng.integers(1, 40))
        time, event = rng.integers(1, 8, n).astype(float), rng.random(n) < 0.5
        risk = np.round(rng.normal(size=n), int(rng.integers(0, 3)))
        expected = concordance_index_naive(time, event, risk, ties=ties)
        np.testing.assert_equal(concordance_index(time, event, risk, ties=ties), expected)


@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor, list], ids=["array", "tensor", "list"])
def test_concordance_takes_what_people_hold(make: Callable[[Any], Any]) -> None:
    ordered = concordance_index(make([1.0, 2.0, 3.0]), make([1, 1, 0]), make([9.0, 5.0, 1.0]))
    assert ordered == 1.0


def test_concordance_of_many_patients_takes_no_time() -> None:
    rng = np.random.default_rng(2)
    n = 200_000
    time = rng.random(n)
    assert concordance_index(time, np.ones(n), -time) == 1.0
    assert concordance_index(time, rng.random(n) < 0.3, rng.random(n)) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_risk_of_a_diverged_model_is_an_error(bad: float) -> None:
    with pytest.raises(UserError, match="risk is not finite for 1 of 3 patients"):
        concordance_index([1.0, 2.0, 3.0], [1, 1, 1], [1.0, bad, 2.0])


def test_concordance_refuses_unequal_lengths_and_unknown_ties() -> None:
    with unchecked(), pytest.raises(ValueError, match="time 2, event 2, risk 1"):
        concordance_index([1.0, 2.0], [1, 1], [1.0])
    with unchecked(), pytest.raises(ValueError, match="choose 'harrell' or 'strict'"):
        concordance_index([1.0], [1], [1.0], ties="uno")  # type: ignore[arg-type]
