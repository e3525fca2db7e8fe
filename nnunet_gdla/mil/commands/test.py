"""`nnunet-gdla-mil test`: a trained model on another cohort; nothing is fitted to it."""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from nnunet_gdla.errors import UserError
from nnunet_gdla.files import replaced_folder
from nnunet_gdla.mil.bundle import load_bundles, load_info
from nnunet_gdla.mil.bundle_info import BundleInfo
from nnunet_gdla.mil.cohort import Columns, read_cohort
from nnunet_gdla.mil.cohort_events import event_meaning
from nnunet_gdla.mil.commands.shared import bar_wanted, mapping, new_folder, say
from nnunet_gdla.mil.config_schema import FEWEST_DRAWS
from nnunet_gdla.mil.device import pick_device
from nnunet_gdla.mil.evaluate import evaluate, metric_lines, predict_table, rule_lines, write_evaluation
from nnunet_gdla.mil.files import write_json
from nnunet_gdla.mil.report import write_figures
from nnunet_gdla.words import counted

__all__ = ["run"]


def run(args: argparse.Namespace) -> int:
    """Predict, compare with the truth, write predictions, metrics and figures."""
    table = Path(args.cohort)
    out = new_folder(args.out or f"{table.stem}_test")
    if args.workers < 0:
        raise UserError(f"--workers {args.workers}: give 0 (no extra process) or more")
    if args.bootstrap < FEWEST_DRAWS:
        raise UserError(f"--bootstrap {args.bootstrap}: an interval needs {FEWEST_DRAWS} draws or more, 1000 are usual")
    bundle = load_bundles(args.model, pick_device(args.device))
    if args.feature_key:
        bundle = dataclasses.replace(bundle, info=dataclasses.replace(bundle.info, feature_key=args.feature_key))
    event_map, censoring = _event_reading(args, [load_info(folder) for folder in args.model])
    cohort = read_cohort(
        table,
        [Path(folder) for folder in args.features or [table.parent]],
        task=bundle.info.task,
        columns=Columns(args.slide_column, args.label_column, args.time_column, args.event_column),
        patient=args.patient_column,
        event_map=event_map,
        event_is_censoring=censoring,
        label_map=mapping(args.label_map, "--label-map", str),
        classes=bundle.info.classes or None,
    )
    if event_map and not args.event_map:
        words = _in_words(event_map, None)
        cohort.remarks.notes.append(f"column {args.event_column}: events are read as in the training ({words})")
    for line in cohort.remarks.lines:
        say(line)
    predictions = predict_table(bundle, cohort.table, workers=args.workers, progress=bar_wanted())
    metrics = evaluate(predictions, bundle.info, bootstrap=args.bootstrap)
    with replaced_folder(out, option="--out") as folder:
        write_evaluation(folder, "test", predictions, metrics, bundle.info.task)
        write_json(folder / "bundle.json", dataclasses.asdict(bundle.info) | {"bundles": list(bundle.folders)})
        figures = write_figures(folder)
    for line in [*metric_lines({"test": metrics}), *rule_lines({"test": predictions}, bundle.info)]:
        say(line)
    say(
        f"{out}: predictions, metrics, {counted(len(figures), 'figure')}; with the thresholds and edges of the training"
    )
    return 0


def _event_reading(
    args: argparse.Namespace, infos: Sequence[BundleInfo]
) -> tuple[Mapping[str, int] | None, bool | None]:
    """Event map and event_is_censoring: as said here, else as in the trainings; they must agree."""
    said = mapping(args.event_map, "--event-map", int)
    if said or args.event_is_censoring is not None or infos[0].task != "survival":
        return said, None if args.event_is_censoring is None else args.event_is_censoring == "true"
    readings = [_as_in_training(args.event_column, info) for info in infos]
    if any(event_meaning(*each) != event_meaning(*readings[0]) for each in readings):
        ways = "; ".join(f"{folder}: {_in_words(*each)}" for folder, each in zip(args.model, readings, strict=True))
        raise UserError(
            f"the models do not read column {args.event_column} alike ({ways}): say by --event-is-censoring true or "
            "false, or by --event-map, what its entries mean"
        )
    return next((each for each in readings if each != (None, None)), (None, None))


def _as_in_training(column: str, info: BundleInfo) -> tuple[Mapping[str, int] | None, bool | None]:
    """What the training said about a column of this name; another column is not guessed at."""
    if column == info.event_column:
        return info.event_map, info.event_is_censoring
    if info.event_map is not None:
        raise UserError(
            f"the training read column {info.event_column} by an event_map ({_in_words(info.event_map, None)}); say by "
            f"--event-map what the entries of column {column} mean (--event-is-censoring false: 1 is the event)"
        )
    if info.event_is_censoring:
        raise UserError(
            f"1 meant censored in column {info.event_column} of the training; say by --event-is-censoring true or "
            f"false whether it does in column {column}"
        )
    return None, None


def _in_words(event_map: Mapping[str, int] | None, censoring: bool | None) -> str:
    if event_map is not None:
        return ", ".join(f"{entry}={value}" for entry, value in event_map.items())
    return "1 means censored" if censoring else "1 is the event"
