"""Who trains and who is tested: published lists, drawn ratios, users' own files; audited before anything is written.

Standard library only.
"""

import csv
import itertools
import json
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nnunet_gdla.errors import UserError
from nnunet_gdla.recipes.catalogue import SEED, Recipe
from nnunet_gdla.recipes.layout import Case
from nnunet_gdla.words import counted

__all__ = ["Fold", "Split", "audit", "paper_split", "read_split", "without"]

_PARTS = ("train", "val", "test")
_SHOWN = 8


@dataclass(frozen=True)
class Fold:
    """Training and validation cases, by name."""

    train: tuple[str, ...]
    val: tuple[str, ...]


@dataclass(frozen=True)
class Split:
    """A whole division.

    Args:
        title: What outputs call it.
        folds: One, or several of a cross-validation.
        test: Cases that no fold sees.
    """

    title: str
    folds: tuple[Fold, ...]
    test: tuple[str, ...]

    @property
    def named(self) -> set[str]:
        """Every case that has a part."""
        return {*self.test, *(name for fold in self.folds for name in (*fold.train, *fold.val))}

    def nnunet(self) -> list[dict[str, list[str]]]:
        """The content of splits_final.json.

        nnU-Net cannot train without validation cases: where the split has none, the training cases stand in, and
        what nnU-Net prints about them says nothing of new patients.
        """
        return [{"train": list(fold.train), "val": list(fold.val or fold.train)} for fold in self.folds]


def paper_split(cases: Sequence[Case], recipe: Recipe, seed: int = SEED) -> Split:
    """Return the published list where there is one, else groups drawn with a seed in the paper's ratio.

    Groups are shuffled and dealt out to training, then validation, then test, until each has its share of the cases;
    so a part can be larger than its share by less than one group.

    Args:
        cases: All that were found; those of a pool outside the paper's split are left out.
        recipe: The dataset.
        seed: Same seed and cases, same split.

    Raises:
        UserError: If there are too few cases for training and another part to have one.
    """
    cases = [case for case in cases if not case.pool]
    if recipe.lists is not None:
        published = [{f"case{number}" for number in numbers} for numbers in recipe.lists]
        listed, tested = (tuple(case.name for case in cases if case.name in names) for names in published)
        title = f"published list, {len(published[0])} training and {len(published[1])} test cases"
        if not listed or len(cases) < 2:  # a release is often published without its test cases
            _refuse_too_few(title, cases, {"training": listed, "test": tested})
        return Split(title, (Fold(listed, ()),), tested)
    assert recipe.ratio is not None  # a recipe has one or the other
    groups: dict[str, list[str]] = defaultdict(list)
    for case in sorted(cases, key=lambda case: case.name):
        groups[case.group].append(case.name)
    order = sorted(groups)
    random.Random(seed).shuffle(order)
    limits = _limits(len(cases), recipe.ratio)
    parts: list[list[str]] = [[] for _ in _PARTS]
    dealt = 0
    for group in order:
        parts[next(part for part, limit in enumerate(limits) if dealt < limit)] += groups[group]
        dealt += len(groups[group])
    train, val, test = (tuple(sorted(part)) for part in parts)
    ratio = " / ".join(map(str, recipe.ratio))
    needed = next(number for number in itertools.count(3) if _all_get_one(number, recipe.ratio))
    _refuse_too_few(
        f"training / validation / test {ratio}, of which {needed} or more give each part one",
        cases,
        {"training": train, "validation": val, "test": test},
    )
    return Split(
        f"paper-ratio, seed {seed} ({ratio}, not the paper's own list, which is not published)",
        (Fold(train, val),),
        test,
    )


def _limits(cases: int, ratio: Sequence[int]) -> list[int]:
    """How many cases are dealt when each part has its share."""
    return [round(cases * sum(ratio[: part + 1]) / sum(ratio)) for part in range(len(ratio))]


def _all_get_one(cases: int, ratio: Sequence[int]) -> bool:
    return all(limit > before for before, limit in itertools.pairwise([0, *_limits(cases, ratio)]))


def _refuse_too_few(split: str, cases: Sequence[Case], parts: Mapping[str, Sequence[str]]) -> None:
    if parts["training"] and sum(map(bool, parts.values())) > 1:
        return
    groups = len({case.group for case in cases})
    of = f" of {counted(groups, 'group')}" if groups < len(cases) else ""
    are = "is" if len(cases) == 1 else "are"
    raise UserError(
        f"{counted(len(cases), 'case')}{of} {are} too few for this split ({split}): "
        f"{', '.join(f'{part} {len(names)}' for part, names in parts.items())}; complete the folder with the rest of "
        "the release, or give a split of your own with --split"
    )


