"""Arguments of `nnunet-gdla convert` and `nnunet-gdla recipe`. Standard library only."""

import argparse
from pathlib import Path

from nnunet_gdla.commands.whole_numbers import positive
from nnunet_gdla.recipes.catalogue import PAPER_TRAINER, PATCH, RECIPES

__all__ = ["CONVERT_DETAILS", "CONVERT_SUMMARY", "RECIPE_DETAILS", "RECIPE_SUMMARY", "convert", "recipe"]

CONVERT_SUMMARY = "turns a download of one of the paper's datasets into an nnU-Net raw dataset with its split"
CONVERT_DETAILS = f"""\
Reads the public layout of a dataset, writes imagesTr, labelsTr, imagesTs, labelsTs, dataset.json and splits_final.json,
and puts the splits where nnU-Net reads them. Prints what it found, and names every file that it leaves out. The dataset
appears when it is complete; after Ctrl-C the same command goes on where it was.

Splits: Synapse has TransUNet's 18 / 12 cases. The others have no published list: "paper-ratio, seed 0" is drawn in the
paper's ratio, all images of a patient, a lesion or with equal bytes on one side. Or your own, --split FILE:
  {{"train": [names], "val": [names], "test": [names]}}, nnU-Net's list of folds, or CSV with the columns case and part
(separated by comma, semicolon or tab).

Images: BUSI becomes grey, HAM10000 and PH2 RGB png; the paper scales these to {PATCH} x {PATCH} first (--size {PATCH}).
ACDC and the Synapse release keep voxels and spacing; prepared copies of Synapse are in 0..1 and have no spacing.
Synapse labels are written as 1 spleen, 2 right kidney, 3 left kidney, 4 gallbladder, 5 pancreas, 6 liver, 7 stomach,
8 aorta, whichever numbering the copy has; the size of the liver tells which one that is.

examples:
  nnunet-gdla convert busi Dataset_BUSI_with_GT -d 503 --size {PATCH}
  nnunet-gdla convert synapse RawData -d 501 -np 4
  nnunet-gdla convert acdc database -d 502 --split mine.json"""

RECIPE_SUMMARY = "prints the commands from a dataset's download page to the paper's table row"
RECIPE_DETAILS = """\
Prints every command, the paper's number to compare with, and what differs from the paper. With --write-plans, which is
one of the printed steps, it writes nnUNetGDLAPaperPlans: our planner's plans with the paper's patch, batch and
intensities, and its epochs, steps, warm-up, augmentation and seed, which trainers with _Paper in their name read.

With --runs N it does what is not done yet of plans, preprocessing, and N times training, prediction and evaluation
with seeds 42, 43, ..., and ends in a table of the runs, their mean and spread. After an interruption the same command
goes on where it was.

examples:
  nnunet-gdla recipe busi
  nnunet-gdla recipe acdc -d 27
  nnunet-gdla recipe busi -d 503 --write-plans
  nnunet-gdla recipe busi -d 503 --runs 3
  nnunet-gdla recipe ph2 --runs 3 -tr nnUNetTrainerPVTSelfAttn_Paper"""


def convert(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `nnunet-gdla convert`."""
    add = parser.add_argument
    add("name", metavar="NAME", choices=sorted(RECIPES), help="one of " + ", ".join(sorted(RECIPES)))
    add("source", metavar="SOURCE", type=Path, help="folder with the unpacked download")
    add("-d", "--dataset-id", metavar="ID", type=_number, required=True, help="number of the dataset, 1 to 999")
    add("--split", metavar="FILE", type=Path, help="your own split, JSON or CSV")
    add("--out", metavar="FOLDER", type=Path, help="folder of raw datasets (default: what nnUNet_raw says)")
    add("-np", "--processes", metavar="N", type=positive, default=1, help="cases at a time (default: %(default)s)")
    add("--size", metavar="PX", type=_edge, help="scale images of busi, ham10000 and ph2 to a square of this edge")
    add(
        "--label-order",
        choices=("auto", "btcv13", "btcv8", "prepared8"),
        default="auto",
        help="synapse: numbering of the organs in the copy, where their sizes leave a doubt (default: %(default)s)",
    )
    add("--allow-leakage", action="store_true", help="take a split that has a patient or a lesion on both sides")
    add("--overwrite", action="store_true", help="replace a dataset that this command has made before")


def recipe(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `nnunet-gdla recipe`."""
    add = parser.add_argument
    add("name", metavar="NAME", choices=sorted(RECIPES), help="one of " + ", ".join(sorted(RECIPES)))
    add("-d", "--dataset-id", metavar="ID", type=_number, help="number of the dataset (default: 501 to 505)")
    add("--write-plans", action="store_true", help="write nnUNetGDLAPaperPlans from nnUNetGDLAPlans of the dataset")
    add("--overwrite", action="store_true", help="replace other plans of that name")
    add("--runs", metavar="N", type=positive, help="train, predict and evaluate so often, each with its seed")
    add("-tr", "--trainer", metavar="NAME", default=PAPER_TRAINER, help="trainer with _Paper (default: %(default)s)")
    add(
        "-device", "--device", choices=("cuda", "cpu", "mps"), default="cuda", help="with --runs (default: %(default)s)"
    )


def _edge(text: str) -> int:
    number = positive(text)
    if number > 4096:
        raise argparse.ArgumentTypeError(f"{number} is above 4096 pixels")
    return number


def _number(text: str) -> int:
    number = positive(text)
    if number > 999:
        raise argparse.ArgumentTypeError(f"{number} is above 999, the last number of an nnU-Net dataset")
    return number
