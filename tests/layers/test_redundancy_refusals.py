"""What the gate and the corrections refuse, and what they say then."""

from typing import Any

import pytest
import torch
from torch import nn

from nnunet_gdla.layers.redundancy import FixedSRP, GatedSRP, OutputSRP, RedundancyGate
from nnunet_gdla.ops.neighbours import grid_neighbours
from tests.unchecked import unchecked

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "token_features": ({"token_features": "log"}, r"'log'.*'legacy', 'rawlog', 'normlog', 'none'"),
    "bound": ({"bound": "relu"}, r"'relu'.*'tanh', 'scaled_sigmoid'.*'atan'"),
    "parameterisation": ({"parameterisation": "free"}, r"'free'.*'fixed', 'direct'"),
    "factorisation": ({"factorisation": "half"}, r"'half'.*'full', 'token_only', 'head_only', 'no_bias'"),
    "init": ({"init": "ones"}, r"'ones'.*'zero', 'normal'"),
    "heads": ({"num_heads": 0}, "num_heads must be positive, got 0"),
    "slots": ({"num_slots": 0}, "num_slots must be positive, got 0"),
    "hidden": ({"hidden": -1}, "hidden must be positive, got -1"),
    "delta": ({"delta": 0.0}, "delta must be positive, got 0"),
    "temperature": ({"temperature": float("nan")}, "temperature must be positive, got nan"),
    "beta at the bound": ({"init": "constant", "init_beta": 1.0}, "init_beta 1.0 must lie between -1 and 1"),
    "direct": ({"init": "constant", "init_beta": -2.5, "parameterisation": "direct"}, "between -2 and 2"),
    "negative sigmoid": ({"init": "constant", "init_beta": -0.1, "bound": "sigmoid01"}, "between 0 and 1"),
    "constant without bias": ({"init": "constant", "factorisation": "no_bias"}, "no_bias"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_options_are_refused_with_value_and_choices(wrong: str) -> None:
    options, message = WRONG[wrong]
    with unchecked(), pytest.raises(ValueError, match=message):
        RedundancyGate(**{"num_heads": 3, **options})


def test_wrong_sizes_and_words_are_refused() -> None:
    graph = grid_neighbours(torch.randint(0, 9, (40, 2)), 1)
    y, v, homogeneity = torch.zeros(1, 3, 40, 5), torch.zeros(1, 3, 40, 5), torch.zeros(1, 40)
    layer, x = GatedSRP(3), torch.zeros(1, 40, 15)
    with unchecked():
        with pytest.raises(ValueError, match=r"graph \(40, 8\) does not fit patches \(1, 39\)"):
            layer(y[:, :, 1:], v[:, :, 1:], graph, homogeneity)
        with pytest.raises(ValueError, match=r"homogeneity \(1, 39\).*\(1, 40\)"):
            layer(y, v, graph, homogeneity[:, 1:])
        with pytest.raises(ValueError, match=r"y \(1, 3, 40, 5\) and v \(1, 3, 40, 4\)"):
            layer(y, v[..., :4], graph, homogeneity)
        with pytest.raises(ValueError, match="3 heads"):
            layer(y[:, :2], v[:, :2], graph, homogeneity)
        with pytest.raises(ValueError, match=r"'learnt'.*'learned'"):
            FixedSRP(3, "learnt")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="returned tuple"):
            OutputSRP(nn.MultiheadAttention(15, 3, batch_first=True), 3)(x, graph, homogeneity, x, x)
        with pytest.raises(ValueError, match="num_heads 4 must divide the 15 channels"):
            OutputSRP(nn.Identity(), 4)(x, graph, homogeneity)
