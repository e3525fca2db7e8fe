"""The command `nnunet-gdla`. Standard library only until a subcommand runs, so that `--help` answers at once."""

import argparse
import importlib
import sys
import warnings
from collections.abc import Sequence

from nnunet_gdla.command_line import Command, make_parser, run_command
from nnunet_gdla.commands import arguments_efficiency as efficiency
from nnunet_gdla.commands import arguments_evaluation as evaluation
from nnunet_gdla.commands import arguments_plan as plan
from nnunet_gdla.commands import arguments_recipes as recipes
from nnunet_gdla.commands import arguments_weights as weights
from nnunet_gdla.commands.whole_numbers import natural
from nnunet_gdla.variables import refuse_mistaken_paths

__all__ = ["main"]

_WITH_FOLDERS = ("plan", "convert", "recipe", "weights")  # of nnU-Net; doctor says itself what is wrong with them

DESCRIPTION = "PVT-GDLA inside a stock nnU-Net: checks, plans, public datasets, weights, evaluation, a demonstration."
EXAMPLES = """\
examples:
  nnunet-gdla doctor                 will everything work on this machine?
  nnunet-gdla doctor -d 4            ... and is dataset 4 fit for a training?
  nnunet-gdla plan -d 4              fit patch and batch to this GPU
  nnunet-gdla demo --out demo        train and predict on made-up images, about five minutes on two CPU cores
  eval "$(nnunet-gdla env)"          where nnU-Net does not find our trainers by itself

A training is nnU-Net's own command:
  nnUNetv2_train 4 2d 0 -tr nnUNetTrainerGDLA
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code, see `run_command`."""
    # torchvision, which timm imports, uses it; nobody who reads our output can do anything about that.
    warnings.filterwarnings("ignore", message="`torch.jit.interface` is deprecated", category=FutureWarning)
    return run_command(_parser(), argv, _run)


def _parser() -> argparse.ArgumentParser:
    return make_parser("nnunet-gdla", DESCRIPTION, EXAMPLES, COMMANDS)


def _run(args: argparse.Namespace) -> int:
    if args.command in _WITH_FOLDERS:
        refuse_mistaken_paths()
    code: int = importlib.import_module(f"nnunet_gdla.commands.{args.command}").run(args)
    return code


def _env_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--shell", choices=("bash", "fish", "powershell"), default=None, help="default: bash, on Windows powershell"
    )


def _doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-d", "--dataset", metavar="DATASET", help="also check this dataset: its number or its name")
    parser.add_argument("-p", "--plans", help="plans to check (default: nnUNetPlans, if there are any)")
    parser.add_argument("-c", "--configuration", default="2d", help="configuration of the plans (default: %(default)s)")
    parser.add_argument("-f", "--fold", type=_fold, help="fold that will be trained, or all (default: look at each)")
    parser.add_argument(
        "--c", dest="resume", action="store_true", help="the training will be continued: look at its checkpoint"
    )
    parser.add_argument("--full", action="store_true", help="read every value of the preprocessed data; takes longer")
    parser.add_argument("--json", action="store_true", help="print findings and verdict as one JSON object")
    parser.add_argument("-tr", "--trainer", default="nnUNetTrainerGDLA", help="trainer to check (default: %(default)s)")
    parser.add_argument(
        "-device", choices=("cpu", "cuda", "mps"), default=None, help="default: cuda where there is one, else cpu"
    )
    parser.add_argument(
        "--gpu", action="store_true", help="only compare this GPU's Triton kernels with the plain forms, and time both"
    )


def _fold(text: str) -> int | str:
    return text if text == "all" else natural(text)


def _demo_arguments(parser: argparse.ArgumentParser) -> None:
    from nnunet_gdla.commands.demo import DEFAULT_EPOCHS, DEFAULT_FOLDER

    add = parser.add_argument
    add(
        "--out",
        metavar="FOLDER",
        default=DEFAULT_FOLDER,
        help="folder for all files, new or empty (default: ./%(default)s)",
    )
    add("--epochs", metavar="N", type=int, default=DEFAULT_EPOCHS, help="length of the training (default: %(default)s)")
    add("--seed", metavar="S", type=int, default=0, help="same seed and CPU, same result (default: %(default)s)")
    add("--device", choices=("cpu", "cuda", "mps"), default="cpu", help="default: %(default)s")
    add("--overwrite", action="store_true", help="replace what an earlier demo left in the folder")


COMMANDS = {
    "doctor": Command(
        "says whether everything will work, and what to do if not",
        """\
Checks this Python, nnU-Net and its folders, whether our trainers and planners are found, the pretrained encoder, the
device, and one forward and backward pass. With -d also the dataset, before hours are lost on it: raw files, plans,
splits and preprocessed data, all that nnUNetv2_train with the same options will read, with --c its checkpoint too.
Prints PASS, WARN or FAIL lines; the exit code is 1 if anything failed.

examples:
  nnunet-gdla doctor
  nnunet-gdla doctor -d 4
  nnunet-gdla doctor -d 4 -p nnUNetGDLAPlans -f 0 --full
  nnunet-gdla doctor -d 4 -p nnUNetGDLAPlans -f 0 --c
  nnunet-gdla doctor -d Dataset004_Hippocampus -tr nnUNetTrainerGDLA_B0 --json
  nnunet-gdla doctor --gpu""",
        _doctor_arguments,
    ),
    "demo": Command(
        "trains and predicts on made-up images, without any download",
        """\
Makes a small dataset of made-up images, plans, trains a small network from scratch, predicts images it has not seen,
prints the Dice of each class and writes a picture. Ctrl-C stops it cleanly.

examples:
  nnunet-gdla demo
  nnunet-gdla demo --out /tmp/demo --epochs 2""",
        _demo_arguments,
    ),
    "plan": Command(plan.SUMMARY, plan.DETAILS, plan.plan),
    "convert": Command(recipes.CONVERT_SUMMARY, recipes.CONVERT_DETAILS, recipes.convert),
    "recipe": Command(recipes.RECIPE_SUMMARY, recipes.RECIPE_DETAILS, recipes.recipe),
    "weights": Command(weights.SUMMARY, weights.DETAILS, weights.weights),
    "evaluate": Command(evaluation.SUMMARY["evaluate"], evaluation.DETAILS["evaluate"], evaluation.evaluate),
    "compare": Command(evaluation.SUMMARY["compare"], evaluation.DETAILS["compare"], evaluation.compare),
    "efficiency": Command(efficiency.SUMMARY, efficiency.DETAILS, efficiency.efficiency),
    "env": Command(
        "prints the line by which nnU-Net finds our trainers where Python does not tell it",
        """\
An ordinary pip install needs none of this. Where the package was installed with `pip install --target`, is found
through PYTHONPATH, or runs with NNUNET_GDLA_NO_AUTOREGISTER=1, nnU-Net needs a variable that names our folder.
Folders that the variable names already are kept.

examples:
  eval "$(nnunet-gdla env)"                                     bash, zsh, sh
  nnunet-gdla env --shell fish | source
  nnunet-gdla env --shell powershell | Invoke-Expression
  python -m nnunet_gdla.cli env                                 where the command itself is not on the PATH""",
        _env_arguments,
    ),
}


if __name__ == "__main__":
    sys.exit(main())
