"""The seed hold-outs of the Gated SRP publication, member for member: four rules, each for a kind of cohort.

"Shuffle" is that of numpy's `Generator` on a Python list; ties are broken totally, so that a seed means one split.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nnunet_gdla.errors import UserError

__all__ = ["Parts", "grouped_holdout", "stratified_holdout", "survival_holdout", "survival_strata"]

TEST_SHARE: Final = 0.2
VAL_SHARE: Final = 0.1
TEST_PARTS: Final = 5
SURVIVAL_VAL_PARTS: Final = 8
GROUPED_VAL_PARTS: Final = 10
SMALLEST_STRATUM: Final = 5


class Parts(NamedTuple):
    """Names (or row numbers) of the three parts."""

    train: list[str]
    val: list[str]
    test: list[str]


def stratified_holdout(groups: Mapping[Any, Sequence[str]], seed: int) -> Parts:
    """Cut every group into test (0.2), validation (0.1 of the rest) and training, at least one each where it can be.

    Args:
        groups: Units of every group, in the order in which they are to be shuffled; the groups in the order of a visit.
        seed: One generator serves all groups.
    """
    generator = np.random.default_rng(seed)
    train: list[str] = []
    val: list[str] = []
    test: list[str] = []
    for units in groups.values():
        shuffled = list(units)
        generator.shuffle(shuffled)
        n_test = min(max(1, round(TEST_SHARE * len(shuffled))), len(shuffled) - 2) if len(shuffled) > 2 else 0
        rest = len(shuffled) - n_test
        n_val = min(max(1, round(VAL_SHARE * rest)), rest - 1) if rest > 1 else 0
        test += shuffled[:n_test]
        val += shuffled[n_test : n_test + n_val]
        train += shuffled[n_test + n_val :]
    return Parts(train, val, test)


def survival_strata(
    event: Mapping[str, int], time: Mapping[str, float], *, smallest: int = SMALLEST_STRATUM
) -> dict[str, str]:
    """Return the stratum of every case: event and quartile of time, or event alone where one would be too small."""
    edges = np.unique(np.quantile(np.array(list(time.values()), dtype=np.float64), [0.25, 0.5, 0.75]))
    quartile = {case: int(np.searchsorted(edges, time[case], side="right")) for case in event}
    both = {case: f"event{event[case]}_time{quartile[case]}" for case in event}
    sizes = np.unique(list(both.values()), return_counts=True)[1]
    return both if sizes.min() >= smallest else {case: f"event{event[case]}" for case in event}


def survival_holdout(event: Mapping[str, int], time: Mapping[str, float], seed: int) -> Parts:
    """Deal cases into five parts by stratum: the first is the test part; the rest into eight: the first validates."""
    strata = survival_strata(event, time)
    test = _dealt(strata, list(strata), TEST_PARTS, seed)[0]
    rest = sorted(set(strata) - set(test))
    val = _dealt(strata, rest, SURVIVAL_VAL_PARTS, seed * 1000 + 17)[0]
    return Parts(sorted(set(rest) - set(val)), sorted(val), sorted(test))


def _dealt(strata: Mapping[str, str], cases: Sequence[str], parts: int, seed: int) -> list[list[str]]:
    generator = np.random.default_rng(seed)
    dealt: list[list[str]] = [[] for _ in range(parts)]
    members: dict[str, list[str]] = defaultdict(list)
    for case in sorted(cases):
        members[strata[case]].append(case)
    for stratum in sorted(members):
        generator.shuffle(members[stratum])
        for place, case in enumerate(members[stratum]):
            dealt[place % parts].append(case)
    return dealt


def grouped_holdout(counts: Mapping[str, NDArray[np.int64]], seed: int) -> Parts:
    """Spread patients over five parts so that classes stay balanced; test is part `seed` mod 5.

    Of the rest, spread over ten parts, that one validates which holds all classes and comes closest to a tenth.

    Args:
        counts: Slides per class of every patient.
        seed: Chooses the part.

    Raises:
        UserError: If no validation part holds every class.
    """
    test = _spread(counts, TEST_PARTS, seed)[seed % TEST_PARTS]
    pool = {patient: vector for patient, vector in counts.items() if patient not in set(test)}
    parts = _spread(pool, GROUPED_VAL_PARTS, seed * 1000 + 17)
    total = np.sum(list(pool.values()), axis=0)
    scores = [_validation_score(part, pool, total) for part in parts]
    val = parts[int(np.argmin(scores))]
    absent = np.flatnonzero(np.sum([pool[patient] for patient in val], axis=0) == 0) if val else range(len(total))
    if len(absent):
        raise UserError(
            f"no tenth of the patients holds all {len(total)} classes, so none validates; use scheme holdout or kfold"
        )
    return Parts(sorted(set(pool) - set(val)), sorted(val), sorted(test))


def _spread(counts: Mapping[str, NDArray[np.int64]], parts: int, seed: int) -> list[list[str]]:
    """Greedy: rare classes and large patients first, each to where the squared misfit to the target grows least."""
    generator = np.random.default_rng(seed)
    patients = sorted(counts)
    patients = [patients[place] for place in generator.permutation(len(patients))]
    total = np.sum(list(counts.values()), axis=0).astype(np.float64)
    weight = np.divide(1.0, total, out=np.zeros_like(total), where=total > 0)

    def rank(patient: str) -> tuple[float, int, int, str]:
        vector = counts[patient]
        return -float((vector * weight).sum()), -int((vector > 0).sum()), -int(vector.sum()), patient

    patients.sort(key=rank)
    target, target_size = total / parts, total.sum() / parts
    filled = np.zeros((parts, len(total)))
    result: list[list[str]] = [[] for _ in range(parts)]
    for patient in patients:
        order = generator.permutation(parts)
        misfit = []
        for part in order:
            tried = filled.copy()
            tried[part] += counts[patient]
            by_class = (np.square(tried - target) / (target + 1)).sum()
            by_size = (np.square(tried.sum(1) - target_size) / (target_size + 1)).sum()
            misfit.append((float(by_class + 0.05 * by_size), float(filled[part].sum()), int(part)))
        chosen = min(misfit)[2]
        filled[chosen] += counts[patient]
        result[chosen].append(patient)
    return result


def _validation_score(part: Sequence[str], pool: Mapping[str, NDArray[np.int64]], total: NDArray[np.int64]) -> float:
    held = np.sum([pool[patient] for patient in part], axis=0) if part else np.zeros_like(total)
    wanted, wanted_size = VAL_SHARE * total, VAL_SHARE * len(pool)
    by_class = (np.abs(held - wanted) / (wanted + 1)).sum()
    by_size = abs(len(part) - wanted_size) / (wanted_size + 1)
    return float(1000 * (held == 0).sum() + by_class + 0.25 * by_size)
