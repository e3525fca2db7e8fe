"""Bags of every length through every slide model: logits, one score per patch in row order, training on one patch."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.mil import adapters
from tests.mil.recipes import run_recipe

pytestmark = pytest.mark.timeout(600)  # many seconds of one core, minutes where others work too

TRANSFORMERS = ("MIL", "MIL_vit4", "MIL_transmil")
WIDTH = 16


@pytest.mark.parametrize("hook", ["MIL_abmil", "MIL_dsmil", *TRANSFORMERS])
def test_the_recipe_passes(monkeypatch: pytest.MonkeyPatch, hook: str) -> None:
    names = run_recipe(monkeypatch, 16, MIL=f"tests.mil.adapters:{hook}")
    assert names["bad"] == []


def _lattice(n: int) -> torch.Tensor:
    side = max(1, math.isqrt(n))
    return (torch.stack([torch.arange(n) % side, torch.arange(n) // side], -1) * 512)[None]


@pytest.mark.parametrize("n", [37, 300])
@pytest.mark.parametrize("hook", TRANSFORMERS)
def test_a_patch_that_moves_changes_its_own_score_most(hook: str, n: int) -> None:
    """Where scores are no pooling weights this holds on average: one large move may turn the class token instead."""
    build: Callable[[int, int], nn.Module] = getattr(adapters, hook)
    model: Any = build(WIDTH, 3).eval().get_submodule("model")
    xy, x = _lattice(n), torch.randn(1, n, WIDTH)
    before = model.patch_scores(x, xy, 512.0)
    for i in (0, n // 2, n - 1):
        change = torch.zeros(n)
        for move in 0.3 * torch.randn(16, WIDTH):
            moved = x.clone()
            moved[0, i] += move
            change += (model.patch_scores(moved, xy, 512.0) - before).abs()
        assert int(change.argmax()) == i
