"""What a trained model says about itself, and what its outputs mean. Classification and survival differ here."""

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import UnionType
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from nnunet_gdla import __version__
from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.cohort import Task
from nnunet_gdla.mil.predictions import classification_table_metrics, survival_table_metrics
from nnunet_gdla.mil.slides import Slide
from nnunet_gdla.mil.slides.encoders import same_encoder
from nnunet_gdla.mil.survival import Ties, hazards, time_bins
from nnunet_gdla.words import counted

__all__ = ["FORMAT", "BundleInfo", "answer", "base_columns", "info_from_dict", "table_metrics"]

FORMAT: Final = 1
_TRUTH: Final = {"classification": ("label",), "survival": ("time", "event")}


@dataclass(frozen=True)
class BundleInfo:
    """What `bundle.json` holds.

    Attributes:
        task: "classification" or "survival".
        model: Name for `build_model`.
        model_kwargs: Its keyword arguments, defaults written out.
        in_dim: Width of the features.
        num_outputs: Outputs of the model.
        classes: Class of each output (classification).
        feature_key: Data set inside the files, where the training files held several. None: the only one.
        encoder: What made the features, where the training files said so.
        stride: Stride for every slide, or None: from each slide's own file.
        unit: Unit of the coordinates, or None: from each file.
        max_patches: Cap per slide.
        sort_rows: "lattice" where the rows of a slide are sorted, or None: as in the file.
        allow_isolated: Whether slides without neighbours are taken.
        needs_coords: Whether the model looks at coordinates.
        bin_edges: Edges of the time bins (survival).
        threshold: Probability of the second class from which it is called (two classes), chosen on validation.
        train_time: Times of the training patients, for the weights of the Brier score and the time-dependent AUC.
        train_event: Their events.
        event_column: Column of the events in the training table (survival); of an older bundle None.
        event_is_censoring: What was said about that column: 1 means censored (True), or the event (False, None).
        event_map: What its entries meant, in small letters, where the settings of the training said so.
        median_risk: Median risk of the training patients, where Kaplan-Meier curves are cut.
        c_index_ties: How its C-index counts pairs of equal times; "harrell" in bundles that do not say.
        training: Where it came from: epoch, selection, seeds, for the record.
        version: Version of the package that wrote it.
        format: Version of this layout.
    """

    task: Task
    model: str
    model_kwargs: dict[str, Any]
    in_dim: int
    num_outputs: int
    classes: tuple[str, ...] = ()
    feature_key: str | None = None
    encoder: str | None = None
    stride: float | None = None
    unit: str | None = None
    max_patches: int | None = None
    sort_rows: str | None = None
    allow_isolated: bool = False
    needs_coords: bool = True
    bin_edges: tuple[float, ...] = ()
    train_time: tuple[float, ...] = ()
    train_event: tuple[int, ...] = ()
    threshold: float | None = None
    median_risk: float | None = None
    c_index_ties: Ties = "harrell"
    event_column: str | None = None
    event_is_censoring: bool | None = None
    event_map: dict[str, int] | None = None
    training: dict[str, Any] = field(default_factory=dict)
    version: str = __version__
    format: int = FORMAT

    def read_options(self) -> dict[str, Any]:
        """Return the keyword arguments with which slides are read as in training."""
        names = ("feature_key", "stride", "unit", "max_patches", "sort_rows", "allow_isolated")
        return {name: getattr(self, name) for name in names} | {"need_coords": self.needs_coords}

    def refuse(self, slide: Slide) -> None:
        """Raise a UserError that names what differs, unless the slide holds what the model was trained on."""
        if not isinstance(slide, Slide):
            raise UserError(f"a {type(slide).__name__} is no slide; nnunet_gdla.mil.slides.read_slide reads one")
        differences = []
        if slide.features.shape[1] != self.in_dim:
            differences.append(f"features are {slide.features.shape[1]} wide, the model takes {self.in_dim}")
        if not same_encoder(self.encoder, slide.encoder):
            differences.append(f"features come from {slide.encoder}, the model was trained on {self.encoder}")
        if self.needs_coords and slide.coords is None:
            differences.append("it has no coordinates")
        if differences:
            raise UserError(
                f"slide {slide.slide_id}: {' and '.join(differences)}; extract its features with the encoder of the "
                "training"
            )


def info_from_dict(tree: Mapping[str, Any]) -> BundleInfo:
    """Return the description that `bundle.json` holds.

    Raises:
        ValueError: If an entry is missing, unknown, of a wrong type, or does not go with another.
    """
    hints = get_type_hints(BundleInfo)
    required = {f.name for f in fields(BundleInfo) if f.default is MISSING and f.default_factory is MISSING}
    missing = sorted((required | {"version", "format"}) - set(tree))
    unknown = sorted(set(tree) - set(hints))
    if missing or unknown:
        what = "are missing" if missing else "are not known"
        raise ValueError(f"entries {what}: {', '.join(missing or unknown)}")
    for name, value in tree.items():
        if not _fits(value, hints[name]):
            raise ValueError(f"{name} cannot be {value!r}"[:200])
    typed: dict[str, Any] = {name: _typed(value, hints[name]) for name, value in tree.items()}
    info = BundleInfo(**typed)
    if complaint := _contradiction(info):
        raise ValueError(complaint)
    return info


