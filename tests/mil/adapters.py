"""What the recipes of `../shared/bugs/inputs` call in place of their stand-ins.

`MIL` is the slide transformer with Gated SRP; every other model has a hook named `MIL_<name>`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nnunet_gdla.mil.models import build_model
from nnunet_gdla.mil.survival import concordance_index, survival_nll, time_bin_edges
from tests.mil.adapters_data import GRAPH, LOADER, STRIDE

__all__ = [
    "BINS",
    "CINDEX",
    "GRAPH",
    "LOADER",
    "MIL",
    "NLL",
    "STRIDE",
    "MIL_abmil",
    "MIL_dsmil",
    "MIL_transmil",
    "MIL_vit4",
]

STRIDE_PX = 512.0


class _OnLattice(nn.Module):
    """A model whose forward returns logits and scores (1, N), on a lattice of 512 pixels.

    The attention of a class token is no pooling weight: every patch changes the class token and with it the attention
    to all others, which the recipe's search for the largest change is not made for. Such scores are checked here and
    not handed on (`pooling=False`); tests/bugs/test_16 looks at their order.
    """

    def __init__(self, model: nn.Module, *, pooling: bool) -> None:
        super().__init__()
        self.model, self.pooling = model, pooling

    def forward(self, x: Tensor, xy: Tensor) -> tuple[Tensor, Tensor | None]:
        score: Callable[..., Tensor] = self.model.patch_scores  # type: ignore[assignment]
        scores = score(x, xy, STRIDE_PX)
        assert scores.shape == x.shape[1:2], f"{tuple(scores.shape)} scores of {x.shape[1]} patches"
        assert torch.isfinite(scores).all()
        return self.model(x, xy, STRIDE_PX), scores[None] if self.pooling else None


def MIL(d: int, c: int) -> nn.Module:  # noqa: N802 - the recipes name the hooks
    """The slide transformer; its gates are open, so that they are looked at too."""
    model = build_model("slide_transformer", d, c, width=48, num_heads=4, num_landmarks=8)
    return _OnLattice(_with_open_gates(model), pooling=False)


def MIL_vit4(d: int, c: int) -> nn.Module:  # noqa: N802
    """The dense transformer, with open gates."""
    return _OnLattice(_with_open_gates(build_model("vit4", d, c, width=48, num_heads=4)), pooling=False)


def MIL_transmil(d: int, c: int) -> nn.Module:  # noqa: N802
    """TransMIL."""
    return _OnLattice(build_model("transmil", d, c, width=64), pooling=False)


def MIL_abmil(d: int, c: int) -> nn.Module:  # noqa: N802
    """Gated attention pooling."""
    return _OnLattice(build_model("abmil", d, c), pooling=True)


def MIL_dsmil(d: int, c: int) -> nn.Module:  # noqa: N802
    """The dual-stream model."""
    return _OnLattice(build_model("dsmil", d, c), pooling=True)


@torch.no_grad()
def _with_open_gates(model: nn.Module) -> nn.Module:
    """Move what starts at zero: head weights, head biases and output layers of the gates."""
    for name, parameter in model.named_parameters():
        if ".gate." in name:
            parameter.add_(0.5 * torch.randn_like(parameter))
    return model


def NLL(logits: Tensor, y: Tensor, event: Tensor) -> Tensor:  # noqa: N802
    """Mean loss; the recipe gives the bin before the event."""
    return survival_nll(logits, event=event, time_bin=y)


def BINS(time: np.ndarray[Any, Any], event: np.ndarray[Any, Any], num_bins: int) -> np.ndarray[Any, Any]:  # noqa: N802
    """Inner edges of the time bins."""
    return time_bin_edges(time, event, num_bins)


def CINDEX(time: np.ndarray[Any, Any], event: np.ndarray[Any, Any], risk: np.ndarray[Any, Any]) -> float:  # noqa: N802
    """Concordance with Harrell's ties."""
    return concordance_index(time, event, risk)
