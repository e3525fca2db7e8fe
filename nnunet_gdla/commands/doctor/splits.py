"""splits_final.json: which cases does a fold train and validate on, and are they there?"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nnunet_gdla.commands.findings import Finding, Level, collapse, failed, passed, warned
from nnunet_gdla.damage import reason
from nnunet_gdla.words import counted

__all__ = ["check_splits"]

_STOCK_FOLDS = 5


def check_splits(
    folder: Path, names: set[str], fold: int | str | None, *, raw_folder: Path, endings: tuple[str, ...]
) -> Iterator[Finding]:
    """Yield what is wrong with the folds of a dataset.

    Args:
        folder: The dataset's folder in nnUNet_preprocessed.
        names: Its preprocessed cases.
        fold: The fold that will be trained; "all"; None: any.
        raw_folder: Where the raw dataset is: nnU-Net does not look at splits there.
        endings: What cases may have been given by mistake, such as ".png".
    """
    path = folder / "splits_final.json"
    if fold == "all":
        yield passed("splits", f"fold all: {counted(len(names), 'case')} for training and the same for validation")
        return
    misplaced = raw_folder / path.name
    if misplaced.is_file() and not (path.is_file() and _content(path) == _content(misplaced)):
        state = (
            "differs from"
            if path.is_file()
            else "is not in nnUNet_preprocessed, where nnU-Net makes its own instead of"
        )
        yield warned("splits", f"{path.name} {state} {misplaced}", f"if those are meant: cp '{misplaced}' '{folder}/'")
    if not os.path.lexists(path):
        yield from _check_stock_folds(len(names), fold)
        return
    content = _content(path)
    if isinstance(content, Finding):
        yield content
        return
    findings = collapse(_check_structure(content))
    yield from findings
    if not findings:
        yield from _check_folds(content, names, fold, endings)


def _content(path: Path) -> Any:  # noqa: ANN401 - any JSON
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        fix = "correct it, or remove it: nnU-Net then makes five folds"
        return failed("splits", f"{path} cannot be read: {reason(error, path)}", fix)


def _check_stock_folds(cases: int, fold: int | str | None) -> Iterator[Finding]:
    if cases < _STOCK_FOLDS:
        fix = "train with fold all, or write your own splits_final.json into nnUNet_preprocessed, or add cases"
        yield failed("splits", f"nnU-Net cannot make five folds of {counted(cases, 'case')}", fix)
    elif isinstance(fold, int) and fold >= _STOCK_FOLDS:
        yield _beyond(fold, _STOCK_FOLDS)
    else:
        yield passed("splits", f"no splits_final.json yet; nnU-Net will make five folds of {counted(cases, 'case')}")


def _beyond(fold: int, folds: int) -> Finding:
    detail = f"fold {fold} is not among the {counted(folds, 'fold')} there are; nnU-Net would draw 80 % at random"
    return warned("splits", detail, f"train one of the folds 0 to {folds - 1}")


def _check_structure(content: object) -> Iterator[Finding]:
    fix = 'write a list with one {"train": [names], "val": [names]} for each fold'
    if not isinstance(content, list) or not content:
        yield failed("splits", f"splits_final.json holds {_kind(content)}", fix)
        return
    for number, fold in enumerate(content):
        for part in ("train", "val"):
            cases = fold.get(part) if isinstance(fold, dict) else None
            if not isinstance(cases, list):
                yield failed("splits", f'fold {number}: "{part}" is {_kind(cases)}', fix)
            elif not all(isinstance(case, str) for case in cases):
                yield failed("splits", f'fold {number}: "{part}" holds more than names', fix)


def _kind(value: object) -> str:
    if value is None:
        return "missing"
    return f"an empty {type(value).__name__}" if value in ([], {}, "") else f"a {type(value).__name__}"


def _check_folds(
    content: list[dict[str, list[str]]], names: set[str], fold: int | str | None, endings: tuple[str, ...]
) -> Iterator[Finding]:
    if isinstance(fold, int) and fold >= len(content):
        yield _beyond(fold, len(content))
    problems: list[Finding] = []
    for number, parts in enumerate(content):
        # The faults of a fold that is not trained now do not stop this training.
        asked = not isinstance(fold, int) or fold == number
        faults = _check_fold(number, parts, names, endings)
        problems += faults if asked else [Finding(Level.WARN, each.title, each.detail, each.fix) for each in faults]
    problems += _check_across(content, names)
    problems = collapse(problems)
    yield from problems
    if not problems:
        which = content[fold : fold + 1] if isinstance(fold, int) else content
        sizes = ", ".join(f"{len(parts['train'])}/{len(parts['val'])}" for parts in which[:_STOCK_FOLDS])
        more = ", ..." if len(which) > _STOCK_FOLDS else ""
        yield passed("splits", f"{counted(len(content), 'fold')}; cases for training/validation: {sizes}{more}")


def _check_fold(
    number: int, parts: dict[str, list[str]], names: set[str], endings: tuple[str, ...]
) -> Iterator[Finding]:
    for part in ("train", "val"):
        cases = parts[part]
        if not cases:
            fix = 'give every fold cases for "train" and for "val", or train with fold all'
            yield failed("splits, empty part", f'fold {number}: no case in "{part}"', fix)
        for case in sorted(set(cases) - names):
            plain = next((case.removesuffix(end) for end in endings if case.removesuffix(end) in names), None)
            if plain is not None and plain != case:
                fix = "write the names of cases without file ending and channel number"
                yield failed("splits, names with an ending", f"fold {number}: {case}", fix)
            else:
                fix = "correct the names, or preprocess these cases: a training cannot load them"
                yield failed("splits, unknown cases", f"fold {number}: {case}", fix)
        for case, times in Counter(cases).items():
            if times > 1:
                fix = "name each case once; it is drawn, or validated, more often"
                yield warned("splits, repeated cases", f'fold {number}: {case} {times} times in "{part}"', fix)
    for case in sorted(set(parts["train"]) & set(parts["val"])):
        fix = "take them out of one of the two: the validation would be on cases that were trained on"
        yield failed("splits, overlap of train and val", f"fold {number}: {case}", fix)


def _check_across(content: list[dict[str, list[str]]], names: set[str]) -> Iterator[Finding]:
    used = {case for parts in content for case in (*parts["train"], *parts["val"])}
    for case in sorted(names - used):
        yield warned("splits, cases in no fold", case, "add them to the folds if they should be used")
    validated = Counter(case for parts in content for case in set(parts["val"]))
    for case, times in sorted(validated.items()):
        if times > 1 and case in names:
            fix = "a cross-validation validates each case once; fine for repeated hold-outs"
            yield warned("splits, validated in several folds", f"{case} in {times}", fix)
