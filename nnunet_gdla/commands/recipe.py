"""`nnunet-gdla recipe`: the commands from a download page to a table row, printed, or several runs of them done."""

import argparse
import os
from collections.abc import Iterator

from nnunet_gdla.errors import UserError
from nnunet_gdla.recipes.catalogue import PAPER_TRAINER, PATCH, RECIPES, PaperModel, Recipe
from nnunet_gdla.recipes.folders import dataset_folder, raw_folder
from nnunet_gdla.recipes.paper_plans import write_paper_plans

__all__ = ["run"]


def run(args: argparse.Namespace) -> int:
    """Print the recipe, write its plans, or do several runs.

    Raises:
        UserError: If options do not go together, or a step cannot be done.
    """
    recipe = RECIPES[args.name]
    dataset_id = args.dataset_id or recipe.dataset_id
    model = _model(args.trainer)
    if args.write_plans and args.runs:
        raise UserError("--runs writes the plans by itself; leave out --write-plans")
    if args.runs:
        from nnunet_gdla.commands.recipe_runs import do_runs

        return do_runs(recipe, dataset_id, args.runs, model=model, device=args.device, overwrite=args.overwrite)
    if args.write_plans:
        print(write_paper_plans(recipe, dataset_id, model=model, overwrite=args.overwrite))
        print(f"next: nnUNetv2_preprocess -d {dataset_id} -plans_name {model.plans()} -c 2d")
        return 0
    for line in (*_taken(recipe, dataset_id), *_lines(recipe, dataset_id, model), *_words(recipe)):
        print(line)
    return 0


def _model(trainer: str) -> PaperModel:
    from nnunet_gdla.trainers import is_ours

    if not is_ours(trainer) or "_Paper" not in trainer:
        raise UserError(
            f"-tr {trainer} is not a trainer of ours with _Paper, and only these read what recipes write into plans; "
            f"give {PAPER_TRAINER}, or a comparator such as nnUNetTrainerPVTSelfAttn_Paper"
        )
    return PaperModel(trainer)


def _taken(recipe: Recipe, dataset_id: int) -> Iterator[str]:
    """Say that another dataset has the number, where the folders of datasets are known."""
    if os.environ.get("nnUNet_raw"):
        try:
            dataset_folder(raw_folder(None), dataset_id, recipe.folder_name(dataset_id))
        except UserError as error:
            yield f"# NOTE: {error}"


def _lines(recipe: Recipe, dataset_id: int, model: PaperModel) -> Iterator[str]:
    """The commands; lines that are none begin with #, so that the whole can be kept as a shell script."""
    folder = recipe.folder_name(dataset_id)
    size = f" --size {PATCH}" if recipe.square else ""
    trainer, plans = model.trainer, model.plans()
    which = f"-d {dataset_id} -c 2d -f 0 -tr {trainer} -p {plans}"
    own = "" if trainer == PAPER_TRAINER else f" -tr {trainer}"
    predictions = f"predictions/{recipe.name}"
    yield f"# {recipe.title}. Download and unpack:"
    yield from (f"#   {page}" for page in recipe.download)
    yield f"# SOURCE is the folder that holds {recipe.unpacked}"
    yield f"nnunet-gdla convert {recipe.name} SOURCE -d {dataset_id}{size} -np 4"
    yield f"nnunet-gdla doctor -d {dataset_id}"
    yield " ".join((f"nnunet-gdla plan -d {dataset_id}", *model.plan_options))
    yield f"nnunet-gdla recipe {recipe.name} -d {dataset_id}{own} --write-plans"
    yield f"nnUNetv2_preprocess -d {dataset_id} -plans_name {plans} -c 2d"
    yield f"nnUNetv2_train {dataset_id} 2d 0 -tr {trainer} -p {plans}"
    yield (
        f'nnUNetv2_predict {which} -chk checkpoint_best.pth -i "$nnUNet_raw/{folder}/imagesTs" -o {predictions} '
        "--disable_tta"
    )
    yield (
        f'nnunet-gdla evaluate {predictions} "$nnUNet_raw/{folder}/labelsTs" '
        f'--dataset-json "$nnUNet_raw/{folder}/dataset.json" --convention {recipe.convention}'
    )
    yield "# Three trainings with seeds 42, 43 and 44, their mean and spread, in place of everything after 'convert':"
    yield f"#   nnunet-gdla recipe {recipe.name} -d {dataset_id}{own} --runs 3"


def _words(recipe: Recipe) -> Iterator[str]:
    warmup = recipe.warmup * recipe.iterations
    yield "#"
    yield f"# As in the paper: {recipe.epochs} epochs of {recipe.iterations} steps = {recipe.steps} steps,"
    yield f"# warm-up {recipe.warmup} epochs = {warmup} steps, batch {recipe.batch},"
    yield "# four losses at full resolution, float32, its augmentation."
    yield "# The epoch: the one with the highest mean Dice of whole validation cases."
    yield f"# Training images in the paper: {recipe.images}. Intensities: {recipe.intensities}."
    if recipe.scores:
        yield "# Dice in % to compare with: " + ", ".join(f"{model} {dice:.2f}" for model, dice in recipe.scores)
        yield "# The comparators: -tr nnUNetTrainerPVTDiffAttn_Paper, ...PVTSelfAttn_Paper, ...PVTLinearAttn_Paper."
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
        yield (
            "the published list has no validation cases, and the released settings choose the epoch on the test cases; "
            "here it is chosen on the training cases, never on test (or give a split of your own with --split)."
        )
    if recipe.name == "ham10000":
        yield "the released settings have about 72 / 18 / 10; give your own with --split."
    if recipe.square:
        yield "nnU-Net cuts off black borders and pads them again, so such images are centred anew."
    else:
        yield f"the slice size, {PATCH} x {PATCH} for the median case, other cases by their spacing, cropped or padded;"
        yield "the epoch is chosen by Dice at that size (test cases are scored at their own)."
    if recipe.name in ("ham10000", "ph2"):
        yield "minimum and maximum are those of each colour, not of all three together."
    yield "the gate is SiLU as in the paper's text; the released weights have sigmoid (plans: gate)."
    yield "batches are always full: an epoch's last one borrows from the next pass."
    if recipe.convention == "transunet":
        yield "classes without truth score 1 or 0 as in TransUNet's evaluation; the released code leaves them out."
