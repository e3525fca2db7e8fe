"""The seed hold-outs of the publication, member for member, through the table that users give."""

import re

import pandas as pd
import pytest

from nnunet_gdla.mil.splits import Split, holdout_split
from nnunet_gdla.mil.splits_paper import survival_strata
from tests.srp_golden import SrpFile, srp_params

GOLDEN = srp_params("splits")


def seeds(golden: SrpFile, name: str) -> list[int]:
    found = {int(match[1]) for key in golden.arrays if (match := re.fullmatch(rf"{name}_seed(\d+)_test", key))}
    assert found
    return sorted(found)


def check(golden: SrpFile, name: str, seed: int, split: Split, column: pd.Series) -> None:
    """Compare the distinct entries of a column over the slides of each part."""
    for part in ("train", "val", "test"):
        found = set(column[list(getattr(split, part))])
        assert found == set(golden.arrays[f"{name}_seed{seed}_{part}"].tolist()), (name, seed, part)


@pytest.mark.parametrize("name", ["surv_rich", "surv_sparse"])
@pytest.mark.parametrize("golden", GOLDEN)
def test_survival(golden: SrpFile, name: str) -> None:
    arrays = golden.arrays
    table = pd.DataFrame({"patient_id": arrays[f"{name}_case"], "time": arrays[f"{name}_time"]})
    table["event"] = arrays[f"{name}_event"]
    table["slide_id"] = table.patient_id + "_a"
    second = table.iloc[::3].assign(slide_id=table.patient_id + "_b")  # slides do not count, cases do
    table = pd.concat([table, second], ignore_index=True)
    patients = table.set_index("slide_id").patient_id
    for seed in seeds(golden, name):
        check(golden, name, seed, holdout_split(table, seed), patients)
    cases = table.drop_duplicates("patient_id").set_index("patient_id")
    strata = set(survival_strata(cases.event.to_dict(), cases.time.to_dict()).values())
    by_time = str(arrays[f"{name}_stratification"]) == "event_time_quartile"
    assert any("_time" in stratum for stratum in strata) == by_time


@pytest.mark.parametrize("golden", GOLDEN)
def test_stratified_slides(golden: SrpFile) -> None:
    units, groups = golden.arrays["strat_unit"].tolist(), golden.arrays["strat_group"].astype(str)
    table = pd.DataFrame({"slide_id": units, "patient_id": units, "label": groups}).sample(frac=1, random_state=0)
    by_centre = table.rename(columns={"label": "centre"}).assign(label="any", slide_id=table.slide_id + ".x")
    for seed in seeds(golden, "strat"):
        check(golden, "strat", seed, holdout_split(table, seed), table.set_index("slide_id").patient_id)
        split = holdout_split(by_centre, seed, rule="centre")
        check(golden, "strat", seed, split, by_centre.set_index("slide_id").patient_id)


@pytest.mark.parametrize("golden", GOLDEN)
def test_slides_by_provider_and_grade_in_table_order(golden: SrpFile) -> None:
    arrays = golden.arrays
    rows = range(len(arrays["panda_grade"]))
    names = [f"slide {row}" for row in rows]
    table = pd.DataFrame({"slide_id": names, "patient_id": names, "centre": arrays["panda_provider"]})
    table["label"] = arrays["panda_grade"].astype(str)
    numbers = pd.Series(rows, index=names)
    for seed in seeds(golden, "panda"):
        check(golden, "panda", seed, holdout_split(table, seed, rule="provider"), numbers)


@pytest.mark.parametrize("golden", GOLDEN)
def test_patients_with_slides_of_several_classes(golden: SrpFile) -> None:
    arrays = golden.arrays
    table = pd.DataFrame({"slide_id": arrays["group_slide"], "patient_id": arrays["group_patient"]})
    table["label"] = arrays["group_label"].astype(str)
    for seed in seeds(golden, "group"):
        check(golden, "group", seed, holdout_split(table, seed), table.set_index("slide_id").patient_id)