def read_split(path: Path, cases: Sequence[Case]) -> Split:
    """Read a user's split: {"train": [...], "val": [...], "test": [...]}, nnU-Net's list of folds, or CSV `case,part`.

    A case may be called by its name in the dataset, by its original name, or by its group, which stands for all of it.

    Raises:
        UserError: If the file has another form, names what is not there, or puts a case into two parts.
    """
    folds, test = _parse(path)
    known: dict[str, set[str]] = defaultdict(set)
    for case in cases:
        for name in (case.name, case.group, *case.aliases):
            known[name].add(case.name)
    listed = [name for part in (*(p for fold in folds for p in fold), test) for name in part]
    missing = sorted({name for name in listed if not _look_up(name, known)})
    if missing:
        raise UserError(
            f"{path} names {counted(len(missing), 'case')} not there: {_some(missing)}; cases are called like "
            f"{_some(case.name for case in cases[:2])}"
        )

    def expand(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted({case for name in names for case in _look_up(name, known)}))

    split = Split(
        f"your own, {path.name}", tuple(Fold(expand(train), expand(val)) for train, val in folds), expand(test)
    )
    for fold in split.folds:
        _refuse_overlap(path, "train", fold.train, "val", fold.val)
        _refuse_overlap(path, "train", fold.train, "test", split.test)
        _refuse_overlap(path, "val", fold.val, "test", split.test)
        if not fold.train:
            raise UserError(f"{path} has a fold without training cases")
    return split


def audit(split: Split, cases: Sequence[Case]) -> list[str]:
    """Return every group that lies on both sides of a split, in words."""
    group = {case.name: case.group for case in cases}
    torn: dict[str, set[str]] = defaultdict(set)
    for number, fold in enumerate(split.folds):
        sides = {"train": fold.train, "val": fold.val, "test": split.test}
        where: dict[str, set[str]] = defaultdict(set)
        for side, names in sides.items():
            for name in names:
                where[group[name]].add(side)
        for key, parts in where.items():
            if len(parts) > 1:
                fold_name = f" of fold {number}" if len(split.folds) > 1 else ""
                torn[key].add(" and ".join(part for part in _PARTS if part in parts) + fold_name)
    return [f"{key} is in {', '.join(sorted(parts))}" for key, parts in sorted(torn.items())]


def without(split: Split, names: Iterable[str]) -> Split:
    """Return the split without cases that could not be used."""
    gone = set(names)

    def keep(part: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in part if name not in gone)

    folds = tuple(Fold(keep(fold.train), keep(fold.val)) for fold in split.folds)
    return replace(split, folds=folds, test=keep(split.test))


def _parse(path: Path) -> tuple[list[tuple[list[str], list[str]]], list[str]]:
    if not path.is_file():
        raise UserError(f"there is no split file {path}")
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix.lower() == ".csv":
        return _parse_csv(path, text)
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is no JSON ({error}); a table has to be called .csv") from error
    folds = content if isinstance(content, list) else [content]
    if not folds or not all(
        _is_fold(fold, ("train", "val") if isinstance(content, list) else _PARTS) for fold in folds
    ):
        raise UserError(
            f'{path} has to be {{"train": [names], "val": [names], "test": [names]}}, or a list of folds '
            '{"train": [names], "val": [names]} as in nnU-Net\'s splits_final.json'
        )
    test = content.get("test", []) if isinstance(content, dict) else []
    return [(fold["train"], fold.get("val", [])) for fold in folds], test


def _is_fold(fold: object, keys: tuple[str, ...]) -> bool:
    return (
        isinstance(fold, dict)
        and "train" in fold
        and set(fold) <= set(keys)
        and all(isinstance(part, list) and all(isinstance(name, str) for name in part) for part in fold.values())
    )


def _parse_csv(path: Path, text: str) -> tuple[list[tuple[list[str], list[str]]], list[str]]:
    """Read the columns case and part in any order and case, with the separators that spreadsheets write."""
    first, *rest = text.splitlines() or [""]
    separator = next((mark for mark in (";", "\t") if mark in first), ",")
    columns = [name.strip().lower() for name in next(csv.reader([first], delimiter=separator), [])]
    if not {"case", "part"} <= set(columns):
        raise UserError(f"{path} needs the columns case and part, it has {', '.join(columns) or 'none'}")
    parts: dict[str, list[str]] = {part: [] for part in _PARTS}
    for line, row in enumerate(csv.DictReader(rest, columns, delimiter=separator, restval=""), start=2):
        case, part = row["case"].strip(), row["part"].strip().lower()
        if part not in parts or not case:
            raise UserError(f"line {line} of {path} has {case!r} in {part!r}; parts are {', '.join(_PARTS)}")
        parts[part].append(case)
    return [(parts["train"], parts["val"])], parts["test"]


def _look_up(name: str, known: dict[str, set[str]]) -> set[str]:
    if name in known:
        return known[name]
    for ending in (".nii.gz", ".png", ".jpg", ".bmp", ".nii"):
        if name.endswith(ending) and name.removesuffix(ending) in known:
            return known[name.removesuffix(ending)]
    return set()


def _refuse_overlap(path: Path, one: str, first: tuple[str, ...], other: str, second: tuple[str, ...]) -> None:
    both = sorted(set(first) & set(second))
    if both:
        raise UserError(f"{path} has {counted(len(both), 'case')} in {one} and in {other}: {_some(both)}")


def _some(names: Iterable[str]) -> str:
    known = list(names)
    return ", ".join(known[:_SHOWN]) + (f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else "")