def _fits(value: object, hint: Any) -> bool:  # noqa: ANN401 - types have no type
    """Whether a value of a JSON file is of the type of a field; lists stand for tuples."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in inner
    if origin is UnionType:
        return any(_fits(value, each) for each in inner)
    if origin is tuple:
        return isinstance(value, list) and all(_fits(each, inner[0]) for each in value)
    if origin is dict and inner[1] is not Any:
        return isinstance(value, dict) and all(_fits(each, inner[1]) for each in value.values())
    if hint in (int, float) and isinstance(value, bool):
        return False
    if hint is float:
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, origin or hint)


def _typed(value: Any, hint: Any) -> Any:  # noqa: ANN401
    """The value with lists as tuples, and whole numbers as floats where the field is one."""
    inner = get_args(hint)
    if isinstance(value, list):
        return tuple(inner[0](each) for each in value)
    return float(value) if float in inner and value is not None else value


def _contradiction(info: BundleInfo) -> str | None:
    """What does not go together, in words."""
    edges, outputs = info.bin_edges, info.num_outputs
    if info.in_dim < 1 or outputs < 1:
        return f"in_dim {info.in_dim} and num_outputs {outputs} must be 1 or more"
    if info.task == "classification" and (len(info.classes) != outputs or len(set(info.classes)) != outputs):
        classes = counted(len(info.classes), "class", "classes")
        do = "does" if len(info.classes) == 1 else "do"
        return f"{classes} ({', '.join(info.classes)}) {do} not name {counted(outputs, 'output')}"
    if info.task == "survival" and not min(1, outputs - 1) <= len(edges) < outputs:
        # fewer edges than outputs - 1 are right where many times are equal, none is not
        return f"{len(edges)} bin_edges do not cut time for the {outputs} outputs of a survival model"
    if list(edges) != sorted(set(edges)):
        return "bin_edges do not ascend"
    if info.threshold is not None and not 0 <= info.threshold <= 1:
        return f"threshold {info.threshold} is no probability"
    if len(info.train_time) != len(info.train_event) or not set(info.train_event) <= {0, 1}:
        return "train_time and train_event are not one time and one 0 or 1 per patient"
    if info.sort_rows not in ("lattice", None):
        return f"sort_rows {info.sort_rows!r} is not known"
    for name in ("stride", "max_patches"):
        if getattr(info, name) is not None and not getattr(info, name) > 0:
            return f"{name} {getattr(info, name)} is not greater than 0"
    return None


def answer(logits: Float[Tensor, "models outputs"], info: BundleInfo) -> dict[str, float]:
    """Turn the logits of one slide into named numbers.

    Args:
        logits: One row per model.
        info: What the outputs mean.

    Returns:
        Means over the models: `prob_<class>` for each class, or `risk` and `hazard_<bin>`.
    """
    if info.task == "classification":
        probabilities = logits.softmax(-1).mean(0)
        return {f"prob_{name}": float(p) for name, p in zip(info.classes, probabilities, strict=True)}
    curve = (1 - hazards(logits)).cumprod(-1).mean(0)
    hazard = 1 - curve / torch.cat([torch.ones_like(curve[:1]), curve[:-1]])
    return {"risk": -float(curve.sum())} | {f"hazard_{k}": float(h) for k, h in enumerate(hazard)}


def base_columns(table: pd.DataFrame, info: BundleInfo) -> pd.DataFrame:
    """Return the columns of a table of predictions that are known before the model is asked."""
    columns = ["slide_id", "patient_id", *_TRUTH[info.task]]
    known = table[[name for name in columns if name in table]].reset_index(drop=True)
    if "time" in known and info.bin_edges:
        known["time_bin"] = time_bins(known["time"].to_numpy(np.float64), list(info.bin_edges))
    return known


def table_metrics(predictions: pd.DataFrame, info: BundleInfo) -> dict[str, float]:
    """Return the metrics of a table of predictions, at whatever level its rows are."""
    if info.task == "classification":
        return classification_table_metrics(predictions, info.classes, threshold=info.threshold)
    if not info.bin_edges:
        return survival_table_metrics(predictions, ties=info.c_index_ties)
    return survival_table_metrics(
        predictions,
        ties=info.c_index_ties,
        edges=np.array(info.bin_edges),
        train_time=list(info.train_time),
        train_event=list(info.train_event),
    )
