"""`nnunet-gdla-mil test`: a trained model on another cohort; nothing is fitted to it."""

import argparse
import dataclasses
from pathlib import Path

from nnunet_gdla.errors import UserError
from nnunet_gdla.files import replaced_folder
from nnunet_gdla.mil.bundle import load_bundles
from nnunet_gdla.mil.bundle_info import BundleInfo
from nnunet_gdla.mil.cohort import Columns, read_cohort
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
    cohort = read_cohort(
        table,
        [Path(folder) for folder in args.features or [table.parent]],
        task=bundle.info.task,
        columns=Columns(args.slide_column, args.label_column, args.time_column, args.event_column),
        patient=args.patient_column,
        event_map=mapping(args.event_map, "--event-map", int),
        event_is_censoring=_event_is_censoring(args, bundle.info),
        label_map=mapping(args.label_map, "--label-map", str),
        classes=bundle.info.classes or None,
    )
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


def _event_is_censoring(args: argparse.Namespace, info: BundleInfo) -> bool | None:
    """What was said here, else in the training about a column of the same name; another column is not guessed at."""
    if args.event_is_censoring is not None:
        return bool(args.event_is_censoring == "true")
    if args.event_map or info.task != "survival" or args.event_column == info.event_column:
        return None if args.event_map else info.event_is_censoring
    if info.event_is_censoring:
        raise UserError(
            f"1 meant censored in column {info.event_column} of the training; say by --event-is-censoring true or "
            f"false whether it does in column {args.event_column}"
        )
    return None
