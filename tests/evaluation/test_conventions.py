"""Every rule of the two conventions, on masks small enough to count by hand."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from nnunet_gdla.commands import arguments_evaluation
from nnunet_gdla.errors import UserError
from nnunet_gdla.evaluation.cases import evaluate_labels
from nnunet_gdla.evaluation.classes import MaskClass
from nnunet_gdla.evaluation.conventions import CONVENTIONS, METRICS, convention
from nnunet_gdla.evaluation.results import MEAN, Results
from tests.evaluation.naive import naive_metrics

ORGAN = (MaskClass("organ", (1,)),)
SPACING = (3.0, 0.5, 0.5)


def labels(*boxes: tuple[slice, ...]) -> npt.NDArray[np.uint8]:
    made = np.zeros((6, 16, 16), dtype=np.uint8)
    for box in boxes:
        made[box] = 1
    return made


def scores(prediction: npt.NDArray[Any], truth: npt.NDArray[Any], rules: str) -> dict[str, float]:
    found = evaluate_labels(
        prediction, truth, ORGAN, spacing=SPACING, ignore=None, rules=convention(rules), tolerance=1.0
    )
    return found["organ"].metrics


NOTHING = labels()
TRUTH = labels((slice(1, 4), slice(3, 9), slice(3, 9)))
PREDICTION = labels((slice(2, 5), slice(4, 11), slice(3, 9)), (slice(0, 1), slice(15, 16), slice(15, 16)))


def test_transunet_prediction_without_truth_is_dice_1_and_hd95_0() -> None:
    found = scores(PREDICTION, NOTHING, "transunet")
    assert (found["dice"], found["hd95"]) == (1, 0)


def test_transunet_truth_without_prediction_is_dice_0_and_hd95_0() -> None:
    found = scores(NOTHING, TRUTH, "transunet")
    assert (found["dice"], found["hd95"]) == (0, 0)


def test_transunet_neither_is_dice_0_and_hd95_0() -> None:
    found = scores(NOTHING, NOTHING, "transunet")
    assert (found["dice"], found["hd95"]) == (0, 0)


def test_transunet_measures_in_voxels_and_takes_both_directions_together() -> None:
    expected = naive_metrics(PREDICTION == 1, TRUTH == 1, (1, 1, 1), 1.0)
    found = scores(PREDICTION, TRUTH, "transunet")
    assert found["hd95"] == pytest.approx(expected["hd95_pooled"])
    assert found["assd"] == pytest.approx(expected["assd"])
    assert found["nsd"] == pytest.approx(expected["nsd"])
    assert expected["hd95_pooled"] != expected["hd95"]


def test_transunet_averages_empty_cases_like_all_others() -> None:
    """Mean over classes, then over cases: nothing is left out."""
    dice = np.array([[1.0, 0.5], [0.0, 0.9]])
    results = Results(("a", "b"), ("x", "y"), dict.fromkeys(METRICS, dice), "transunet", "voxels", 1.0)
    np.testing.assert_allclose(results.columns("dice")[MEAN], [0.75, 0.45])


def test_standard_measures_in_millimetres_and_takes_the_greater_direction() -> None:
    expected = naive_metrics(PREDICTION == 1, TRUTH == 1, SPACING, 1.0)
    found = scores(PREDICTION, TRUTH, "standard")
    assert found == pytest.approx(found | {name: expected[name] for name in ("hd95", "assd", "nsd")})
    both = np.count_nonzero((PREDICTION == 1) & (TRUTH == 1))
    assert found["dice"] == 2 * both / (PREDICTION.sum() + TRUTH.sum())


@pytest.mark.parametrize(("prediction", "truth"), [(PREDICTION, NOTHING), (NOTHING, TRUTH)])
def test_standard_one_empty_mask(prediction: npt.NDArray[np.uint8], truth: npt.NDArray[np.uint8]) -> None:
    found = scores(prediction, truth, "standard")
    assert (found["dice"], found["iou"], found["nsd"]) == (0, 0, 0)
    assert math.isnan(found["hd95"])
    assert math.isnan(found["assd"])
    assert 0 < found["pixel_accuracy"] < 1


def test_standard_two_empty_masks() -> None:
    found = scores(NOTHING, NOTHING, "standard")
    assert [name for name in METRICS if math.isnan(found[name])] == ["dice", "iou", "hd95", "assd", "nsd"]
    assert found["pixel_accuracy"] == 1


def test_standard_leaves_the_undefined_out_of_the_mean_over_classes() -> None:
    dice = np.array([[np.nan, 0.5], [np.nan, np.nan]])
    results = Results(("a", "b"), ("x", "y"), dict.fromkeys(METRICS, dice), "standard", "mm", 1.0)
    np.testing.assert_equal(results.columns("dice")[MEAN], [0.5, np.nan])


@pytest.mark.parametrize("rules", CONVENTIONS)
def test_a_perfect_prediction(rules: str) -> None:
    expected = {"dice": 1, "iou": 1, "hd95": 0, "assd": 0, "nsd": 1, "pixel_accuracy": 1}
    assert scores(TRUTH, TRUTH, rules) == expected


def test_regions_and_ignored_pixels() -> None:
    rng = np.random.default_rng(3)
    prediction, truth = (rng.choice(np.arange(4, dtype=np.uint8), (5, 9, 8)) for _ in range(2))
    classes = (MaskClass("whole", (1, 2)), MaskClass("core", (2,)))
    found = evaluate_labels(
        prediction, truth, classes, spacing=SPACING, ignore=3, rules=convention("standard"), tolerance=0.5
    )
    kept = truth != 3
    for each in classes:
        one, two = (np.isin(array, each.values) & kept for array in (prediction, truth))
        expected = naive_metrics(one, two, SPACING, 0.5)
        expected["dice"] = 2 * np.count_nonzero(one & two) / (one.sum() + two.sum())
        expected["iou"] = np.count_nonzero(one & two) / np.count_nonzero(one | two)
        expected["pixel_accuracy"] = np.count_nonzero((one == two) & kept) / kept.sum()
        metrics = found[each.name].metrics
        assert metrics == pytest.approx({name: expected[name] for name in METRICS}), each.name


def test_what_is_ignored_does_not_matter() -> None:
    rng = np.random.default_rng(4)
    truth = rng.choice(np.arange(3, dtype=np.uint8), (7, 9))
    prediction = rng.choice(np.arange(2, dtype=np.uint8), (7, 9))
    other = np.where(truth == 2, 1 - prediction, prediction).astype(np.uint8)
    found = [
        evaluate_labels(each, truth, ORGAN, spacing=(1, 1), ignore=2, rules=convention("standard"), tolerance=1.0)
        for each in (prediction, other)
    ]
    assert found[0] == found[1]


def test_flat_classes_in_a_volume_and_volumes_of_one_slice() -> None:
    """A box around a flat class has an axis of one voxel, yet its neighbours there are outside."""
    flat = labels((slice(2, 3), slice(2, 12), slice(2, 12)))
    inner = labels((slice(2, 3), slice(5, 9), slice(5, 9)))
    expected = naive_metrics(inner == 1, flat == 1, SPACING, 1.0)
    assert scores(inner, flat, "standard")["assd"] == pytest.approx(expected["assd"])
    one_slice = naive_metrics(inner[2:3] == 1, flat[2:3] == 1, SPACING, 1.0)
    assert scores(inner[2:3], flat[2:3], "standard")["assd"] == pytest.approx(one_slice["assd"])
    assert one_slice["assd"] != expected["assd"]


def test_an_unknown_convention_is_refused() -> None:
    with pytest.raises(UserError, match="choose one of standard, transunet"):
        convention("medpy")


def test_the_command_offers_every_convention() -> None:
    assert tuple(CONVENTIONS) == arguments_evaluation.CONVENTIONS
