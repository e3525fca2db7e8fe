"""`nnunet-gdla convert`: a download becomes an nnU-Net raw dataset."""

import argparse
from collections.abc import Iterable
from pathlib import Path

from nnunet_gdla.errors import UserError
from nnunet_gdla.recipes.catalogue import RECIPES, Recipe
from nnunet_gdla.recipes.conversion import JOURNAL, Job, Result, convert
from nnunet_gdla.recipes.files import write_text
from nnunet_gdla.recipes.folders import dataset_folder, outdated, place_splits, raw_folder, read_splits
from nnunet_gdla.recipes.layout import Found, Options, Skipped
from nnunet_gdla.recipes.sources import find
from nnunet_gdla.recipes.splits import Split, audit, paper_split, read_split
from nnunet_gdla.recipes.summary import found_lines, result_lines, skipped_lines
from nnunet_gdla.words import counted

__all__ = ["run"]

SKIPPED = "skipped_files.txt"
_SHOWN = 10


def run(args: argparse.Namespace) -> int:
    """Convert one dataset and say what was found, written and left out."""
    recipe = RECIPES[args.name]
    options = _options(args, recipe)
    folder = dataset_folder(raw_folder(args.out), args.dataset_id, recipe.folder_name(args.dataset_id))
    found = find(args.name, args.source.resolve(), options, args.processes)
    _print(found_lines(found, recipe))
    split = _split(args.split, found, recipe)
    _refuse_leakage(split, found, allowed=args.allow_leakage)
    outside = [Skipped(case.name, _outside(case.pool, split)) for case in found.cases if case.name not in split.named]
    description = {"reference": recipe.download[0], "recipe": f"nnunet-gdla recipe {recipe.name}"}
    placed = read_splits(folder)
    job = Job(found, split, options, folder, description, args.processes, args.overwrite)
    result = _convert(job)
    skipped = [*found.skipped, *outside, *result.skipped]
    write_text(folder / SKIPPED, "".join(f"{line}\n" for line in skipped_lines(skipped, everything=True)))
    _print(result_lines(result, found))
    _print(skipped_lines(skipped))
    if skipped:
        print(f"{len(skipped)} skipped, all named in {folder / SKIPPED}")
    print(place_splits(folder, placed))
    old = outdated(folder, folder / JOURNAL)
    if old:
        print(
            f"NOTE: {', '.join(old)} in nnUNet_preprocessed are of the dataset before: "
            f"nnunet-gdla plan -d {args.dataset_id} --preprocess makes them anew"
        )
    print(f"dataset: {folder}\nnext: nnunet-gdla recipe {recipe.name} -d {args.dataset_id}")
    return 0


def _convert(job: Job) -> Result:
    try:
        return convert(job)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the same command goes on from here") from None
    except OSError as error:
        if error.filename is None:
            raise
        raise UserError(f"{error.filename} cannot be written or read ({error.strerror}); look at the folder") from error


def _options(args: argparse.Namespace, recipe: Recipe) -> Options:
    if args.size is not None and not recipe.square:
        raise UserError(f"--size is for photographs; volumes of {recipe.title} keep their voxels, the plans scale them")
    if args.label_order != "auto" and recipe.name != "synapse":
        raise UserError("--label-order is for synapse only")
    return Options(args.size, args.label_order)


def _split(file: Path | None, found: Found, recipe: Recipe) -> Split:
    if file is not None:
        return read_split(file, found.cases)
    split = paper_split(found.cases, recipe)
    if recipe.lists is not None:
        missing = [f"case{number}" for part in recipe.lists for number in part if f"case{number}" not in split.named]
        if missing:
            print(f"NOTE: {counted(len(missing), 'case')} of the published list not there: {', '.join(missing)}")
    return split


def _refuse_leakage(split: Split, found: Found, *, allowed: bool) -> None:
    torn = audit(split, found.cases)
    if not torn:
        return
    groups = f"{counted(len(torn), 'group')} of a patient, a lesion or copies"
    words = f"{groups} on both sides of the split: {'; '.join(torn[:_SHOWN])}"
    if not allowed:
        raise UserError(f"{words}; mend the split, or add --allow-leakage if you need it as it is")
    print(f"WARNING: {words}")


def _outside(pool: str, split: Split) -> str:
    return (
        f"of the folder {pool}, outside the paper's split; name it in --split"
        if pool
        else f"in no part of the split ({split.title})"
    )


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
