"""`nnunet-gdla compare`: two models on the same cases."""

import argparse
from pathlib import Path

from nnunet_gdla.commands.evaluate import evaluate, print_remarks
from nnunet_gdla.errors import UserError
from nnunet_gdla.evaluation.comparison import (
    check_same_truth,
    compare_results,
    comparison_notes,
    comparison_table,
    write_comparison,
)
from nnunet_gdla.evaluation.conventions import CONVENTIONS, MISSED
from nnunet_gdla.evaluation.masks import is_mask_file
from nnunet_gdla.evaluation.missed import side_by_side
from nnunet_gdla.evaluation.output import default_folder, refuse_occupied
from nnunet_gdla.evaluation.results import METRICS_FILE, Results, read_results
from nnunet_gdla.words import counted

__all__ = ["run"]

_FOLDERS = (".", *(default_folder(name, missed) for missed in MISSED for name in CONVENTIONS))


def run(args: argparse.Namespace) -> int:
    """Compare, write the files and print the table; the exit code is 0."""
    folder = Path(args.out)
    refuse_occupied(folder, [Path(each) for each in (args.a, args.b, args.truth) if each])
    a, b = (_results(args, Path(folder)) for folder in (args.a, args.b))
    check_same_truth(a, b)
    lines, differences = compare_results(a, b, draws=args.draws, seed=args.seed)
    write_comparison(a, lines, differences, folder, title=f"A - B; A: {args.a}, B: {args.b}")
    print(f"\nA: {args.a}, {counted(len(a.cases), 'case')}\nB: {args.b}, {counted(len(b.cases), 'case')}\n")
    print(comparison_table(a, lines) + side_by_side(a, b) + comparison_notes(lines))
    for name, one, two in (("A", a, b), ("B", b, a)):
        only = [case for case in one.cases if case not in set(two.cases)]
        if only:
            print(f"\nonly in {name}, left out: {', '.join(only[:5])}{', ...' if len(only) > 5 else ''} ({len(only)})")
    print(f"\nwritten: {folder}")
    return 0


def _results(args: argparse.Namespace, folder: Path) -> Results:
    if args.truth:
        results = evaluate(args, folder, Path(args.truth))
        print_remarks(results)
        return results
    options = {
        "--dataset-json": args.dataset_json,
        "--convention": args.convention,
        "--tolerance": args.tolerance,
        "--missed": args.missed,
    }
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise UserError(f"{given[0]} needs --truth; the results in {folder} were counted when they were evaluated")
    if folder.name == METRICS_FILE and folder.is_file():
        folder = folder.parent
    found = next((folder / sub for sub in _FOLDERS if (folder / sub / METRICS_FILE).is_file()), None)
    if found is None:
        raise UserError(
            f"{folder} holds no {METRICS_FILE}; run nnunet-gdla evaluate on it first, or give the true masks "
            "with --truth"
        )
    _note_newer_masks(found)
    return read_results(found)


def _note_newer_masks(results: Path) -> None:
    """Say where masks were written after their results, which then are those of other masks."""
    written = (results / METRICS_FILE).stat().st_mtime
    beside = results.parent.glob("*") if results.name in _FOLDERS else ()
    newer = sorted(path.name for path in beside if is_mask_file(path) and path.stat().st_mtime > written)
    if newer:
        print(
            f"NOTE: {counted(len(newer), 'mask')} in {results.parent} (such as {newer[0]}) newer than the results "
            f"in {results.name}; evaluate again, or compare with --truth"
        )
