"""Draws of whole patients, stratified: shares, and folds of patients or sites."""

from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedGroupKFold

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.splits_paper import Parts, survival_strata
from nnunet_gdla.mil.table_file import listed

__all__ = ["draw_folds", "draw_shares"]

LARGEST_SHARE: Final = 0.9


def draw_shares(table: pd.DataFrame, val_share: float, test_share: float, seed: int) -> Parts:
    """Draw patients within every stratum (class, or event and quartile of time); at least one for each part.

    Raises:
        UserError: If a class, or the events, has fewer patients than there are parts.
    """
    if not (val_share > 0 and test_share >= 0 and val_share + test_share <= LARGEST_SHARE):
        raise UserError(
            f"shares of validation {val_share:g} and test {test_share:g} leave too little to train, or none"
        )
    parts = 3 if test_share else 2
    target = patient_targets(table)
    _enough_patients(target, parts, "parts")
    strata = _patient_strata(table, target, parts)
    generator = np.random.default_rng(seed)
    drawn = Parts([], [], [])
    for _, members in sorted(pd.Series(strata.index, index=strata.to_numpy()).groupby(level=0)):
        patients = sorted(members)
        generator.shuffle(patients)
        test = max(1, round(test_share * len(patients))) if test_share else 0
        val = max(1, round(val_share * len(patients)))
        drawn.test.extend(patients[:test])
        drawn.val.extend(patients[test : test + val])
        drawn.train.extend(patients[test + val :])
    return drawn


def draw_folds(table: pd.DataFrame, groups: str, folds: int, fold: int, val_share: float, seed: int) -> Parts:
    """Cut slides into folds, no group in two of them; one fold is tested, and a part of the others validates.

    Args:
        table: One row per slide.
        groups: Column of what must stay together: patient_id, or site (which must hold whole patients).
        folds: Number of folds.
        fold: Which is tested.
        val_share: Share of all that validates.
        seed: Seed of both cuts.

    Raises:
        UserError: If there are too few groups, or patients of a class.
    """
    if not folds >= 2 or not 0 <= fold < folds:
        raise UserError(f"fold {fold} of {folds}: give at least 2 folds, and a fold from 0 to {folds - 1}")
    if groups not in table:
        raise UserError(f"scheme {groups} needs a column with the {groups} of every slide; name it in the settings")
    if groups != "patient_id":
        _whole_patients(table, groups)
    members = table[groups].nunique()
    if members < max(3, folds):
        raise UserError(
            f"{folds} folds need at least {max(3, folds)} different {groups.removesuffix('_id')}s, there are {members}"
        )
    target = patient_targets(table)
    _enough_patients(target, max(3, folds) if groups == "patient_id" else 3, "folds")
    labels = table.patient_id.map(target)
    test = _fold(labels, table[groups], folds, fold, seed)
    inside = table[~test]
    wanted = max(2, round((1 - 1 / folds) / val_share))
    scarce = int(target[inside.patient_id.unique()].value_counts().min())
    if scarce < wanted and groups == "patient_id":  # folds of so few would validate on far more than was asked for
        share = min(val_share / (1 - 1 / folds), LARGEST_SHARE)
        drawn = draw_shares(inside, share, 0.0, seed * 1000 + 17)
        chosen = inside.patient_id.isin(drawn.val)
        return Parts(list(inside.slide_id[~chosen]), list(inside.slide_id[chosen]), list(table.slide_id[test]))
    parts = max(2, min(wanted, inside[groups].nunique(), scarce))
    val = _fold(labels[~test], inside[groups], parts, 0, seed * 1000 + 17)
    return Parts(list(inside.slide_id[~val]), list(inside.slide_id[val]), list(table.slide_id[test]))


def patient_targets(table: pd.DataFrame) -> pd.Series:
    """Return what is balanced, per patient: the event, or the rarest of the classes of the patient's slides."""
    if "event" in table:
        return table.drop_duplicates("patient_id").set_index("patient_id").event.map({0: "censored", 1: "event"})
    counts = table.label.value_counts()
    ordered = table.assign(rarity=table.label.map(counts)).sort_values(["rarity", "label", "patient_id"])
    return ordered.drop_duplicates("patient_id").set_index("patient_id").label.sort_index()


def _enough_patients(target: pd.Series, needed: int, what: str) -> None:
    counts = target.value_counts()
    few = [f"{name} ({count})" for name, count in sorted(counts.items()) if count < needed]
    if few:
        raise UserError(
            f"too few patients for {needed} {what}: {listed(few)}; merge classes by label_map, ask for fewer folds, or "
            "give your own split"
        )


def _patient_strata(table: pd.DataFrame, target: pd.Series, parts: int) -> pd.Series:
    if "event" not in table:
        return target
    patients = table.drop_duplicates("patient_id").set_index("patient_id")
    return pd.Series(survival_strata(patients.event.to_dict(), patients.time.to_dict(), smallest=max(5, parts)))


def _whole_patients(table: pd.DataFrame, groups: str) -> None:
    places = table.groupby("patient_id")[groups].nunique()
    if (places > 1).any():
        raise UserError(f"patient {listed(places[places > 1].index.tolist())} is in several {groups}s")


def _fold(labels: pd.Series, groups: pd.Series, folds: int, fold: int, seed: int) -> NDArray[np.bool_]:
    splitter = StratifiedGroupKFold(n_splits=folds, shuffle=True, random_state=seed % 2**32)
    rows = list(splitter.split(np.zeros(len(labels)), labels, groups))[fold][1]
    chosen = np.zeros(len(labels), bool)
    chosen[rows] = True
    return chosen
