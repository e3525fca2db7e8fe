"""Datasets of every awkward image size on our plans: they train, and each mask has the size of its image.

Kinds of bug: a patch below what the network takes, a stem that starts at a quarter of nothing, masks that were padded.
"""

import math
from pathlib import Path

import numpy as np
import pytest

from tests.bugs.planned import plan_train_predict, write_masks
from tests.bugs.sizes import SIZES

QUICK = ((20, 30), (31, 65), (8, 300), (1, 1))  # each takes seconds; the others are slow tests
LABELS = {"background": 0, "box": 1}


@pytest.mark.parametrize("size", [pytest.param(size, marks=[pytest.mark.slow] * (size not in QUICK)) for size in SIZES])
def test_it_trains_and_predicts(size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mask = np.zeros(size, np.uint8)
    mask[: math.ceil(size[0] / 2), : math.ceil(size[1] / 2)] = 1
    made = write_masks(tmp_path, {f"case{i}": mask for i in range(6)}, LABELS, monkeypatch)
    trainer, masks = plan_train_predict(made, monkeypatch, mirror=size in QUICK)
    assert tuple(trainer.configuration_manager.patch_size) == tuple(math.ceil(edge / 32) * 32 for edge in size)
    assert len(masks) == 6
    assert all(predicted.shape == size and set(np.unique(predicted)) <= {0, 1} for predicted in masks.values())


@pytest.mark.slow
def test_images_of_many_sizes_in_one_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [(97, 131), (20, 30), (8, 120), (120, 8), (7, 7), (1, 1), (64, 33)]
    drawn = {f"case{i}": np.ones(size, np.uint8) for i, size in enumerate(sizes)}
    for mask in drawn.values():
        mask[1::2] = 0
    _, masks = plan_train_predict(write_masks(tmp_path, drawn, LABELS, monkeypatch), monkeypatch, mirror=False)
    assert {case: mask.shape for case, mask in masks.items()} == {case: mask.shape for case, mask in drawn.items()}
