"""The paper's patch, batch and intensities in a plans file. Standard library only."""

import os
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from nnunet_gdla.errors import UserError
from nnunet_gdla.files import read_json_object
from nnunet_gdla.paper_settings import SECTION
from nnunet_gdla.recipes.catalogue import PAPER_PLANS, PAPER_TRAINER, PATCH, PaperModel, Recipe
from nnunet_gdla.recipes.files import write_json

__all__ = ["paper_plans", "write_paper_plans"]

_HU_LOW, _HU_HIGH = -125, 275
_OWN = PaperModel(PAPER_TRAINER)


def write_paper_plans(
    recipe: Recipe, dataset_id: int, *, model: PaperModel = _OWN, run: int = 1, overwrite: bool = False
) -> Path:
    """Write the paper's plans beside our planner's plans of a dataset, and return the file.

    Args:
        recipe: The dataset.
        dataset_id: Its number.
        model: The paper's own, or a comparator.
        run: Which of several runs, from 1; each has plans of its own name and the next seed.
        overwrite: Replace other plans of that name.

    Raises:
        UserError: If nnU-Net's folder is not set, the dataset was not planned, a file is damaged, or there are other
            plans of that name, unless `overwrite`.
    """
    named = os.environ.get("nnUNet_preprocessed")
    if not named:
        raise UserError("nnUNet_preprocessed is not set: export nnUNet_preprocessed=FOLDER")
    folder = Path(named) / recipe.folder_name(dataset_id)
    source = folder / f"{model.source_plans}.json"
    if not source.is_file():
        others = sorted(path.name for path in folder.parent.glob(f"Dataset{dataset_id:03d}_*") if path != folder)
        if others and not folder.is_dir():
            raise UserError(
                f"number {dataset_id} is {others[0]}, and the recipe wants {folder.name}; convert under a free number "
                "(nnunet-gdla convert ... -d ID) and give that one here"
            )
        raise UserError(
            " ".join((f"there is no {source}; plan first: nnunet-gdla plan -d {dataset_id}", *model.plan_options))
        )
    dataset = read_json_object(folder / "dataset.json")
    if not isinstance(dataset.get("channel_names"), dict):
        raise UserError(f"{folder / 'dataset.json'} has no channel_names; plan again: nnunet-gdla plan -d {dataset_id}")
    channels = list(dataset["channel_names"].values())
    made = paper_plans(read_json_object(source), recipe, channels, model=model, run=run)
    target = folder / f"{made['plans_name']}.json"
    if not overwrite and target.is_file() and read_json_object(target) != made:
        raise UserError(
            f"there are plans {target.stem} already, and {target} says something else: add --overwrite to replace it"
        )
    write_json(target, made)
    return target


def paper_plans(
    plans: dict[str, Any], recipe: Recipe, channels: list[str], *, model: PaperModel = _OWN, run: int = 1
) -> dict[str, Any]:
    """Return plans with the paper's batch, a patch of 224 x 224, its intensities, and a section for trainers `_Paper`.

    The paper scales every slice to 224 x 224. Plans know spacings, not sizes, so the spacing is the one at which the
    median image has this size; single images differ from it by a little. Photographs converted with `--size 224` keep
    their pixels.

    CT: nnU-Net clips to two percentiles, subtracts the mean and divides by the standard deviation; with -125, 275, -125
    and 400 in their places this is clipping to [-125, 275] and scaling to [0, 1]. Channels called noNorm stay as they
    are. Everything else is scaled from its own minimum and maximum.

    Raises:
        UserError: If the plans have no 2d configuration or name another network.
    """
    plan = plans.get("configurations", {}).get("2d")
    if plan is None or not plan["architecture"]["network_class_name"].endswith(".PVTGDLA"):
        raise UserError(f"{plans.get('plans_name')} has no 2d configuration with PVTGDLA; plan with nnUNetPlannerGDLA")
    made, plan = deepcopy(plans), deepcopy(plan)
    scale = [size / PATCH for size in plan["median_image_size_in_voxels"]]
    if recipe.square and max(scale) <= 1:
        scale = [1.0, 1.0]  # nnU-Net has cut off their black borders, and pads them again
    plan["spacing"] = [spacing * factor for spacing, factor in zip(plan["spacing"], scale, strict=True)]
    plan["median_image_size_in_voxels"] = [float(PATCH), float(PATCH)]
    plan["patch_size"] = [PATCH, PATCH]
    plan["batch_size"] = recipe.batch
    if model.decoder != "gdla":
        plan["architecture"]["arch_kwargs"]["decoder"] = model.decoder
    plan["data_identifier"] = f"{PAPER_PLANS}_2d"
    plan["normalization_schemes"] = [_scheme(channel) for channel in channels]
    plan["use_mask_for_norm"] = [False] * len(channels)
    for number, channel in enumerate(channels):
        if channel == "CT":
            made["foreground_intensity_properties_per_channel"][str(number)] |= {
                "percentile_00_5": _HU_LOW,
                "percentile_99_5": _HU_HIGH,
                "mean": _HU_LOW,
                "std": _HU_HIGH - _HU_LOW,
            }
    made["plans_name"] = model.plans(run)
    made[SECTION] = replace(recipe.settings, seed=recipe.settings.seed + run - 1).section()
    made["experiment_planner_used"] = "nnunet-gdla recipe"  # by which `nnunet-gdla plan` knows not to replace them
    made["configurations"] = {"2d": plan}
    return made


def _scheme(channel: str) -> str:
    return {"CT": "CTNormalization", "noNorm": "NoNormalization"}.get(channel, "RescaleTo01Normalization")
