"""From settings to a checked cohort, its split and what the data decides; every fit begins here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pandas as pd
import torch
from torch import nn

from nnunet_gdla.errors import UserError
from nnunet_gdla.layers.redundancy import FixedSRP, GatedSRP
from nnunet_gdla.mil.bundle import resolved_arguments
from nnunet_gdla.mil.bundle_info import BundleInfo
from nnunet_gdla.mil.check import check_cohort
from nnunet_gdla.mil.cohort import Cohort, Columns, read_cohort
from nnunet_gdla.mil.cohort_events import event_meaning
from nnunet_gdla.mil.config_ranges import out_of_range, unused_of_split
from nnunet_gdla.mil.config_schema import Config, DataConfig, Found, ModelConfig
from nnunet_gdla.mil.gate_reach import reach_lines
from nnunet_gdla.mil.models import build_model
from nnunet_gdla.mil.module import epoch_metrics, prediction_table
from nnunet_gdla.mil.slides import read_slide
from nnunet_gdla.mil.slides.encoders import same_encoder
from nnunet_gdla.mil.slides.inspect import named_encoder
from nnunet_gdla.mil.splits import Split, audit_split, holdout_split, make_splits, read_split, split_lines
from nnunet_gdla.mil.survival import time_bin_edges
from nnunet_gdla.mil.tasks import DEFAULT_SELECTION, class_weights

__all__ = [
    "PARTS",
    "Prepared",
    "learned_from_data",
    "load_cohort",
    "prepare",
    "read_options",
    "resolved",
    "selection",
    "silent",
    "split_tables",
]

PARTS: Final = ("train", "val", "test")
MANY_SLIDES: Final = 64


@dataclass(frozen=True)
class Prepared:
    """Everything that is known before the first step.

    Attributes:
        config: Settings, with `found` filled in.
        cohort: The slides.
        split: Who is where.
        tables: Rows of the cohort per part.
        info: What the outputs of the model will mean.
    """

    config: Config
    cohort: Cohort
    split: Split
    tables: Mapping[str, pd.DataFrame]
    info: BundleInfo


def silent(line: str) -> None:
    """Say nothing."""


def prepare(
    config: Config,
    *,
    split_file: Path | None = None,
    check_files: bool = True,
    say: Callable[[str], None] = silent,
    progress: bool = False,
) -> Prepared:
    """Read the cohort, split it, check all files, and take widths, classes and bin edges from the data.

    Args:
        config: Settings.
        split_file: Split of a run that is resumed, instead of drawing one.
        check_files: Look at every file. Otherwise the first one stands for all: they were checked before.
        say: Where the report goes, line by line.
        progress: Show a bar.

    Raises:
        UserError: If anything in it would break the training or spoil its results.
    """
    _check_training(config)
    model = _small_model(config)
    options = read_options(config.data) | {"need_coords": bool(model.needs_coords)}
    cohort = load_cohort(config.data)
    split = read_split(split_file) if split_file else _drawn(config, cohort)
    audit_split(split, cohort)
    if unused := unused_of_split(config.split, column="split" in cohort.table):
        cohort.remarks.warnings.append(unused)
    for line in (*cohort.remarks.lines, *split_lines(split, cohort)):
        say(line)
    tables = split_tables(cohort, split)
    _learnable(cohort, tables["train"])
    class_weights(config.train.class_weights, tables["train"], cohort.classes)
    if check_files:
        workers = config.train.workers if len(cohort) >= MANY_SLIDES else 0
        report = check_cohort(cohort, options, workers=workers, progress=progress)
        for line in (*report.lines, *_row_order_lines(model, config)):
            say(line)
        in_dim, encoder = report.in_dim, report.encoder
    else:
        slide = read_slide(tables["train"]["path"].iloc[0], **options)
        in_dim, encoder = slide.features.shape[1], named_encoder(cohort.paths.values(), config.data.feature_key)
    info = learned_from_data(config, cohort, tables["train"], in_dim)
    info = replace(info, encoder=encoder, needs_coords=options["need_coords"])
    found = Found(info.in_dim, list(info.classes), list(info.bin_edges), info.encoder)
    _compare(config.found, found)
    prepared = Prepared(replace(resolved(config), found=found), cohort, split, tables, info)
    selection(prepared)
    for line in reach_lines(model, config.train, len(tables["train"])):
        say(line)
    return prepared


def selection(prepared: Prepared) -> str:
    """Return the validation metric that selects the epoch.

    Raises:
        UserError: If there is no such metric for the task.
    """
    wanted = prepared.config.train.select
    if wanted == "auto":
        return DEFAULT_SELECTION[prepared.info.task]
    table = prepared.tables["val"]
    no_answer = prediction_table(table, torch.zeros(len(table), prepared.info.num_outputs), prepared.info)
    known = ["loss", *epoch_metrics(no_answer, prepared.info)]
    if wanted not in known:
        raise UserError(f"train.select: there is no metric {wanted!r}; choose one of {', '.join(known)}")
    return wanted


def split_tables(cohort: Cohort, split: Split) -> dict[str, pd.DataFrame]:
    """Return the rows of the cohort per part of a split, in the split's order."""
    rows = cohort.table.set_index("slide_id", drop=False)
    return {part: rows.loc[list(getattr(split, part))].reset_index(drop=True) for part in PARTS}


def load_cohort(data: DataConfig) -> Cohort:
    """Read the table of the settings."""
    columns = Columns(
        slide=data.slide,
        label=data.label,
        time=data.time,
        event=data.event,
        site=data.site,
        centre=data.centre,
        split=data.split,
    )
    folders = [data.features] if isinstance(data.features, str) else data.features
    return read_cohort(
        Path(data.table),
        [Path(folder) for folder in folders],
        task=data.task,
        columns=columns,
        patient=data.patient,
        sample_types=data.sample_types,
        event_map=data.event_map,
        event_is_censoring=data.event_is_censoring,
        label_map=data.label_map,
        allow_missing=data.allow_missing,
    )


