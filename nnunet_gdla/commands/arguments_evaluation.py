"""Arguments of `nnunet-gdla evaluate` and `nnunet-gdla compare`. Standard library only."""

import argparse

from nnunet_gdla.commands.whole_numbers import natural, positive, two_or_more

__all__ = ["CONVENTIONS", "DETAILS", "MISSED", "SUMMARY", "compare", "evaluate"]

SUMMARY = {
    "evaluate": "measures predicted masks: Dice, IoU, HD95, ASSD, NSD, pixel accuracy",
    "compare": "tests two models on the same cases: paired differences with intervals and p values",
}

DETAILS = {
    "evaluate": """\
Compares every mask in PREDICTIONS with the mask of the same name in TRUTH, in any format that nnU-Net reads, and writes
metrics.csv (a row a case and class), summary.json (mean, median, standard deviation, bootstrap intervals) and
boxplot.png. Classes, regions and ignore label are those of the dataset.json, which is looked for in TRUTH, in the
folder above it and in PREDICTIONS; without one, every label value but 0 is a class.

Conventions: "standard" leaves what is undefined (empty masks) out of the means and counts it; distances in mm; HD95 is
the greater of the two directed 95th percentiles. "transunet" counts as many published tables do: a prediction without
truth has Dice 1 and HD95 0, and truth without prediction, or neither, Dice 0 and HD95 0; distances in voxels; HD95 is
the 95th percentile of the distances of both directions pooled; ASSD, IoU and NSD stay undefined where "standard" has
them so. "monai" leaves out images whose truth is empty, as the GDLA paper's evaluation of its two-dimensional sets
does, and is "standard" otherwise. In all ASSD is the mean over all surface voxels of both masks pooled.

examples:
  nnunet-gdla evaluate masks nnUNet_raw/Dataset112_BUSI/labelsTs
  nnunet-gdla evaluate masks truth --dataset-json nnUNet_raw/Dataset112_BUSI/dataset.json --out scores
  nnunet-gdla evaluate masks truth --convention transunet --out scores_as_published
  nnunet-gdla evaluate masks truth --tolerance 2 -np 4
  nnunet-gdla evaluate masks truth --missed worst --out scores_with_missed""",
    "compare": """\
A and B are folders that `nnunet-gdla evaluate` wrote (or the prediction folders in which it left them, or its
metrics.csv), or, with
--truth, two folders of predicted masks. Cases are paired by name; for every class and metric: mean of A minus B,
95 % interval from a bootstrap of pairs, two-sided Wilcoxon signed-rank test, p adjusted for the number of classes by
Holm. Pairs in which a value is undefined for both are left out and counted; where it is undefined for one of the two
only, such as the distance of an object that A misses and B finds, no difference is called. Writes comparison.csv and
differences.png.

examples:
  nnunet-gdla compare gdla/evaluation unet/evaluation
  nnunet-gdla compare gdla_masks unet_masks --truth nnUNet_raw/Dataset112_BUSI/labelsTs --out gdla_against_unet""",
}

CONVENTIONS = ("standard", "transunet", "monai")
MISSED = ("leave-out", "worst")


def evaluate(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `evaluate`."""
    add = parser.add_argument
    add("predictions", metavar="PREDICTIONS", help="folder of predicted masks")
    add("truth", metavar="TRUTH", help="folder of true masks")
    _counting(parser)
    where = "PREDICTIONS/evaluation, or PREDICTIONS/evaluation_transunet"
    add("--out", metavar="FOLDER", help=f"where to write (default: {where})")
    add("--require-all", action="store_true", help="stop unless every case has a prediction and a truth")
    _resampling(parser)


def compare(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `compare`."""
    add = parser.add_argument
    add("a", metavar="A", help="first model: results, or predicted masks with --truth")
    add("b", metavar="B", help="second model")
    add("--truth", metavar="FOLDER", help="folder of true masks; A and B are then folders of predicted masks")
    _counting(parser)
    add("--out", metavar="FOLDER", default="comparison", help="where to write (default: ./%(default)s)")
    _resampling(parser)


def _counting(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--dataset-json", metavar="FILE", help="names the classes (default: looked for beside the masks)")
    add("--convention", choices=CONVENTIONS, help="rules of counting (default: standard)")
    add("--tolerance", metavar="MM", type=float, help="of NSD, in mm; in voxels for transunet (default: 1)")
    add(
        "--missed",
        choices=MISSED,
        help="HD95 and ASSD of an object that one mask lacks: undefined and left out, or the image's diagonal "
        "(default: leave-out)",
    )
    add("-np", metavar="N", dest="processes", type=positive, help="cases side by side (default: CPU cores, up to 8)")


def _resampling(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--draws", metavar="N", type=two_or_more, default=2000, help="bootstrap resamples (default: %(default)s)")
    add("--seed", metavar="S", type=natural, default=0, help="same seed, same intervals (default: %(default)s)")
