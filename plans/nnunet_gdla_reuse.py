"""Preprocessed data that are there already: are they what new plans would make of today's raw data?"""

import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnunetv2.utilities.label_handling.label_handling import LabelManager

from nnunet_gdla.errors import UserError
from nnunet_gdla.plans.nnunet_gdla_folders import free_identifier, identifier_of, is_of_family
from nnunet_gdla.words import counted

__all__ = [
    "STOCK_PLANS",
    "Data",
    "RawCases",
    "changed_cases",
    "choose_data",
    "current_identifier",
    "missing_cases",
    "named",
    "read_json",
    "same_preprocessing",
    "spread",
]

STOCK_PLANS = "nnUNetPlans"
RawCases = Mapping[str, Mapping[str, Any]]
_SHOWN = 3
_LOOKED_AT = 20  # cases whose properties are compared with the fingerprint
# What a file that is no properties file makes pickle raise.
_DAMAGED = (OSError, EOFError, pickle.UnpicklingError, ValueError, TypeError, LookupError, AttributeError, ImportError)
_OF_THE_PLANS = (
    "image_reader_writer",
    "transpose_forward",
    "foreground_intensity_properties_per_channel",
    "label_manager",
)
_OF_THE_CONFIGURATION = (
    "preprocessor_name",
    "spacing",
    "normalization_schemes",
    "use_mask_for_norm",
    "resampling_fn_data",
    "resampling_fn_data_kwargs",
    "resampling_fn_seg",
    "resampling_fn_seg_kwargs",
)


@dataclass(frozen=True)
class Data:
    """Which preprocessed data new 2d plans should name.

    Args:
        identifier: Their data identifier; of data that are still to be made, one under which no folder is yet.
        ready: They are there, complete and current.
        notes: Why data that are there are not used, a sentence each.
    """

    identifier: str
    ready: bool
    notes: tuple[str, ...] = ()


def choose_data(
    folder: Path,
    plans: dict[str, Any],
    dataset: RawCases,
    description: dict[str, Any],
    *,
    shapes: Sequence[Sequence[int]],
    replace: bool,
) -> Data:
    """Which preprocessed data new 2d plans should name.

    Those of an earlier plan of that name where it made them in the same way, else the stock plans' where these
    preprocess in the same way, else a new folder, which then has to be made. Data are not used where a case lacks
    files, where they hold other cases than the raw dataset (nnU-Net trains on all that lie there), where they were
    made for other labels or from images of other sizes, or where a raw file was changed after them.

    Args:
        folder: The dataset's folder of preprocessed data, with the dataset.json of the last planning.
        plans: The new plans, not saved yet.
        dataset: Raw files of all training cases, as nnU-Net lists them: "images" and "label".
        description: Today's dataset.json.
        shapes: Of the cases of `dataset` in turn, after cropping, as the fingerprint has them.
        replace: Plans whose data were made with other settings may be replaced.

    Raises:
        UserError: If the plans' own data were made with other settings, unless `replace`.
    """
    same_labels = _labels_unchanged(folder / "dataset.json", description)
    own = plans["configurations"]["2d"]["data_identifier"]
    current = current_identifier(folder, plans["plans_name"], own)
    cases, sizes = sorted(dataset), dict(zip(dataset, shapes, strict=True))
    notes: list[str] = []
    made_otherwise = False
    for name, identifier in ((plans["plans_name"], current), (STOCK_PLANS, f"{STOCK_PLANS}_2d")):
        earlier, data = read_json(folder / f"{name}.json"), folder / identifier
        if not any(data.glob("*.pkl")):
            continue
        order = (earlier or {}).get("transpose_forward") or plans["transpose_forward"]
        why = _why_stale(data, dataset, sizes, order)
        for_labels = same_labels and _made_for_labels(data, cases, description)
        if why is None and for_labels and _made_alike(earlier, plans, identifier):
            return Data(identifier, True, tuple(notes))
        if why is None and identifier == current:
            made_otherwise = True
        elif why is None and not for_labels:
            why = "they were made for other labels or channels than dataset.json names"
        elif why is None:
            why = _why_otherwise(name, earlier, plans, identifier)
        if why is not None:
            notes.append(f"The data in {identifier} are not used: {why}.")
    if made_otherwise and not replace:
        raise UserError(
            f"the data in {folder / current} were made with other settings than these plans have; add --preprocess to "
            "make new ones beside them, or choose another name with --plans-name."
        )
    return Data(free_identifier(folder, own), False, tuple(notes))


def current_identifier(folder: Path, plans_name: str, own: str) -> str:
    """Which of the folders of a plans' own its file names; `own` where it names none of them."""
    named = identifier_of(read_json(folder / f"{plans_name}.json"))
    return named if named is not None and is_of_family(named, own) else own


