"""What the slide transformer refuses, and what it says then. Marked `compile`: the shape checks would speak first."""

import itertools
from typing import Any

import pytest
import torch

from nnunet_gdla.mil.models.slide_transformer import SlideTransformer
from tests.mil.slide_models import COMBINATIONS, IN_DIM, OUTPUTS, STRIDE, bag, slide_model

pytestmark = pytest.mark.compile

ATTENTIONS = ("nystrom", "softmax", "linear", "gdla", "diff")
CORRECTIONS = ("srp", "xsa", "none", "fixed:1.5", "fixed:learned")
PLACEMENTS = ("post", "pre_q", "pre_k", "pre_v")


def test_exactly_the_allowed_combinations_can_be_built() -> None:
    known = {(o["attention"], o["correction"], o.get("placement", "post")) for o in COMBINATIONS}
    for choice in itertools.product(ATTENTIONS, CORRECTIONS, PLACEMENTS):
        options: dict[str, Any] = dict(zip(("attention", "correction", "placement"), choice, strict=True))
        if choice in known:
            slide_model(**options)
        else:
            with pytest.raises(ValueError, match=r"xsa.* with nystrom, softmax, linear.*pre_q"):
                slide_model(**options)


@pytest.mark.parametrize("placement", ["pre-q", "pre-k", "pre-v"])
def test_placements_may_be_spelled_with_a_hyphen(placement: str) -> None:
    assert slide_model(placement=placement).combination.placement == placement.replace("-", "_")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "flash"}, "'flash'.*choose"),
        ({"correction": "fixed"}, "fixed:1.0"),
        ({"correction": "fixed:nan"}, "fixed:nan"),
        ({"correction": "srp:1"}, "srp:1"),
        ({"placement": "before"}, "before"),
        ({"attention": "nystrom", "local_mixing": "lattice"}, "gdla"),
        ({"attention": "gdla", "local_mixing": "grid"}, "'lattice' or None"),
        ({"attention": "gdla", "local_mixing": "lattice", "window": 5}, "window 3"),
        ({"position": "sincos"}, "'ppeg' or None"),
        ({"num_heads": 3}, "divide dim 16"),
        ({"attention": "diff", "correction": "none", "num_heads": 1}, "even"),
        ({"attention": "gdla", "num_heads": 16}, "even"),
        ({"depth": 0}, "depth"),
        ({"mlp_ratio": 0}, "mlp_ratio must be positive, got 0"),
        ({"mlp_ratio": float("nan")}, "mlp_ratio must be positive, got nan"),
        ({"drop_path_rate": 1.0}, "drop path"),
        ({"pinv_init": "x"}, "per_matrix"),
        ({"window": 4}, "window"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        slide_model(**options)


@pytest.mark.parametrize("position", [0, -3])
def test_sizes_must_be_positive(position: int) -> None:
    with pytest.raises(ValueError, match="num_outputs"):
        SlideTransformer(IN_DIM, position)


def test_wrong_input_is_refused() -> None:
    model, (features, coords) = slide_model(), bag(9)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"features": features[0]}, r"\(9, 10\) must be \(batch, patches, 10\)"),
        ({"features": features[..., :5]}, r"\(1, 9, 5\)"),
        ({"features": features[:, :0], "coords": coords[:, :0]}, "at least one patch"),
        ({"coords": coords[:, :5]}, r"coords \(1, 5, 2\)"),
        ({"coords": None}, "pass coords and stride, or graph"),
        ({"stride": None}, "pass coords and stride, or graph"),
        ({"mask": torch.ones(1, 8, dtype=torch.bool)}, r"mask \(1, 8\)"),
        ({"mask": torch.ones(1, 9)}, "torch.bool"),
        ({"mask": torch.zeros(1, 9, dtype=torch.bool)}, "without any patch"),
    ]
    for changes, message in refused:
        with pytest.raises(ValueError, match=message):
            model(**({"features": features, "coords": coords, "stride": STRIDE} | changes))
    with pytest.raises(ValueError, match="one slide"):
        model.patch_scores(*bag(9, batch=2), STRIDE)


def test_outputs_have_the_size_asked_for() -> None:
    assert slide_model()(*bag(9, batch=2), STRIDE).shape == (2, OUTPUTS)
