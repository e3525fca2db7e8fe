"""`nnunet-gdla recipe`: the commands from a download page to a table row."""

import argparse
import os
from collections.abc import Iterator

from nnunet_gdla.errors import UserError
from nnunet_gdla.recipes.catalogue import ITERATIONS_PER_EPOCH, PAPER_PLANS, PATCH, RECIPES, Recipe
from nnunet_gdla.recipes.folders import dataset_folder, raw_folder
from nnunet_gdla.recipes.paper_plans import write_paper_plans

__all__ = ["run"]

TRAINER = "nnUNetTrainerGDLA"


def run(args: argparse.Namespace) -> int:
    """Print the recipe, or write its plans."""
    recipe = RECIPES[args.name]
    dataset_id = args.dataset_id or recipe.dataset_id
    if args.write_plans:
        print(write_paper_plans(recipe, dataset_id, overwrite=args.overwrite))
        print(f"next: nnUNetv2_preprocess -d {dataset_id} -plans_name {PAPER_PLANS} -c 2d")
        return 0
    for line in (*_taken(recipe, dataset_id), *_lines(recipe, dataset_id), *_words(recipe)):
        print(line)
    return 0


def _taken(recipe: Recipe, dataset_id: int) -> Iterator[str]:
    """Say that another dataset has the number, where the folders of datasets are known."""
    if os.environ.get("nnUNet_raw"):
        try:
            dataset_folder(raw_folder(None), dataset_id, recipe.folder_name(dataset_id))
        except UserError as error:
            yield f"# NOTE: {error}"


def _lines(recipe: Recipe, dataset_id: int) -> Iterator[str]:
    """The commands; lines that are none begin with #, so that the whole can be kept as a shell script."""
    folder = recipe.folder_name(dataset_id)
    trainer = f"{TRAINER}{recipe.trainer_suffix}"
    size = f" --size {PATCH}" if recipe.square else ""
    which = f"-d {dataset_id} -c 2d -f 0 -tr {trainer} -p {PAPER_PLANS}"
    predictions = f"predictions/{recipe.name}"
    yield f"# {recipe.title}. Download and unpack:"
    yield from (f"#   {page}" for page in recipe.download)
    yield f"# SOURCE is the folder that holds {recipe.unpacked}"
    yield f"nnunet-gdla convert {recipe.name} SOURCE -d {dataset_id}{size} -np 4"
    yield f"nnunet-gdla doctor -d {dataset_id}"
    yield f"nnunet-gdla plan -d {dataset_id}"
    yield f"nnunet-gdla recipe {recipe.name} -d {dataset_id} --write-plans"
    yield f"nnUNetv2_preprocess -d {dataset_id} -plans_name {PAPER_PLANS} -c 2d"
    yield f"nnUNetv2_train {dataset_id} 2d 0 -tr {trainer} -p {PAPER_PLANS}"
    yield f'nnUNetv2_predict {which} -i "$nnUNet_raw/{folder}/imagesTs" -o {predictions} --disable_tta'
    yield (
        f'nnunet-gdla evaluate {predictions} "$nnUNet_raw/{folder}/labelsTs" '
        f'--dataset-json "$nnUNet_raw/{folder}/dataset.json" --convention {recipe.convention}'
    )


def _words(recipe: Recipe) -> Iterator[str]:
    own = recipe.nnunet_epochs * ITERATIONS_PER_EPOCH
    yield "#"
    yield f"# Paper: {recipe.epochs} epochs of {recipe.iterations} steps = {recipe.steps} steps, batch {recipe.batch};"
    yield f"# here: {recipe.nnunet_epochs} epochs of nnU-Net's {ITERATIONS_PER_EPOCH} steps = {own} steps, same batch."
    yield f"# Training images in the paper: {recipe.images}. Intensities: {recipe.intensities}."
    if recipe.scores:
        yield "# Dice in % to compare with: " + ", ".join(f"{model} {dice:.2f}" for model, dice in recipe.scores)
        yield "# The comparators are the trainers nnUNetTrainerPVTDiffAttn, ...PVTSelfAttn and ...PVTLinearAttn."
    else:
        yield "# The paper's own Dice and HD95 of this dataset are in its Synapse table (arXiv:2603.02727)."
    if recipe.score_details:
        yield f"# {recipe.score_details}"
    yield from (f"# Differs from the paper: {words}" for words in _differences(recipe))


def _differences(recipe: Recipe) -> Iterator[str]:
    if recipe.ratio is not None:
        ratio = " / ".join(map(str, recipe.ratio))
        yield f"the split, drawn as {ratio} with seed 0 (paper-ratio, seed 0): the paper's lists are not published."
    else:
        yield "the last epoch is tested; the released settings choose the best one on the test cases."
    if recipe.name == "ham10000":
        yield "the released settings have about 72 / 18 / 10; give your own with --split."
    if not recipe.square:
        yield f"the slice size, {PATCH} x {PATCH} for the median case, other cases by their spacing."
    if recipe.name in ("ham10000", "ph2"):
        yield "minimum and maximum are those of each colour, not of all three together."
    warmup = round(0.05 * recipe.steps)
    if warmup != recipe.warmup * recipe.iterations:
        yield f"the warm-up, 5 % of the steps, {warmup} instead of {recipe.warmup * recipe.iterations}."
    yield "augmentation is nnU-Net's, and losses meet the targets at each output's own resolution."
