"""From slides to patients, bootstrap intervals, paired differences, corrected t."""

import dataclasses
import functools
import math
import pickle
import time as clock
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.statistics import (
    Interval,
    bootstrap_intervals,
    classification_table_metrics,
    corrected_resampled_t,
    paired_bootstrap,
    survival_table_metrics,
    to_patients,
)
from tests.srp_golden import SrpFile, srp_params
from tests.unchecked import unchecked

CLASSES = ("negative", "positive")
classify = functools.partial(classification_table_metrics, classes=CLASSES)


def _classified(patients: int, *, slides: int = 1, seed: int = 0, skill: float = 1.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    label = np.repeat(rng.integers(0, 2, patients), slides)
    p = 1 / (1 + np.exp(-skill * (2 * label - 1) - rng.normal(size=len(label))))
    return pd.DataFrame(
        {
            "slide_id": [f"s{i:04d}" for i in range(len(label))],
            "patient_id": np.repeat([f"p{i:03d}" for i in range(patients)], slides),
            "label": np.array(CLASSES)[label],
            "prob_negative": 1 - p,
            "prob_positive": p,
        }
    )


def _survival(n: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    time = rng.integers(1, 3000, n).astype(float)
    hazards = {f"hazard_{i}": rng.random(n) for i in range(4)}
    ids = {"slide_id": [f"s{i}" for i in range(n)], "patient_id": [f"p{i}" for i in range(n)]}
    risk = 1000 * rng.normal(size=n) - time
    return pd.DataFrame({**ids, "time": time, "event": (rng.random(n) < 0.4).astype(int), "risk": risk, **hazards})


def accuracy(table: pd.DataFrame) -> dict[str, float]:
    return {"accuracy": classify(table)["accuracy"]}


@pytest.mark.parametrize("golden", srp_params("survival"))
def test_patient_risks_equal_golden(golden: SrpFile) -> None:
    a = golden.arrays
    slides = pd.DataFrame({"patient_id": a["agg_slide_case"], "risk": a["agg_slide_risk"], "time": 1.0, "event": 1})
    patients = to_patients(slides, "survival")
    assert patients["patient_id"].tolist() == a["agg_case"].tolist()
    assert patients["risk"].tolist() == pytest.approx(a["agg_risk"].tolist(), rel=5e-6)
    assert slides["patient_id"].value_counts()[a["agg_case"]].tolist() == a["agg_n"].tolist()


def test_patient_risk_is_that_of_the_mean_curve() -> None:
    slides = _survival(6)
    slides["patient_id"] = ["a", "b", "a", "b", "a", "c"]
    slides[["time", "event"]] = [5.0, 1]
    hazards = [f"hazard_{i}" for i in range(4)]
    slides["risk"] = -(1 - slides[hazards]).cumprod(axis=1).sum(axis=1)
    patients = to_patients(slides, "survival")
    assert patients["patient_id"].tolist() == ["a", "b", "c"]
    again = -(1 - patients[hazards]).cumprod(axis=1).sum(axis=1)
    assert patients["risk"].tolist() == pytest.approx(again.tolist())


def test_a_curve_at_zero_stays_there() -> None:
    slide = pd.DataFrame(
        {"patient_id": ["a"], "time": [1.0], "event": [1], "risk": [0.0], "hazard_0": [1.0], "hazard_1": [0.5]}
    )
    assert to_patients(slide, "survival")[["hazard_0", "hazard_1"]].to_numpy().tolist() == [[1.0, 1.0]]


def test_slides_of_a_patient_that_disagree_on_the_event_are_refused() -> None:
    slides = _survival(4)
    slides["patient_id"] = ["a", "a", "b", "b"]
    with pytest.raises(UserError, match="disagree on time or event: a, b"):
        to_patients(slides, "survival")


def test_patients_with_differing_labels_count_at_slide_level_only() -> None:
    slides = _classified(3, slides=2)
    slides["label"] = ["negative", "positive", "negative", "negative", "positive", "positive"]
    patients = to_patients(slides, "classification")
    assert patients["patient_id"].tolist() == ["p001", "p002"]
    assert patients.attrs["without_patient_label"] == 1
    mean = slides.loc[slides["patient_id"] == "p001", "prob_positive"].mean()
    assert patients["prob_positive"][0] == pytest.approx(mean)
    assert classify(patients)["accuracy"] >= 0


def test_unknown_names_are_refused() -> None:
    with unchecked(), pytest.raises(ValueError, match="choose 'classification' or 'survival'"):
        to_patients(_classified(2), "regression")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="label positive is none of the classes negative, other"):
        classification_table_metrics(_classified(9), ["negative", "other"])


def test_interval_of_a_share_is_the_textbooks() -> None:
    table = _classified(400, skill=0.5)
    share = accuracy(table)["accuracy"]
    (low, high), expected = bootstrap_intervals(table, accuracy)["accuracy"], 1.96 * (share * (1 - share) / 400) ** 0.5
    assert (share - low, high - share) == pytest.approx((expected, expected), rel=0.12)


def test_patients_are_drawn_not_slides() -> None:
    """Four copies of every slide tell nothing new: the interval must not shrink."""
    one = _classified(100)
    four = one.loc[one.index.repeat(4)]
    wide, narrow = (bootstrap_intervals(table, accuracy, n=200)["accuracy"] for table in (one, four))
    assert wide == narrow


def test_same_seed_same_interval_and_row_order_does_not_matter() -> None:
    table = _classified(50)
    first = bootstrap_intervals(table, classify, n=100, seed=3)["auc"]
    assert bootstrap_intervals(table.iloc[::-1], classify, n=100, seed=3)["auc"] == first
    assert bootstrap_intervals(table, classify, n=100, seed=4)["auc"] != first


def test_undefined_resamples_are_left_out_and_counted() -> None:
    table = _classified(30)
    table["label"] = ["positive"] * 2 + ["negative"] * 28
    interval = bootstrap_intervals(table, classify, n=300)["auc"]
    assert interval.undefined == pytest.approx(300 * (1 - 2 / 30) ** 30, rel=0.3)
    assert 0 <= interval.low < interval.high <= 1


def _rare_class() -> pd.DataFrame:
    """Three classes, all predicted right; the third has two patients."""
    names = np.array(["a", "b", "rare"])
    numbers = np.array([0] * 14 + [1] * 14 + [2] * 2)
    table = pd.DataFrame(np.eye(3)[numbers] * 0.8 + 0.1, columns=[f"prob_{name}" for name in names])
    return table.assign(label=names[numbers], patient_id=[f"p{i}" for i in range(30)])


@pytest.mark.parametrize("metric", ["macro_recall", "macro_precision", "macro_f1", "auc", "auprc", "balanced_accuracy"])
def test_a_class_that_is_not_drawn_says_nothing_about_the_model(metric: str) -> None:
    """A model without a mistake: 13 % of the resamples miss the rare class, and none of them is a worse model."""
    classes = ("a", "b", "rare")
    table = _rare_class()
    three = functools.partial(classification_table_metrics, classes=classes)
    interval = bootstrap_intervals(table, three, n=200)[metric]
    assert ((interval.low, interval.high), interval.undefined) == ((1.0, 1.0), 0)
    worse = table.assign(prob_a=table["prob_rare"], prob_rare=table["prob_a"])  # a and rare are mixed up
    difference = paired_bootstrap(table, worse, three, n=200)[metric]
    assert difference.undefined == 0
    assert 0 < difference.low <= difference.difference <= difference.high


def test_a_class_that_nobody_has_counts_as_in_the_metric_itself() -> None:
    four = functools.partial(classification_table_metrics, classes=("a", "b", "never", "rare"))
    found = bootstrap_intervals(_rare_class().assign(prob_never=0.0), four, n=100)
    for metric in ("macro_recall", "balanced_accuracy"):
        assert tuple(found[metric]) == (2 / 3, 0.75)  # 3 of 4 classes, or 2 of 3 without the rare one
    assert np.isnan([*found["auc"]]).all()


def test_an_interval_is_unpacked_and_replaced_without_loss() -> None:
    interval = Interval(0.1, 0.4, 7)
    low, high = interval
    assert (low, high) == (0.1, 0.4)
    assert dataclasses.replace(interval, low=0.2) == Interval(0.2, 0.4, 7)
    assert pickle.loads(pickle.dumps(interval)) == interval


def test_undefined_metric_has_no_interval() -> None:
    table = _classified(10)
    table["label"] = "negative"
    interval = bootstrap_intervals(table, classify, n=50)["auc"]
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)
    assert interval.undefined == 50
    one_patient = bootstrap_intervals(_survival(1), survival_table_metrics, n=50)["c_index"]
    assert np.isnan([*one_patient]).all()


