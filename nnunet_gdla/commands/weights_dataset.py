"""For which dataset a released checkpoint is converted: its name, its dataset.json, and whether the two fit."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnunet_gdla.commands.dataset_check import find_dataset
from nnunet_gdla.commands.dataset_json import check_description, read_json
from nnunet_gdla.commands.findings import Finding, Level
from nnunet_gdla.errors import UserError
from nnunet_gdla.networks.released_layout import Layout

__all__ = ["Target", "find_target"]

NO_DATASET = "Dataset000_Released"
_FULL_NAME = re.compile(r"Dataset\d{3}_.+")


@dataclass(frozen=True)
class Target:
    """The dataset that a model is for.

    Args:
        name: Full name of the dataset; a made-up one where none was named.
        content: Its dataset.json.
        origin: Where that is from, for the report.
        preprocessed: Folder for plans to train from; None where none was named or nnUNet_preprocessed is not set.
    """

    name: str
    content: dict[str, Any]
    origin: str
    preprocessed: Path | None

    @property
    def number(self) -> int:
        """The dataset's number."""
        return int(self.name[7:10])


def find_target(dataset: str | None, json_file: str | None, ending: str | None, layout: Layout) -> Target:
    """Find the dataset and see whether a network with these channels and classes is for it.

    Args:
        dataset: Number or full name; None for a model that belongs to none.
        json_file: A dataset.json to use; None for the dataset's own, or a made-up one.
        ending: File ending for a made-up one.
        layout: What the checkpoint's tensors tell.

    Raises:
        UserError: If the dataset or its dataset.json is not there or damaged, or does not fit the checkpoint.
    """
    name, own = _find_name(dataset, json_file)
    preprocessed = os.environ.get("nnUNet_preprocessed")
    plans_folder = Path(preprocessed) / name if dataset is not None and preprocessed else None
    file = Path(json_file) if json_file is not None else own
    if file is None:
        return Target(name, _made_up(layout, ending), "made up: classes have numbers for names", plans_folder)
    content = read_json(file)
    if isinstance(content, Finding):
        raise UserError(f"{content.detail}; {content.fix}")  # which names the file
    bad = next((problem for problem in check_description(content) if problem.level is Level.FAIL), None)
    if bad is not None:
        raise UserError(f"{file}: {bad.detail}; {bad.fix}")
    _refuse_other_sizes(content, file, layout)
    return Target(name, content, str(file), plans_folder)


def _find_name(dataset: str | None, json_file: str | None) -> tuple[str, Path | None]:
    if dataset is None:
        return NO_DATASET, None
    found = find_dataset(dataset)
    if isinstance(found, Path):
        return found.name, found / "dataset.json"
    if json_file is not None and _FULL_NAME.fullmatch(dataset):
        return dataset, None
    extra = "" if json_file is None else ", or its full name beside --dataset-json"
    raise UserError(f"{found.detail}; {found.fix}{extra}")


def _made_up(layout: Layout, ending: str | None) -> dict[str, Any]:
    channels = layout.input_channels
    names = ("R", "G", "B") if channels == 3 else tuple(f"channel {number}" for number in range(channels))
    return {
        "channel_names": {str(number): name for number, name in enumerate(names)},
        "labels": {"background": 0} | {f"class {number}": number for number in range(1, layout.num_classes)},
        "numTraining": 0,
        "file_ending": ending or (".png" if channels == 3 else ".nii.gz"),
    }


def _refuse_other_sizes(content: Mapping[str, Any], file: Path, layout: Layout) -> None:
    from nnunetv2.utilities.label_handling.label_handling import LabelManager

    channels = len(content["channel_names"] if "channel_names" in content else content["modality"])
    labels = LabelManager(content["labels"], content.get("regions_class_order"))
    if labels.has_regions:
        raise UserError(f"{file} has regions, released networks were trained with one class a pixel; name plain labels")
    for what, here, there in (
        ("input channels", layout.input_channels, channels),
        ("classes, background among them,", layout.num_classes, labels.num_segmentation_heads),
    ):
        if here != there:
            raise UserError(
                f"the checkpoint has {here} {what} {file} has {there}; name the dataset that it was trained for"
            )
