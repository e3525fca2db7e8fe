"""Missed objects and false positives: what the means leave out, whose it is, and which differences cannot be called.

An object is a class of a case. It is missed where the truth has it and the prediction has no pixel of it. Distances to
an empty mask are undefined, so a model that misses its hardest objects can have the better mean distance.

Shape legend (this file): N cases, C classes.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool

from nnunet_gdla.evaluation.conventions import WORST, Convention, convention
from nnunet_gdla.evaluation.results import Results
from nnunet_gdla.words import counted

__all__ = [
    "Outcomes",
    "left_out",
    "missed_notes",
    "outcomes",
    "outcomes_as_json",
    "side_by_side",
    "why_not_comparable",
    "wrapped",
]

_SHOWN = 5
_WIDTH = 120
FALSE_DO_NOT_SHOW = "NOTE: images without the object are left out of the means, so false positives there do not show:"
_WORST_ADVICE = "--missed worst counts a missed object with the image's diagonal"
_MONAI_ADVICE = "--convention monai leaves images without the object out for both"


@dataclass(frozen=True)
class Outcomes:
    """Where one of two masks is empty, or both.

    Args:
        missed: The truth has the object, the prediction nothing.
        false: The prediction has it, the truth nothing.
        neither: Both are empty.
    """

    missed: Bool[np.ndarray, "N C"]
    false: Bool[np.ndarray, "N C"]
    neither: Bool[np.ndarray, "N C"]

    @property
    def there(self) -> Bool[np.ndarray, "N C"]:
        """Where the truth has the object."""
        return ~(self.false | self.neither)


def outcomes(results: Results) -> Outcomes | None:
    """Return where masks are empty; None where the results do not hold the sizes of masks."""
    if results.voxels_truth is None or results.voxels_prediction is None:
        return None
    truth, prediction = results.voxels_truth > 0, results.voxels_prediction > 0
    return Outcomes(truth & ~prediction, ~truth & prediction, ~truth & ~prediction)


def outcomes_as_json(results: Results) -> dict[str, Any]:
    """Return for each class the cases in which it was missed, or predicted where it is not, for summary.json."""
    found = outcomes(results)
    if found is None:
        return {}
    return {
        name: {
            "missed": _cases(results, found.missed[:, column]),
            "predicted_without_truth": _cases(results, found.false[:, column]),
            "both_empty": int(found.neither[:, column].sum()),
        }
        for column, name in enumerate(results.classes)
    }


def missed_notes(results: Results) -> str:
    """Return, for below the table, what was missed or invented and what the means make of it; nothing if nothing was.

    With its blank line in front.
    """
    found, rules = outcomes(results), convention(results.convention, results.missed)
    if found is None:
        return ""
    lines: list[str] = []
    if found.missed.any():
        lines.append(_of_missed(rules))
        for column, name in enumerate(results.classes):
            missed, there = found.missed[:, column], found.there[:, column]
            if missed.any():
                of = f"{int(missed.sum())} of {counted(int(there.sum()), 'object')}"
                lines.append(wrapped(f"  {name}: {of} missed ({_some(_cases(results, missed))})"))
    if found.false.any():
        lines.append(_of_false(rules))
        for column, name in enumerate(results.classes):
            false, neither = found.false[:, column], found.neither[:, column]
            if false.any():
                said = (
                    f"{counted(int(false.sum()), 'prediction')} where there is none ({_some(_cases(results, false))})"
                )
                also = f"; {counted(int(neither.sum()), 'case')} with neither" if neither.any() else ""
                lines.append(wrapped(f"  {name}: {said}{also}"))
    return "\n\n" + "\n".join(lines) if lines else ""


def _of_missed(rules: Convention) -> str:
    if rules.missed == WORST:
        return "HD95 and ASSD of missed objects are the image's diagonal (--missed worst):"
    if rules.hd95_undefined == 0:
        return (
            "NOTE: a missed object has HD95 0 in this convention, the best value there is, and ASSD leaves it out:"
            "\na model that misses more can have the better means:"
        )
    return (
        "NOTE: the means of HD95 and ASSD leave missed objects out: a model that misses more can have the better ones;"
        "\n--missed worst counts each with the image's diagonal:"
    )


def _of_false(rules: Convention) -> str:
    if rules.needs_truth:
        return FALSE_DO_NOT_SHOW
    if rules.dice_without_truth == 1:
        hd95 = "" if rules.missed == WORST else " and HD95 0"
        return (
            f"NOTE: a prediction where there is nothing to find has Dice 1{hd95} in this convention, the best there is:"
            "\na model that invents more can have the better means:"
        )
    if rules.missed == WORST:
        return "HD95 and ASSD of predictions where there is nothing to find are the image's diagonal (--missed worst):"
    return (
        "NOTE: the means of HD95 and ASSD leave out predictions where there is nothing to find;"
        "\n--missed worst counts each with the image's diagonal:"
    )


def left_out(results: Results, metric: str) -> Bool[np.ndarray, "N C"]:
    """Return where a metric is undefined, or has the best value by convention although an object was missed."""
    out: Bool[np.ndarray, "N C"] = np.isnan(results.values[metric])
    found, rules = outcomes(results), convention(results.convention)
    if found is None:
        return out
    if metric == "hd95" and rules.hd95_undefined == 0 and results.missed != WORST:
        out = out | found.missed | found.false
    if metric == "dice" and rules.dice_without_truth == 1:
        out = out | found.false
    return out


def why_not_comparable(a: Results, b: Results, cases: Sequence[str], metric: str) -> dict[str, str]:
    """Say for which classes a difference would compare other objects of A than of B.

    Args:
        a: First model.
        b: Second model, with the same classes.
        cases: Cases that both have.
        metric: One of `METRICS`.

    Returns:
        A sentence by class; classes in which the same cases drop out for both are not in it.
    """
    rows_a, rows_b = ([each.cases.index(case) for case in cases] for each in (a, b))
    out_a, out_b = left_out(a, metric)[rows_a], left_out(b, metric)[rows_b]
    reasons = {}
    for column, name in enumerate(a.classes):
        one, two = out_a[:, column], out_b[:, b.classes.index(name)]
        only = {"A": np.flatnonzero(one & ~two), "B": np.flatnonzero(two & ~one)}
        if not any(map(len, only.values())):
            continue
        said = [
            f"{counted(len(rows), 'case')} of {which} alone ({_some([cases[int(row)] for row in rows])})"
            for which, rows in only.items()
            if len(rows)
        ]
        there = np.ones(len(cases)) if a.voxels_truth is None else a.voxels_truth[rows_a, column]
        advice = [_MONAI_ADVICE] if (there[one ^ two] == 0).any() else []
        if (there[one ^ two] > 0).any() and metric in ("hd95", "assd"):
            advice.append(_WORST_ADVICE)
        reasons[name] = f"{' and '.join(said)} would be left out; {', '.join(advice)}"
    return reasons


def side_by_side(a: Results, b: Results) -> str:
    """Return, for below a comparison, how many objects each model missed or invented; nothing where neither did.

    With its blank line in front.
    """
    both = (outcomes(a), outcomes(b))
    lines = []
    for name in a.classes:
        said: list[tuple[int, str]] = []
        for which, results, found in zip("AB", (a, b), both, strict=True):
            if found is not None:
                column = results.classes.index(name)
                missed, false = int(found.missed[:, column].sum()), int(found.false[:, column].sum())
                there = int(found.there[:, column].sum())
                said.append(
                    (missed + false, f"{which} missed {missed} of {there}, predicted {false} where there is none")
                )
        if any(count for count, _ in said):
            lines.append(wrapped(f"  {name}: " + "; ".join(text for _, text in said)))
    if not lines:
        return ""
    rules = convention(a.convention, a.missed)
    hidden = rules.needs_truth and any(found is not None and found.false.any() for found in both)
    return "\n\nobjects (a class of a case):\n" + "\n".join(lines) + (f"\n{FALSE_DO_NOT_SHOW[:-1]}" if hidden else "")


def wrapped(note: str) -> str:
    """Return a note in lines of a terminal's width, all but the first set in."""
    return textwrap.fill(note, _WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def _cases(results: Results, rows: Bool[np.ndarray, " N"]) -> list[str]:
    return [results.cases[row] for row in np.flatnonzero(rows)]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
