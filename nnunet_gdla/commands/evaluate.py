"""`nnunet-gdla evaluate`: a folder of predictions against a folder of truth."""

import argparse
from pathlib import Path

from nnunet_gdla.errors import UserError
from nnunet_gdla.evaluation.classes import LabelScheme, find_dataset_json, read_scheme
from nnunet_gdla.evaluation.conventions import LEAVE_OUT, STANDARD
from nnunet_gdla.evaluation.output import default_folder, refuse_occupied
from nnunet_gdla.evaluation.report import summarise_results, summary_notes, summary_table, write_report
from nnunet_gdla.evaluation.results import Results
from nnunet_gdla.evaluation.run import default_processes, evaluate_folders
from nnunet_gdla.words import counted

__all__ = ["evaluate", "print_remarks", "run"]

_SHOWN = 5


def run(args: argparse.Namespace) -> int:
    """Evaluate, write the files and print the means; the exit code is 0.

    Raises:
        UserError: If masks cannot be used or paired, or the folder of results is taken or cannot be written.
    """
    predictions, truth = Path(args.predictions), Path(args.truth)
    for each in (predictions, truth):
        if each.is_file():  # before the folder for results, which would lie in it
            raise UserError(f"{each} is a file; give the folder that holds the masks")
    if predictions.resolve() == truth.resolve():
        print(f"NOTE: {truth} is both PREDICTIONS and TRUTH, so every score is perfect\n")
    rules = args.convention or STANDARD
    folder = Path(args.out) if args.out else predictions / default_folder(rules, args.missed or LEAVE_OUT)
    refuse_occupied(folder, (predictions, truth))
    results = evaluate(args, predictions, truth)
    if args.require_all and (results.missing or results.extra):
        raise UserError(_unpaired(results) + "; add the files, or leave out --require-all")
    summaries = summarise_results(results, draws=args.draws, seed=args.seed)
    write_report(results, summaries, folder, draws=args.draws, seed=args.seed)
    some = any(metric.n > 1 for metrics in summaries.values() for metric in metrics.values())
    shown = "mean over cases [95 % interval]" if some else "mean over cases, without intervals"
    print(f"{counted(len(results.cases), 'case')}, {results.convention} convention: {shown}\n")
    print(summary_table(results, summaries) + summary_notes(results, summaries))
    print_remarks(results)
    print(f"\nwritten: {folder}")
    return 0


def evaluate(args: argparse.Namespace, predictions: Path, truth: Path) -> Results:
    """Evaluate one folder as the arguments say, and tell where the classes come from.

    Args:
        args: Those of `evaluate` or `compare`.
        predictions: Folder of predicted masks.
        truth: Folder of true masks.
    """
    return evaluate_folders(
        predictions,
        truth,
        scheme=_scheme(args.dataset_json, predictions, truth),
        rules=args.convention or STANDARD,
        tolerance=1.0 if args.tolerance is None else args.tolerance,
        missed=args.missed or LEAVE_OUT,
        processes=args.processes or default_processes(),
    )


def print_remarks(results: Results) -> None:
    """Print what the user should look at."""
    if results.missing or results.extra:
        print(f"\nleft out: {_unpaired(results)}")
    if results.remarks:
        more = f"\n  and {len(results.remarks) - _SHOWN} more" if len(results.remarks) > _SHOWN else ""
        print("\nlook at these:\n  " + "\n  ".join(results.remarks[:_SHOWN]) + more)


def _scheme(named: str | None, predictions: Path, truth: Path) -> LabelScheme | None:
    path = Path(named) if named else find_dataset_json(predictions, truth)
    if path is not None and path.is_dir():
        path = path / "dataset.json"
    if path is None:
        print("no dataset.json found: every label value but 0 is a class; name them with --dataset-json")
        return None
    print(f"classes from {path}")
    return read_scheme(path)


def _unpaired(results: Results) -> str:
    parts = []
    if results.missing:
        parts.append(f"{counted(len(results.missing), 'case')} without a prediction ({_some(results.missing)})")
    if results.extra:
        parts.append(f"{counted(len(results.extra), 'prediction')} without a truth ({_some(results.extra)})")
    return " and ".join(parts)


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
