"""Whole-slide models on bags of patch features; needs neither nnU-Net nor, for the models alone, the `mil` extra.

Names are imported when they are first used.
"""

import importlib
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:  # what type checkers and editors see; the same names as in _MODULES
    from nnunet_gdla.mil.models import SlideTransformer as SlideTransformer
    from nnunet_gdla.mil.models import build_model as build_model
    from nnunet_gdla.mil.slides import Slide as Slide
    from nnunet_gdla.mil.slides import infer_stride as infer_stride
    from nnunet_gdla.mil.slides import read_slide as read_slide
    from nnunet_gdla.mil.splits import holdout_split as holdout_split
    from nnunet_gdla.mil.survival import concordance_index as concordance_index
    from nnunet_gdla.mil.survival import risk_score as risk_score
    from nnunet_gdla.mil.survival import survival_nll as survival_nll
    from nnunet_gdla.mil.survival import time_bin_edges as time_bin_edges
else:  # hidden from type checkers, for which every misspelt name would exist

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
