"""`nnunet-gdla-mil validate`: the validation metrics of a finished run once more."""

import argparse
from pathlib import Path

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.bundle import load_bundle
from nnunet_gdla.mil.commands.shared import bar_wanted, say
from nnunet_gdla.mil.config import load_config
from nnunet_gdla.mil.device import pick_device
from nnunet_gdla.mil.evaluate import evaluate, metric_lines, predict_table, rule_lines
from nnunet_gdla.mil.prepare import load_cohort, split_tables
from nnunet_gdla.mil.splits import read_split

__all__ = ["run"]


def run(args: argparse.Namespace) -> int:
    """Predict the validation slides with the run's bundle and print the metrics."""
    folder = Path(args.run)
    if not (folder / "config.yaml").is_file():
        raise UserError(f"{folder} is no run: there is no config.yaml in it")
    config = load_config(folder / "config.yaml")
    bundle = load_bundle(folder, pick_device(args.device))
    table = split_tables(load_cohort(config.data), read_split(folder / "split.csv"))["val"]
    predictions = predict_table(bundle, table, workers=config.train.workers, progress=bar_wanted())
    metrics = evaluate(predictions, bundle.info, bootstrap=config.train.bootstrap, seed=config.train.seed)
    for line in [*metric_lines({"val": metrics}), *rule_lines({"val": predictions}, bundle.info)]:
        say(line)
    return 0
