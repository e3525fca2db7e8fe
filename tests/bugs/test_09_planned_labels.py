"""Datasets of every kind of labels on our plans: an ignore label, regions, both, absent classes, 130 outputs."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.bugs.planned import Image, plan_train_predict, write_masks

SIZE = (48, 70)
# nnU-Net's Dice of a class that is neither in the validation batch nor predicted
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered in scalar divide:RuntimeWarning")


class Kind(NamedTuple):
    labels: dict[str, Any]
    outputs: int
    highest: int  # label value
    more: dict[str, Any] = {}  # noqa: RUF012 - a tuple's default, never changed


KINDS = {
    "ignore": Kind({"background": 0, "a": 1, "b": 2, "ignore": 3}, 3, 3),
    "regions": Kind(
        {"background": 0, "whole": [1, 2, 3], "core": [2, 3], "enhancing": [3]},
        3,
        3,
        {"regions_class_order": [1, 2, 3]},
    ),
    "regions and ignore": Kind(
        {"background": 0, "whole": [1, 2], "core": [2], "ignore": 3}, 2, 3, {"regions_class_order": [1, 2]}
    ),
    "130 outputs": Kind({"background": 0} | {f"class {i}": i for i in range(1, 130)}, 130, 129),
}


def every_value(highest: int) -> Image:
    """All values up to the highest, pixel by pixel."""
    return (np.arange(SIZE[0] * SIZE[1]) % (highest + 1)).reshape(SIZE).astype(np.uint8)


@pytest.mark.parametrize("name", KINDS)
def test_it_trains_and_predicts(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = KINDS[name]
    drawn = {f"case{i}": every_value(kind.highest) for i in range(5)}
    made = write_masks(tmp_path, drawn, kind.labels, monkeypatch, **kind.more)
    trainer, masks = plan_train_predict(made, monkeypatch)
    assert trainer.label_manager.num_segmentation_heads == kind.outputs
    assert trainer.network.decoder.seg_layers[0].out_channels == kind.outputs
    assert len(masks) == 5
    most = kind.highest - ("ignore" in kind.labels)
    assert all(mask.shape == SIZE and mask.max() <= most for mask in masks.values())


@pytest.mark.parametrize("value", [0, 1, 2])
def test_masks_of_one_value_among_others(value: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = {f"case{i}": np.full(SIZE, value, np.uint8) for i in range(4)}
    drawn["other"] = every_value(1)  # a dataset without any foreground is refused by nnU-Net's fingerprint
    labels = {"background": 0, "a": 1, "b": 2}
    _, masks = plan_train_predict(write_masks(tmp_path, drawn, labels, monkeypatch), monkeypatch)
    assert all(mask.shape == SIZE and mask.max() <= 2 for mask in masks.values())