def test_mostly_undefined_is_undefined() -> None:
    table = _classified(3)
    table["label"] = ["positive", "negative", "negative"]
    rarely = bootstrap_intervals(table.assign(patient_id=["a", "b", "b"]), classify, n=100)["auc"]
    assert rarely.undefined > 25  # a and b are drawn together half of the time
    table = pd.concat([table] * 1).assign(patient_id="a")
    assert bootstrap_intervals(table, classify, n=20)["auc"].undefined == 0


def test_nobody_has_undefined_intervals() -> None:
    assert np.isnan([*bootstrap_intervals(_classified(0), accuracy, n=10)["accuracy"]]).all()


@pytest.mark.parametrize("task", ["classification", "survival"])
def test_a_thousand_resamples_take_seconds(task: str) -> None:
    edges, train = np.array([700.0, 1500.0, 2200.0]), _survival(300, seed=9)
    survival = functools.partial(
        survival_table_metrics, edges=edges, train_time=train["time"].tolist(), train_event=train["event"].tolist()
    )
    table, function = (_classified(500), classify) if task == "classification" else (_survival(500), survival)
    with unchecked():
        start = clock.process_time()
        intervals = bootstrap_intervals(table, function)
        assert clock.process_time() - start < 10  # 2 to 3 s on an old core
    point = function(table)
    assert set(intervals) == set(point)
    assert all(intervals[name].low <= point[name] <= intervals[name].high for name in point if name != "ece")