def read_options(data: DataConfig) -> dict[str, Any]:
    """Return how slides are read."""
    names = ("feature_key", "stride", "unit", "max_patches", "sort_rows", "allow_isolated")
    return {name: getattr(data, name) for name in names}


def learned_from_data(config: Config, cohort: Cohort, train: pd.DataFrame, in_dim: int) -> BundleInfo:
    """Return the description of the model that these data ask for.

    Raises:
        UserError: If the model has no such setting, or the times of the training slides give no bins.
    """
    model = config.model
    info = BundleInfo(
        task=config.data.task,
        model=model.name,
        model_kwargs=resolved_arguments(model.name, model.arguments()),
        in_dim=in_dim,
        num_outputs=config.train.num_bins if config.data.task == "survival" else len(cohort.classes),
        c_index_ties=config.train.c_index_ties,
        **read_options(config.data),
    )
    if info.task == "classification":
        return replace(info, classes=tuple(cohort.classes))
    patients = train.groupby("patient_id").first()
    time, event = patients["time"].tolist(), patients["event"].astype(int).tolist()
    edges = time_bin_edges(time, event, config.train.num_bins)
    data = config.data
    event_map = None if data.event_map is None else event_meaning(data.event_map, None)
    info = replace(info, event_column=data.event, event_is_censoring=data.event_is_censoring, event_map=event_map)
    return replace(info, bin_edges=tuple(edges.tolist()), train_time=tuple(time), train_event=tuple(event))


def _small_model(config: Config) -> nn.Module:
    """Build the model for narrow features, which tells whether its settings go together before any slide is read."""
    model = config.model
    arguments = resolved_arguments(model.name, model.arguments())
    if model.name == "grid_vit":
        raise UserError("model.name grid_vit reads images, not features of slides; choose another model")
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.train.seed)
            built = build_model(model.name, 8, 2, **arguments)
    except (TypeError, ValueError) as error:
        raise UserError(f"the settings of the model do not work: {error}") from None
    correction = str(arguments.get("correction")).partition(":")[0]
    acts = any(isinstance(module, GatedSRP | FixedSRP) for module in built.modules())
    if correction in ("srp", "fixed") and not acts:
        raise UserError(
            f"with depth {arguments.get('depth')} there is no block in which {correction} acts; set model.depth to 2 "
            "or more"
        )
    return built


def _row_order_lines(model: nn.Module, config: Config) -> list[str]:
    if not getattr(model, "depends_on_row_order", False) or config.data.sort_rows is not None:
        return []
    return [
        f"PASS the answers of this model ({config.model.name}) depend on the order of patches in a file; "
        "data.sort_rows: lattice sorts them, for files that were not all written by one tool"
    ]


def _check_training(config: Config) -> None:
    """Refuse what can be seen without the data."""
    train = config.train
    if complaint := out_of_range(config):
        raise UserError(complaint)
    if config.data.task != "survival" and config.data.event_is_censoring is not None:
        raise UserError("data.event_is_censoring is for survival; remove it")
    if config.data.task == "survival" and train.class_weights is not None:
        raise UserError("train.class_weights is for classification; remove it (train.sampling balances events)")


def _learnable(cohort: Cohort, train: pd.DataFrame) -> None:
    """Refuse a training that never shows one of the classes."""
    if cohort.task != "classification":
        return
    seen = sorted(set(train["label"]))
    if len(seen) < 2:
        raise UserError(f"all training slides are of class {', '.join(seen)}; a classifier needs two")
    unseen = [name for name in cohort.classes if name not in seen]
    if unseen:
        what = f"class {unseen[0]} has" if len(unseen) == 1 else f"classes {', '.join(unseen)} have"
        raise UserError(
            f"{what} no training slide; the model could never learn {'it' if len(unseen) == 1 else 'them'}: split "
            "otherwise, or leave these slides out of the table (data.label_map can join classes)"
        )


def resolved(config: Config) -> Config:
    """Return the settings with the model's defaults written out."""
    known = set(ModelConfig.__dataclass_fields__) - {"name", "extra"}
    arguments = resolved_arguments(config.model.name, config.model.arguments())
    named = {name: value for name, value in arguments.items() if name in known}
    extra = {name: value for name, value in arguments.items() if name not in known}
    return replace(config, model=ModelConfig(name=config.model.name, **named, extra=extra))


def _drawn(config: Config, cohort: Cohort) -> Split:
    split = config.split
    if split.scheme == "paper":
        return holdout_split(cohort.table, split.seed, rule=split.rule)
    return make_splits(
        cohort,
        split.scheme,
        seed=split.seed,
        folds=split.folds,
        fold=split.fold,
        file=Path(split.file) if split.file else None,
        centre=split.centre,
        val_share=split.val_share,
        test_share=split.test_share,
        allow_missing=config.data.allow_missing,
    )


def _compare(before: Found | None, now: Found) -> None:
    if before is None:
        return
    if before.in_dim != now.in_dim:
        raise UserError(f"features are {now.in_dim} wide, the settings were made with {before.in_dim} (found.in_dim)")
    if not same_encoder(before.encoder, now.encoder):
        raise UserError(
            f"features come from {now.encoder}, the settings were made with {before.encoder} (found.encoder)"
        )
    if before.classes != now.classes:
        raise UserError(
            f"the table has the classes {', '.join(now.classes)}, the settings were made with "
            f"{', '.join(before.classes)} (found.classes); remove the section found to train on the new ones"
        )
