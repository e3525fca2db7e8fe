"""Looking at a model leaves it as it was: modes of every part, and no hooks, also when something raises."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

from nnunet_gdla.errors import TrainingStopped
from nnunet_gdla.mil.bundle_info import BundleInfo
from nnunet_gdla.mil.config_schema import TrainConfig
from nnunet_gdla.mil.data import Bag, Visit
from nnunet_gdla.mil.models import build_model
from nnunet_gdla.mil.module import SlideModule
from nnunet_gdla.mil.slides import Slide
from nnunet_gdla.mil.tasks import SlideLoss

SLIM: dict[str, Any] = {"width": 24, "depth": 2, "num_heads": 2, "num_landmarks": 8}
MODELS: dict[str, dict[str, Any]] = {
    "slide_transformer": SLIM,
    "vit4": {"width": 24, "num_heads": 2},
    "abmil": {},
    "dsmil": {},
    "transmil": {},
}
COORDS = torch.stack([torch.arange(9) % 3, torch.arange(9) // 3], 1)[None]


def _half_frozen(name: str) -> tuple[nn.Module, list[bool]]:
    model = build_model(name, 8, 2, **MODELS[name]).train()
    for number, part in enumerate(model.modules()):
        if number % 3 == 1:
            part.eval()
    modes = [part.training for part in model.modules()]
    assert True in modes
    assert False in modes
    return model, modes


def _hooks(model: nn.Module) -> int:
    return sum(len(part._forward_hooks) for part in model.modules())


@pytest.mark.parametrize("name", MODELS)
def test_explaining_restores_the_mode_of_every_part(name: str) -> None:
    model, modes = _half_frozen(name)
    scores = model.patch_scores(torch.randn(1, 9, 8), COORDS, 1.0)  # type: ignore[operator]
    assert scores.shape == (9,)
    assert [part.training for part in model.modules()] == modes
    assert _hooks(model) == 0


@pytest.mark.parametrize("name", MODELS)
def test_explaining_restores_it_also_when_it_raises(name: str) -> None:
    model, modes = _half_frozen(name)
    part = next(part for part in model.modules() if isinstance(part, nn.Linear))
    part.forward = _broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="broken"):
        model.patch_scores(torch.randn(1, 9, 8), COORDS, 1.0)  # type: ignore[operator]
    assert [each.training for each in model.modules()] == modes
    assert _hooks(model) == 0


def _broken(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("broken")


def test_a_validation_that_raises_leaves_no_hook() -> None:
    table = pd.DataFrame({"slide_id": ["s"], "patient_id": ["p"], "label": ["a"]})
    info = BundleInfo("classification", "slide_transformer", SLIM, 8, 2, classes=("a", "b"))
    losses = (SlideLoss.of(table, info), SlideLoss.of(table, info))
    model = build_model("slide_transformer", 8, 2, **SLIM)
    module = SlideModule(model, info, TrainConfig(), losses, table, 1)
    slide = Slide("s", torch.randn(9, 8), COORDS[0], 1.0, "px", Path("s.h5"), "features")
    bag = Bag(Visit(0, 0), slide)
    module.on_validation_epoch_start()
    module.validation_step(bag, 0)
    assert len(module.recorder.records) == 1
    assert _hooks(model) == 0
    with torch.no_grad():
        model.head.bias.fill_(torch.nan)  # type: ignore[union-attr, operator]
    with pytest.raises(TrainingStopped, match="validation slide s"):
        module.validation_step(bag, 0)
    assert _hooks(model) == 0
    module.on_validation_epoch_start()
    assert module.recorder.records == []