def test_the_same_method_does_not_differ_from_itself() -> None:
    table = _classified(40)
    found = paired_bootstrap(table, table.sample(frac=1, random_state=0), accuracy, n=100)["accuracy"]
    assert found == (0.0, 0.0, 0.0, 1.0, 0)


def test_a_better_method_is_found_and_the_sign_is_a_minus_b() -> None:
    a, b = _classified(300, skill=2.0), _classified(300, skill=0.3)
    better = paired_bootstrap(a, b, classify, n=100)["auc"]
    assert better.p == pytest.approx(2 / 101)
    assert 0 < better.low < better.difference < better.high
    worse = paired_bootstrap(b, a, classify, n=100)["auc"]
    assert (worse.difference, worse.low, worse.high) == pytest.approx((-better.difference, -better.high, -better.low))


def test_pairing_is_narrower_than_two_intervals() -> None:
    a = _classified(200)
    b = a.assign(prob_positive=(a["prob_positive"] + 0.02).clip(0, 1))
    b["prob_negative"] = 1 - b["prob_positive"]
    found = paired_bootstrap(a, b, accuracy, n=200)["accuracy"]
    alone = bootstrap_intervals(a, accuracy, n=200)["accuracy"]
    assert found.high - found.low < 0.5 * (alone.high - alone.low)


def test_several_splits_draw_a_patient_for_all_at_once() -> None:
    a, b = _classified(60, skill=1.5), _classified(60, skill=0.5)
    once = paired_bootstrap(a, b, accuracy, n=200)["accuracy"]
    # the same patients in a second split are no new evidence
    twice = paired_bootstrap([a, a], [b, b], accuracy, n=200)["accuracy"]
    assert twice == pytest.approx(once)
    # other patients are
    other_a, other_b = (table.assign(patient_id="q" + table["patient_id"]) for table in (a, b))
    wider = paired_bootstrap([a, other_a], [b, other_b], [accuracy, accuracy], n=200)["accuracy"]
    assert wider.difference == pytest.approx(once.difference)
    assert wider.high - wider.low < 0.85 * (once.high - once.low)


def test_methods_tested_on_other_slides_are_refused() -> None:
    with pytest.raises(UserError, match=r"1 slide predicted by one method only, such as s0009"):
        paired_bootstrap(_classified(10), _classified(9), accuracy)
    with pytest.raises(UserError, match="slide_id is not unique"):
        paired_bootstrap(_classified(3).assign(slide_id="s"), _classified(3), accuracy)
    with pytest.raises(ValueError, match="2, 1 and 2 splits"):
        paired_bootstrap([_classified(3)] * 2, [_classified(3)], accuracy)


def test_patients_are_paired_where_there_are_no_slides() -> None:
    patients = to_patients(_classified(20, slides=2), "classification")
    assert paired_bootstrap(patients, patients.iloc[::-1], accuracy, n=50)["accuracy"].difference == 0


def test_corrected_t_by_hand() -> None:
    differences = [0.02, 0.05, -0.01, 0.03, 0.01]
    found = corrected_resampled_t(differences, 72, 20)
    expected = 0.02 / math.sqrt((1 / 5 + 20 / 72) * np.var(differences, ddof=1))
    assert found.t == pytest.approx(expected)
    assert found.degrees == 4
    assert found.p == pytest.approx(2 * stats.t.sf(expected, 4))
    uncorrected: Any = stats.ttest_1samp(differences, 0)
    assert found.p > uncorrected.pvalue
    assert corrected_resampled_t(differences, 1e12, 1).p == pytest.approx(uncorrected.pvalue)


@pytest.mark.parametrize("differences", [[], [0.1], [0.1, 0.1, 0.1], [0.1, math.nan]], ids=str)
def test_corrected_t_without_spread_is_undefined(differences: list[float]) -> None:
    found = corrected_resampled_t(differences, 70, 20)
    assert math.isnan(found.t)
    assert math.isnan(found.p)
