"""Slide models: bags of patch features in, logits out."""

import inspect
from typing import Any

from torch import nn

from nnunet_gdla.mil.models.abmil import ABMIL
from nnunet_gdla.mil.models.dsmil import DSMIL
from nnunet_gdla.mil.models.grid_vit import GridViT
from nnunet_gdla.mil.models.slide_transformer import SlideTransformer
from nnunet_gdla.mil.models.transmil import TransMIL
from nnunet_gdla.mil.models.vit4 import ViT4

__all__ = [
    "ABMIL",
    "DSMIL",
    "MODELS",
    "GridViT",
    "SlideTransformer",
    "TransMIL",
    "ViT4",
    "build_model",
    "model_settings",
]

MODELS: dict[str, type[nn.Module]] = {
    "slide_transformer": SlideTransformer,
    "vit4": ViT4,
    "grid_vit": GridViT,
    "abmil": ABMIL,
    "dsmil": DSMIL,
    "transmil": TransMIL,
}


def build_model(name: str, in_dim: int, num_outputs: int, **kwargs: Any) -> nn.Module:  # noqa: ANN401
    """Build a model by name.

    Args:
        name: A key of `MODELS`.
        in_dim: Width of the features ("grid_vit": channels of the image).
        num_outputs: Classes, or time bins.
        **kwargs: What the model's class takes, all JSON-able.

    Raises:
        ValueError: If the name is not known.
    """
    _refuse_unknown(name)
    return MODELS[name](in_dim, num_outputs, **kwargs)


def model_settings(name: str) -> dict[str, inspect.Parameter]:
    """Return what `build_model` takes for this model besides its name, width of the features and outputs.

    Raises:
        ValueError: If the name is not known.
    """
    _refuse_unknown(name)
    return dict(list(inspect.signature(MODELS[name]).parameters.items())[2:])


def _refuse_unknown(name: str) -> None:
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}; choose one of {', '.join(MODELS)}")
