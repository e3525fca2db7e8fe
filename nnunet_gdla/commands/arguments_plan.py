"""Arguments of `nnunet-gdla plan`. Standard library only, so that `--help` answers at once."""

import argparse

__all__ = ["DETAILS", "ENCODERS", "SUMMARY", "plan"]

ENCODERS = ("pvt_v2_b0", "pvt_v2_b1", "pvt_v2_b2", "pvt_v2_b3", "pvt_v2_b4", "pvt_v2_b5")
SUMMARY = "fits patch and batch of our network to a dataset and your GPU or RAM"
DETAILS = """\
Writes plans for a dataset, as `nnUNetv2_plan_experiment -pl nnUNetPlannerGDLA` does, takes the fingerprint first where
there is none or raw files have changed since, and prints the training command. Preprocessed data that fit are used
again: earlier ones of the same plans, or the stock ones; not where raw files have changed since. New ones get a new
folder, so that trainings that read the old one go on.
`nnUNetv2_plan_and_preprocess` instead deletes its folder and makes it anew.

examples:
  nnunet-gdla plan -d 4 --preprocess
  nnunet-gdla plan -d 4 -gpu_memory_target 24
  nnunet-gdla plan -d 4 -e pvt_v2_b0 --device cpu --memory 16 --preprocess
  nnunet-gdla plan -d Dataset004_Hippocampus --patch-size 224 224 --batch-size 24 --plans-name nnUNetGDLAPlans_224"""


def plan(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `nnunet-gdla plan`."""
    add = parser.add_argument
    add("-d", "--dataset", metavar="DATASET", required=True, help="the dataset: its number or its name")
    add(
        "-gpu_memory_target",
        dest="gpu_memory_target",
        metavar="GB",
        type=float,
        help="memory of the GPU that will train (default: 8, as in nnU-Net)",
    )
    add("-e", "--encoder", choices=ENCODERS, default="pvt_v2_b2", help="default: %(default)s")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="what will train (default: %(default)s)")
    add("--memory", metavar="GB", type=float, help="with --device cpu: RAM for the training (default: 8)")
    add("--preprocess", action="store_true", help="preprocess too, unless the data are there already")
    add(
        "--plans-name", metavar="NAME", help="default: nnUNetGDLAPlans, for other encoders nnUNetGDLAPlans_B0 and so on"
    )
    add("--overwrite", action="store_true", help="replace plans of that name that another planner or program made")
    add("--patch-size", metavar=("HEIGHT", "WIDTH"), nargs=2, type=int, help="this patch instead of a fitted one")
    add("--batch-size", metavar="N", type=int, help="this batch instead of a fitted one")
    add("-np", dest="processes", metavar="N", type=int, help="processes (default: as many as nnU-Net takes)")