def same_preprocessing(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether the 2d configurations of two plans make the same data of the same images."""
    return not _differences(one, other)


def missing_cases(folder: Path, cases: Sequence[str]) -> list[str]:
    """Cases that lack their image or their properties there (nnU-Net writes the properties last)."""
    names = {path.name for path in folder.iterdir()}
    formats = ((".b2nd", "_seg.b2nd", ".pkl"), (".npz", ".pkl"))
    return [case for case in cases if not any({case + end for end in ends} <= names for ends in formats)]


def read_json(path: Path) -> dict[str, Any] | None:
    """Content of a JSON file that holds an object; None where there is no file.

    Raises:
        UserError: If it is not JSON.
    """
    if not path.is_file():
        return None
    try:
        content: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise UserError(f"{path} is not readable as JSON ({error}): mend it or move it away.") from error
    return content


def _labels_unchanged(earlier: Path, description: dict[str, Any]) -> bool:
    """Whether the last planning saw the same labels and channels; true where there was none."""
    before = read_json(earlier)
    if before is None:
        return True
    return all(before.get(key) == description.get(key) for key in ("labels", "regions_class_order", "channel_names"))


def _made_for_labels(folder: Path, cases: Sequence[str], description: dict[str, Any]) -> bool:
    """Whether data know the classes of dataset.json, whatever the copy beside them says.

    Every planning copies dataset.json, so after one without preprocessing the copy is newer than the data. What the
    data themselves keep of the labels is where each class, or region, lies: nnU-Net samples foreground from it. All
    cases of a folder are made at once, so one is looked at.
    """
    path = next((folder / f"{case}.pkl" for case in cases if (folder / f"{case}.pkl").is_file()), None)
    if path is None:
        return True
    try:
        with path.open("rb") as file:
            known = set(pickle.load(file)["class_locations"])
    except _DAMAGED:
        return False
    labels = LabelManager(description["labels"], description.get("regions_class_order"))
    wanted = list(labels.foreground_regions if labels.has_regions else labels.foreground_labels)
    if labels.has_ignore_label:
        wanted.append([-1, *labels.all_labels])  # pixels that anybody has looked at
    return known == {tuple(each) if isinstance(each, list | tuple) else int(each) for each in wanted}


def changed_cases(dataset: RawCases, made: Mapping[str, int]) -> list[str]:
    """Cases with a raw file that was written after the time, in ns, at which something was made of them."""
    return [
        case
        for case, files in sorted(dataset.items())
        if any(Path(file).stat().st_mtime_ns > made[case] for file in (*files["images"], files["label"]))
    ]


def spread(items: Sequence[str], count: int) -> list[str]:
    """At most so many of them, the first and the last included, the others evenly between."""
    if len(items) <= count:
        return list(items)
    return [items[place * (len(items) - 1) // (count - 1)] for place in range(count)]


def named(names: Sequence[str]) -> str:
    """The first few of them."""
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def _why_stale(
    folder: Path, dataset: RawCases, shapes: Mapping[str, Sequence[int]], transpose: Sequence[int]
) -> str | None:
    """Why data are not those of today's raw files; None where they are."""
    lacking = missing_cases(folder, sorted(dataset))
    if lacking:
        return f"{counted(len(lacking), 'case')} ({named(lacking)}) not there"
    surplus = sorted({path.stem for path in folder.glob("*.pkl")} - dataset.keys())
    if surplus:
        return f"{counted(len(surplus), 'case')} there ({named(surplus)}) not in the raw dataset"
    changed = changed_cases(dataset, {case: (folder / f"{case}.pkl").stat().st_mtime_ns for case in dataset})
    if changed:
        return f"raw files of {counted(len(changed), 'case')} ({named(changed)}) are newer"
    for case in spread(sorted(dataset), _LOOKED_AT):
        try:
            with (folder / f"{case}.pkl").open("rb") as file:
                made = pickle.load(file)["shape_after_cropping_and_before_resampling"]
        except _DAMAGED:
            return f"{case}.pkl there is damaged"
        if [int(edge) for edge in made] != [int(shapes[case][axis]) for axis in transpose]:
            return f"{case} has another size now"
    return None


def _made_alike(earlier: dict[str, Any] | None, plans: dict[str, Any], identifier: str) -> bool:
    return earlier is not None and identifier_of(earlier) == identifier and same_preprocessing(earlier, plans)


def _why_otherwise(name: str, earlier: dict[str, Any] | None, plans: dict[str, Any], identifier: str) -> str:
    """Why data that are current are not those of new plans."""
    if earlier is None or identifier_of(earlier) != identifier:
        return f"no {name}.json says how they were made"
    one, other = (each.get("transpose_forward") or [None] for each in (earlier, plans))
    if one != other:
        return (
            f"{name} has the image axes in the order {one}, with slices along axis {one[0]}; these plans have {other}"
        )
    return f"they were made with other settings ({named(_differences(earlier, plans))})"


def _differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Settings of the preprocessing in which two plans differ.

    Compared as text, because that is how plans are kept, and because NaN (a class without pixels) equals itself there.
    """
    kept = [each["configurations"]["2d"] for each in (one, other)]
    pairs = [(key, one.get(key), other.get(key)) for key in _OF_THE_PLANS]
    pairs += [(key, kept[0].get(key), kept[1].get(key)) for key in _OF_THE_CONFIGURATION]
    return [key for key, *values in pairs if len({json.dumps(v, sort_keys=True, default=_plain) for v in values}) > 1]


def _plain(value: Any) -> Any:  # noqa: ANN401 - numpy's arrays and numbers both have it
    return value.tolist()
