"""Splits: patients stay whole, classes and events are spread, the user's own files are followed and audited."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.cohort import Cohort
from nnunet_gdla.mil.config_ranges import unused_of_split
from nnunet_gdla.mil.config_schema import SplitConfig
from nnunet_gdla.mil.prepare import prepare
from nnunet_gdla.mil.splits import Split, audit_split, holdout_split, make_splits, read_split, split_lines, write_split
from tests.mil.small_cohorts import make_cohort, small_config
from tests.unchecked import unchecked


def cohort(patients: int = 60, *, task: Any = "classification", slides: int = 2, classes: int = 3) -> Cohort:  # noqa: ANN401
    """Several slides a patient, in no order, at four sites of two centres."""
    rng = np.random.default_rng(0)
    rows = []
    for number in rng.permutation(patients):
        common = {"patient_id": f"P{number:03d}", "site": f"H{number % 7}", "centre": f"C{number % 2}"}
        time, event = float(rng.integers(1, 3000)), int(rng.random() < 0.4)
        for slide in range(1 + number % slides):
            row = {"slide_id": f"P{number:03d}_{slide}", **common, "path": "x"}
            row |= {"label": f"c{number % classes}"} if task == "classification" else {"time": time, "event": event}
            rows.append(row)
    table = pd.DataFrame(rows)
    names = tuple(sorted(set(table.label))) if task == "classification" else ()
    return Cohort(task, table, names)


def patients_of(split: Split, c: Cohort) -> list[set[str]]:
    owner = dict(zip(c.table.slide_id, c.table.patient_id, strict=True))
    return [{owner[name] for name in part} for part in split[:3]]


@pytest.mark.parametrize("task", ["classification", "survival"])
@pytest.mark.parametrize("scheme", ["paper", "holdout", "kfold", "site", "centre"])
def test_every_scheme_keeps_patients_whole_and_uses_every_slide_once(scheme: Any, task: str) -> None:  # noqa: ANN401
    c = cohort(task=task)
    split = make_splits(c, scheme, seed=3, fold=1)
    train, val, test = patients_of(split, c)
    assert train
    assert val
    assert test
    assert not train & val
    assert not (train | val) & test
    assert sorted([*split.train, *split.val, *split.test]) == sorted(c.table.slide_id)
    assert make_splits(c, scheme, seed=3, fold=1) == split
    assert scheme == "centre" or make_splits(c, scheme, seed=4, fold=1) != split


@pytest.mark.parametrize("scheme", ["paper", "holdout", "kfold"])
def test_every_part_has_every_class(scheme: Any) -> None:  # noqa: ANN401
    c = cohort()
    labels = dict(zip(c.table.slide_id, c.table.label, strict=True))
    for seed in range(5):
        for part in make_splits(c, scheme, seed=seed)[:3]:
            assert {labels[name] for name in part} == set(c.classes)


@pytest.mark.parametrize("scheme", ["holdout", "kfold", "paper"])
def test_every_part_has_events(scheme: Any) -> None:  # noqa: ANN401
    c = cohort(task="survival")
    events = dict(zip(c.table.slide_id, c.table.event, strict=True))
    for seed in range(5):
        for part in make_splits(c, scheme, seed=seed)[:3]:
            assert {events[name] for name in part} == {0, 1}


def test_folds_test_every_slide_once() -> None:
    for scheme in ("kfold", "site"):
        c = cohort()
        tested = [name for fold in range(5) for name in make_splits(c, scheme, fold=fold, seed=1).test]
        assert sorted(tested) == sorted(c.table.slide_id)


def test_sites_stay_whole() -> None:
    c = cohort()
    site = dict(zip(c.table.slide_id, c.table.site, strict=True))
    for fold in range(5):
        parts = [{site[name] for name in part} for part in make_splits(c, "site", fold=fold)[:3]]
        assert not parts[0] & parts[1]
        assert not (parts[0] | parts[1]) & parts[2]


def test_a_centre_is_left_out_by_number_or_name() -> None:
    c = cohort()
    centre = dict(zip(c.table.slide_id, c.table.centre, strict=True))
    for split in (make_splits(c, "centre", fold=1), make_splits(c, "centre", centre="C1")):
        assert {centre[name] for name in split.test} == {"C1"}
        assert {centre[name] for name in (*split.train, *split.val)} == {"C0"}
    for wrong in ({"fold": 2}, {"centre": "C7"}):
        with pytest.raises(UserError, match=r"no centre .* to leave out; there are 2: C0, C1"):
            make_splits(c, "centre", **wrong)


def test_shares_are_those_that_were_asked_for() -> None:
    c = cohort(300, slides=1)
    split = make_splits(c, "holdout", val_share=0.2, test_share=0.3)
    assert [len(part) for part in split[:3]] == [150, 60, 90]
    split = make_splits(c, "holdout", test_share=0.0)
    assert [len(part) for part in split[:3]] == [270, 30, 0]
    for shares in ({"val_share": 0.0}, {"val_share": 0.5, "test_share": 0.5}, {"test_share": -0.1}):
        with pytest.raises(UserError, match="leave too little to train, or none"):
            make_splits(c, "holdout", **shares)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"scheme": "kfold", "folds": 1}, "give at least 2 folds"),
        ({"scheme": "kfold", "fold": 5}, "fold 5 of 5"),
        ({"scheme": "kfold", "fold": -1}, "fold -1 of 5"),
        ({"scheme": "kfold", "folds": 30}, r"too few patients for 30 folds: c0 \(20\), c1 \(20\), c2 \(20\)"),
        ({"scheme": "kfold", "folds": 61}, "61 folds need at least 61 different patients, there are 60"),
        ({"scheme": "site", "folds": 8}, "8 folds need at least 8 different sites, there are 7"),
        ({"scheme": "file"}, "needs a split file, or a column split"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_splits(cohort(), **kwargs)


def test_too_small_cohorts_are_one_sentence() -> None:
    small = cohort(6)
    for scheme in ("holdout", "kfold"):
        with pytest.raises(UserError, match=r"too few patients for . (parts|folds): c0 \(2\)"):
            make_splits(small, scheme)
    with pytest.raises(UserError, match="holds all 3 classes, so none validates"):
        make_splits(small, "paper")
    with pytest.raises(UserError, match=r"too few patients for 3 parts: event \(0\)|censored \(1\)|event \(1\)"):
        make_splits(cohort(4, task="survival"), "holdout")
    with pytest.raises(UserError, match="without labels can only be split by a file"):
        make_splits(Cohort(None, small.table), "holdout")
    with unchecked(), pytest.raises(ValueError, match="unknown scheme 'random'; choose one of paper, holdout"):
        make_splits(small, "random")  # type: ignore[arg-type]
    for column in ("site", "centre"):
        with pytest.raises(UserError, match=f"scheme {column} needs a column with the {column} of every slide"):
            make_splits(Cohort(small.task, small.table.drop(columns=column), small.classes), column)


def test_a_patient_at_two_sites_is_named() -> None:
    c = cohort()
    c.table.loc[c.table.slide_id == "P001_1", "site"] = "H6"
    with pytest.raises(UserError, match="patient P001 is in several sites"):
        make_splits(c, "site")


def written(path: Path, columns: Sequence[str], rows: Sequence[Sequence[str]], *, index: bool = False) -> Path:
    pd.DataFrame(rows, columns=list(columns)).to_csv(path, index=index)
    return path


OWN = {"train": ["P000_0", "P002_0"], "val": ["P001_0", "P001_1"], "test": ["P003_0", "P003_1"]}


@pytest.mark.parametrize("form", ["wide", "bool", "slides", "patients", "extensions", "column"])
def test_own_splits_in_every_form(tmp_path: Path, form: str) -> None:
    c, path = cohort(), tmp_path / "own.csv"
    if form == "wide":
        pd.DataFrame({part: pd.Series(names) for part, names in OWN.items()}).to_csv(path)
    elif form == "bool":
        rows = {name: [name in names for names in OWN.values()] for names in OWN.values() for name in names}
        pd.DataFrame.from_dict(rows, orient="index", columns=list(OWN)).to_csv(path)
    elif form == "slides":
        written(path, ["slide_id", "split"], [[n, {"val": "validation"}.get(p, p)] for p in OWN for n in OWN[p]])
    elif form == "patients":
        rows = sorted({(name[:4], part) for part, names in OWN.items() for name in names})
        written(path, ["patient_id", "part"], rows)
    elif form == "extensions":
        written(path, ["slide_id", "part"], [[f"/data/{n}.svs", p.upper()] for p in OWN for n in OWN[p]])
    else:
        where = {name: part for part, names in OWN.items() for name in names}
        c.table["split"] = c.table.slide_id.map(where).fillna("")
    split = make_splits(c, "file", file=None if form == "column" else path)
    assert [sorted(part) for part in split[:3]] == list(OWN.values())
    lines = split_lines(split, c)
    assert lines[0].startswith("PASS train: 2 slides of 2 patients; c0 1, c1 0, c2 1")
    assert lines[-1].startswith("WARN in no part: 84 slides: ")


def test_a_part_that_lacks_a_class_is_pointed_out() -> None:
    c = cohort()
    first, second = c.table.slide_id[c.table.label == "c0"].tolist(), c.table.slide_id[c.table.label == "c1"].tolist()
    split = Split((*first[4:], *second), tuple(first[:4]), ())
    val = f"WARN val has no slide with label {', '.join(c.classes[1:])}: in means over classes of recall, precision "
    rest = "and F1 they count 0 there; their AUC and average precision, and so their means, are undefined"
    assert [line for line in split_lines(split, c) if " no slide " in line] == [val + rest]
    one = c.table.slide_id[c.table.label != "c2"].tolist()
    split = Split(tuple(c.table.slide_id[c.table.label == "c2"]), tuple(one), ())
    line = next(line for line in split_lines(split, c) if " no slide " in line)
    assert "label c2: in means over classes of recall, precision and F1 it counts 0 there; its AUC" in line


def test_what_a_scheme_does_not_use_is_said() -> None:
    def unused(column: bool = False, **settings: Any) -> str | None:  # noqa: ANN401
        return unused_of_split(SplitConfig(**settings), column=column)

    assert unused() is None
    assert unused(scheme="paper", seed=42, rule="survival") is None
    assert unused(scheme="paper", val_share=0.3, test_share=0.4, column=True) == (
        "scheme paper does not use split.val_share, split.test_share, the column split of the table: choose another "
        "split.scheme if it should"
    )
    assert unused(scheme="file", column=True) is None
    assert "scheme file with split.file does not use the column" in (unused(scheme="file", file="f", column=True) or "")
    assert "holdout does not use split.fold:" in (unused(fold=1) or "")
    assert "kfold does not use split.test_share:" in (unused(scheme="kfold", fold=1, test_share=0.1) or "")
    assert unused(scheme="centre", fold=1, centre="A", val_share=0.2) is None


def test_a_check_warns_of_what_the_scheme_does_not_use(tmp_path: Path) -> None:
    make_cohort(tmp_path, "survival", slides=60)
    config = small_config(tmp_path, "survival")
    config.split = SplitConfig(scheme="paper", val_share=0.3)
    lines: list[str] = []
    prepare(config, check_files=False, say=lines.append)
    assert "WARN scheme paper does not use split.val_share: choose another split.scheme if it should" in lines


def test_own_splits_without_validation_draw_it_from_training(tmp_path: Path) -> None:
    c = cohort()
    rows = [[name, "test" if name < "P010" else "train"] for name in c.table.slide_id]
    split = make_splits(c, "file", file=written(tmp_path / "own.csv", ["slide_id", "part"], rows), seed=2)
    train, val, test = patients_of(split, c)
    assert len(test) == 10
    assert len(val) == 6
    assert len(train) == 44
    assert "0.1 of train validates" in split.name
    assert "WARN the split has no part val, so 0.1 of train validates (seed 2): 10 slides" in split_lines(split, c)


@pytest.mark.parametrize(
    ("columns", "rows", "message"),
    [
        (["slide_id", "part"], [["P000_0", "train"], ["P00l_0", "val"]], r"1 of 2 names .*: P00l_0 \(nearest .*P00"),
        (["slide_id", "part"], [["P001_0", "train"], ["P001_1", "val"]], r"1 patient: P001 \(train and val\)"),
        (["slide_id", "part"], [["P000_0", "train"], ["P000_0", "val"]], r"1 slide: P000_0 \(train and val\)"),
        (["slide_id", "part"], [["P000_0", "train"], ["P002_0", "holdout"]], "unknown part 'holdout'; use train"),
        (["slide_id", "part"], [["P000_0", "val"], ["P002_0", "test"]], "no slide is in part train"),
        (["slide", "fold"], [["P000_0", "1"]], "is no split: expected columns train, val, test"),
    ],
)
def test_own_splits_that_cannot_be_right_are_refused(
    tmp_path: Path, columns: list[str], rows: list[list[str]], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        make_splits(cohort(), "file", file=written(tmp_path / "own.csv", columns, rows))


def test_names_that_are_not_there_can_be_allowed(tmp_path: Path) -> None:
    rows = [["P000_0", "train"], ["gone", "train"], ["P001_0", "val"]]
    path = written(tmp_path / "own.csv", ["slide_id", "part"], rows)
    split = make_splits(cohort(), "file", file=path, allow_missing=True)
    assert split[:3] == (("P000_0",), ("P001_0",), ())
    assert split.name == f"{path} (3 names, 1 not in the cohort: gone)"


def test_an_audit_names_what_is_wrong() -> None:
    c = cohort()
    with pytest.raises(UserError, match="not in the cohort: 1 slide: nobody"):
        audit_split(Split(("P000_0",), ("P002_0",), ("nobody",)), c)
    with pytest.raises(UserError, match=r"several parts: 1 patient: P001 \(test and train\)"):
        audit_split(Split(("P001_0",), ("P002_0",), ("P001_1",)), c)
    with pytest.raises(UserError, match="no slide is in part val"):
        audit_split(Split(("P000_0",), (), ("P002_0",)), c)
    audit_split(Split(("P000_0",), ("P002_0",), ()), c)


def test_a_written_split_reads_back_equal(tmp_path: Path) -> None:
    c = cohort()
    c.table["slide_id"] = [f"{number:04d}" for number in range(len(c.table))]
    split = make_splits(c, "holdout")
    path = tmp_path / "run" / "split.csv"
    write_split(path, split, c)
    assert pd.read_csv(path, dtype=str).columns.tolist() == ["slide_id", "patient_id", "part"]
    assert read_split(path)[:3] == split[:3]
    assert [each.name for each in path.parent.iterdir()] == ["split.csv"]
    path.write_text("slide_id,part\na,elsewhere\n")
    with pytest.raises(UserError, match="is no written split"):
        read_split(path)


def test_the_rule_of_the_publication_follows_the_cohort() -> None:
    assert "survival" in holdout_split(cohort(task="survival").table, 42).name
    assert "stratified" in holdout_split(cohort(slides=1).table, 42).name
    assert "grouped" in holdout_split(cohort().table, 42).name
    assert holdout_split(cohort().table, 42, rule="centre").test
    assert holdout_split(cohort(slides=1).table, 42, rule="provider").test
    for rule in ("stratified", "provider"):
        with pytest.raises(UserError, match=f"rule {rule} splits slides, but some patients have several"):
            holdout_split(cohort().table, 42, rule=rule)
    with unchecked(), pytest.raises(ValueError, match="unknown rule 'any'; choose one of auto"):
        holdout_split(cohort().table, 42, rule="any")  # type: ignore[arg-type]


def rare(patients: int = 60, few: int = 6) -> Cohort:
    """A class of few patients among many, one slide each."""
    labels = ["rare" if number < few else "common" for number in range(patients)]
    ids = [f"P{number:03d}" for number in range(patients)]
    sites = [f"H{number % 7}" for number in range(patients)]
    table = pd.DataFrame({"slide_id": ids, "patient_id": ids, "path": "x", "label": labels, "site": sites})
    return Cohort("classification", table, ("common", "rare"))


@pytest.mark.parametrize("fold", range(5))
def test_m3_a_rare_class_does_not_blow_up_the_validation_part_of_a_fold(fold: int) -> None:
    c = rare(200)
    split = make_splits(c, "kfold", fold=fold, val_share=0.1)
    assert 18 <= len(split.val) <= 22
    labels = dict(zip(c.table.slide_id, c.table.label, strict=True))
    for part in split[:3]:
        assert {labels[name] for name in part} == {"common", "rare"}
    assert split.note == ""


def test_m3_another_share_than_asked_is_said() -> None:
    c = rare(12, few=6)
    split = make_splits(c, "site", folds=3, val_share=0.05)
    lines = split_lines(split, c)
    used = len(split.val) / 12
    assert f"WARN validation has {used:.0%} of the patients ({len(split.val)} of 12), asked for were 5%" in "\n".join(
        lines
    )


@pytest.mark.parametrize("scheme", ["paper", "holdout", "kfold", "site", "centre", "file"])
@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, 5.0, float("nan")])
def test_m3_a_share_outside_0_and_1_is_refused_in_every_scheme(scheme: Any, share: float) -> None:  # noqa: ANN401
    with pytest.raises(UserError, match=r"val_share is .*; it must be greater than 0 and less than 1"):
        make_splits(cohort(), scheme, val_share=share)
