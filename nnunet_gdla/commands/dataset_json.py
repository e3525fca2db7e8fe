"""dataset.json of a raw nnU-Net dataset: is it readable, complete and consistent?"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnunet_gdla.commands.findings import BREAKAGES, Finding, failed, one_line, passed, warned
from nnunet_gdla.damage import reason
from nnunet_gdla.words import counted

__all__ = ["Description", "check_description", "describe", "read_json"]

EXAMPLE_LABELS = '"labels": {"background": 0, "tumour": 1}'


@dataclass(frozen=True)
class Description:
    """What dataset.json promises.

    Args:
        content: The whole file.
        channels: Names of the input channels.
        labels: Name of each label value that a mask may hold, the ignore label included.
        ending: File ending of images and masks.
    """

    content: dict[str, Any]
    channels: tuple[str, ...]
    labels: dict[int, str]
    ending: str


def read_json(path: Path) -> dict[str, Any] | Finding:
    """Return the object in a JSON file, or the finding that says why there is none."""
    title = path.name
    if path.is_dir():
        return failed(title, f"{path} is a folder; it must be a file", f"move it away and write the file {title}")
    if not path.is_file():
        return failed(title, f"{path} does not exist", f"write {title} (nnU-Net: documentation/dataset_format.md)")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return failed(
            title, f"{path} cannot be read: {reason(error, path)}", "correct the file; it must be plain JSON, UTF-8"
        )
    if not isinstance(content, dict):
        return failed(title, f"{path} holds a {type(content).__name__}", "write one JSON object: { ... }")
    return content


def check_description(content: dict[str, Any]) -> Iterator[Finding]:
    """Yield what is wrong with the content of a dataset.json, nothing where all is right."""
    yield from _check_ending(content.get("file_ending"))
    yield from _check_channels(content)
    number = content.get("numTraining")
    if number is None:
        yield failed("dataset.json", "numTraining is missing", 'add "numTraining": number of training cases')
    elif not _is_whole(number):
        yield failed("numTraining", f"it is {number!r}", "write the number of training cases, without quotes")
    yield from _check_table(content.get("dataset"))
    labels = content.get("labels")
    if not isinstance(labels, dict):
        yield failed("labels", "dataset.json has no labels object", f"add {EXAMPLE_LABELS}")
        return
    problems = list(_check_labels(labels, content.get("regions_class_order")))
    yield from problems
    if not problems:
        yield from _ask_label_manager(labels, content.get("regions_class_order"))


def describe(content: dict[str, Any]) -> Description:
    """Return what a dataset.json without FAIL findings promises."""
    names: dict[int, str] = {}
    for name, value in content["labels"].items():
        for one in value if isinstance(value, list) else [value]:
            names[int(one)] = f"{names[int(one)]}, {name}" if int(one) in names else str(name)
    channels = content["channel_names"] if "channel_names" in content else content["modality"]
    return Description(content, tuple(str(name) for name in channels.values()), names, content["file_ending"])


def _check_ending(ending: object) -> Iterator[Finding]:
    from nnunetv2.imageio.reader_writer_registry import LIST_OF_IO_CLASSES

    known = sorted({known for reader in LIST_OF_IO_CLASSES for known in reader.supported_file_endings})
    choice = f"nnU-Net reads {', '.join(known)}"
    if not isinstance(ending, str):
        yield failed(
            "file_ending", "dataset.json has no file_ending", f'add for example "file_ending": ".png"; {choice}'
        )
    elif ending.lower() in {".jpg", ".jpeg"}:
        fix = 'convert the images and masks to .png (a mask must never have been a JPG), set "file_ending": ".png"'
        yield failed("file_ending", f"{ending} is lossy and nnU-Net has no reader for it", fix)
    elif ending.lower() not in known:
        dot = "; it must begin with a dot" if not ending.startswith(".") else ""
        yield failed("file_ending", f"nnU-Net has no reader for {ending!r}{dot}", f"convert the files; {choice}")


def _check_channels(content: dict[str, Any]) -> Iterator[Finding]:
    channels = content.get("channel_names", content.get("modality"))
    example = '"channel_names": {"0": "R", "1": "G", "2": "B"}'
    if not isinstance(channels, dict) or not channels:
        yield failed("channel_names", "dataset.json does not name the input channels", f"add for example {example}")
        return
    if "channel_names" not in content:
        yield warned("channel_names", 'the old key "modality" is used', 'rename it to "channel_names"')
    elif "modality" in content and len(content["modality"]) != len(channels):
        detail = (
            f'"modality" names {len(content["modality"])}, "channel_names" {len(channels)}; nnU-Net counts the former'
        )
        yield failed("channel_names", detail, 'remove the old key "modality"')
    if list(channels) != [str(number) for number in range(len(channels))]:
        detail = f"the channels are numbered {', '.join(map(str, channels))}"
        yield failed("channel_names", detail, f"number them 0, 1, 2 ... in the order of the files, as in {example}")


def _check_table(table: object) -> Iterator[Finding]:
    """Look at the optional list of files, which takes the place of imagesTr and labelsTr."""
    if table is None:
        return
    fix = 'write "dataset": {"CASE": {"images": ["FILE", ...], "label": "FILE"}, ...}, or leave it out'
    if not isinstance(table, dict):
        yield failed("dataset", f"dataset.json has a {type(table).__name__} there", fix)
        return
    for case, files in table.items():
        images = files.get("images") if isinstance(files, dict) else None
        label = files.get("label") if isinstance(files, dict) else None
        if not (isinstance(images, list) and images and all(isinstance(each, str) for each in (*images, label))):
            yield failed("dataset", f"the entry of {case} has no list of images or no label", fix)
            return


def _check_labels(labels: dict[str, Any], order: object) -> Iterator[Finding]:
    if labels and all(str(name).isdigit() for name in labels):
        yield failed("labels", "names and values are the wrong way round", f"write name: value, as in {EXAMPLE_LABELS}")
        return
    values: dict[str, list[int]] = {}
    for name, value in labels.items():
        many = value if isinstance(value, list) else [value]
        if not many or not all(_is_whole(one) for one in many):
            yield failed("labels", f"{name!r} is {value!r}", "use whole numbers, or lists of them for regions")
            return
        values[name] = [int(one) for one in many]
    if values.get("background") != [0] or isinstance(labels["background"], list):
        detail = f"background is {labels.get('background', 'missing')}"
        yield failed("labels", detail, f'add "background": 0, as in {EXAMPLE_LABELS}')
        return
    classes = sorted({one for name, many in values.items() if name != "ignore" for one in many})
    if classes == [0]:
        yield failed("labels", "there is no class besides background", f"declare the classes, as in {EXAMPLE_LABELS}")
    elif classes != list(range(len(classes))):
        fix = f"renumber the classes 0 to {len(classes) - 1} without a gap, in dataset.json and in the masks"
        yield failed("labels", f"the values {', '.join(map(str, classes))} are not consecutive", fix)
    if "ignore" in labels and labels["ignore"] != classes[-1] + 1:
        detail = f"ignore is {labels['ignore']}, the highest class is {classes[-1]}"
        yield failed(
            "labels", detail, f"the ignore label must be one single number, {classes[-1] + 1}, here and in masks"
        )
    if any(isinstance(value, list) and len(value) > 1 for value in labels.values()):
        yield from _check_regions(labels, classes, order)


def _check_regions(labels: dict[str, Any], classes: list[int], order: object) -> Iterator[Finding]:
    regions = [name for name, value in labels.items() if name != "ignore" and value not in (0, [0])]
    names = ", ".join(regions)
    if not isinstance(order, list) or not all(_is_whole(one) for one in order):
        fix = f'add "regions_class_order": one label value for each of {names}, in this order; later ones paint over'
        yield failed("regions_class_order", f"labels hold regions, but it is {order!r}", fix)
    elif len(order) != len(regions):
        detail = f"{counted(len(order), 'entry', 'entries')} for {counted(len(regions), 'region')} ({names})"
        yield failed("regions_class_order", detail, "give one label value a region, in the order of labels")
    elif not set(order) <= set(classes[1:]):
        unknown = sorted(set(order) - set(classes[1:]))
        yield failed("regions_class_order", f"{unknown} are no label values", f"use values from {classes[1:]}")


def _ask_label_manager(labels: dict[str, Any], order: list[int] | None) -> Iterator[Finding]:
    """Let nnU-Net's own class have the last word on what the checks above let through."""
    from nnunetv2.utilities.label_handling.label_handling import LabelManager

    try:
        heads = LabelManager(labels, order).num_segmentation_heads
    except BREAKAGES as error:
        yield failed("labels", f"nnU-Net refuses them: {one_line(error)}", f"correct labels, as in {EXAMPLE_LABELS}")
        return
    extra = ", ignore label" if "ignore" in labels else ""
    yield passed("labels", f"{counted(len(labels), 'name')}, {counted(heads, 'network output')}{extra}")


def _is_whole(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and float(value).is_integer() and value >= 0
