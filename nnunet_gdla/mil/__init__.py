"""Whole-slide models on bags of patch features; needs neither nnU-Net nor, for the models alone, the `mil` extra.

Names are imported when they are first used.
"""

import importlib
from typing import Any

__all__ = [
    "Slide",
    "SlideTransformer",
    "build_model",
    "concordance_index",
    "holdout_split",
    "infer_stride",
    "read_slide",
    "risk_score",
    "survival_nll",
    "time_bin_edges",
]

_MODULES = {
    "Slide": "nnunet_gdla.mil.slides",
    "SlideTransformer": "nnunet_gdla.mil.models",
    "build_model": "nnunet_gdla.mil.models",
    "concordance_index": "nnunet_gdla.mil.survival",
    "holdout_split": "nnunet_gdla.mil.splits",
    "infer_stride": "nnunet_gdla.mil.slides",
    "read_slide": "nnunet_gdla.mil.slides",
    "risk_score": "nnunet_gdla.mil.survival",
    "survival_nll": "nnunet_gdla.mil.survival",
    "time_bin_edges": "nnunet_gdla.mil.survival",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - classes and functions
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
