"""`nnunet-gdla-mil predict`: answers for slides without labels."""

import argparse
import dataclasses
from pathlib import Path

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.bundle import load_bundles
from nnunet_gdla.mil.cohort import folder_cohort
from nnunet_gdla.mil.commands.shared import bar_wanted, say
from nnunet_gdla.mil.device import pick_device
from nnunet_gdla.mil.evaluate import predict_table
from nnunet_gdla.mil.files import write_csv
from nnunet_gdla.words import counted

__all__ = ["run"]


def run(args: argparse.Namespace) -> int:
    """Write one row per slide: probabilities and the class called, or risk and hazards."""
    out = Path(args.out)
    if out.exists():
        raise UserError(f"{out} exists; choose another --out")
    *models, features = args.model if args.features is None else (*args.model, args.features)
    if not models:
        raise UserError(f"predict what? Name the folder of H5 files too: --model {features} FOLDER")
    if args.workers < 0:
        raise UserError(f"--workers {args.workers}: give 0 (no extra process) or more")
    bundle = load_bundles(models, pick_device(args.device))
    if args.feature_key:
        bundle = dataclasses.replace(bundle, info=dataclasses.replace(bundle.info, feature_key=args.feature_key))
    cohort = folder_cohort(Path(features))
    for line in cohort.remarks.lines:
        say(line)
    predictions = predict_table(bundle, cohort.table, workers=args.workers, progress=bar_wanted())
    info = bundle.info
    if info.task == "classification":
        columns = predictions[[f"prob_{name}" for name in info.classes]]
        predictions.insert(1, "predicted", [info.classes[i] for i in columns.to_numpy().argmax(1)])
        if info.threshold is not None:
            above = predictions[f"prob_{info.classes[1]}"] >= info.threshold
            predictions.insert(2, "called_at_threshold", [info.classes[int(yes)] for yes in above])
    elif info.median_risk is not None:
        predictions.insert(1, "group", (predictions["risk"] > info.median_risk).map({True: "high", False: "low"}))
    write_csv(out, predictions.drop(columns="patient_id"))
    say(f"{out}: {counted(len(predictions), 'slide')}, {counted(len(bundle.models), 'model')}")
    return 0
