import json
from pathlib import Path

import pytest

from nnunet_gdla.errors import UserError
from nnunet_gdla.recipes import RECIPES
from nnunet_gdla.recipes.layout import Case
from nnunet_gdla.recipes.splits import Split, audit, paper_split, read_split, without

CASES = [Case(f"c{k:03d}", f"g{k // 2:03d}", (), (f"original ({k})",)) for k in range(200)]


def sizes(split: Split) -> tuple[int, int, int]:
    (fold,) = split.folds
    return len(fold.train), len(fold.val), len(split.test)


@pytest.mark.parametrize(
    ("name", "number", "wanted"),
    [("busi", 780, (624, 78, 78)), ("ph2", 200, (80, 20, 100)), ("ham10000", 10015, (7010, 1002, 2003))],
)
def test_parts_have_the_papers_sizes(name: str, number: int, wanted: tuple[int, int, int]) -> None:
    alone = [Case(f"c{k:05d}", f"g{k}", ()) for k in range(number)]
    split = paper_split(alone, RECIPES[name])
    assert sizes(split) == wanted
    assert "paper-ratio, seed 0" in split.title
    assert len(split.named) == number


def test_a_split_depends_on_the_seed_and_not_on_the_order() -> None:
    first = paper_split(CASES, RECIPES["acdc"])
    assert first == paper_split(CASES[::-1], RECIPES["acdc"])
    assert first != paper_split(CASES, RECIPES["acdc"], seed=1)
    assert sizes(first) == (140, 20, 40)
    assert audit(first, CASES) == []


def test_a_drawn_split_is_the_same_for_ever() -> None:
    cases = [Case(f"c{k}", f"c{k}", ()) for k in range(10)]
    split = paper_split(cases, RECIPES["busi"])
    assert (split.folds[0].val, split.test) == (("c9",), ("c6",))


def write(tmp_path: Path, name: str, content: object) -> Path:
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_own_splits_in_every_form(tmp_path: Path) -> None:
    parts = {"train": ["c000", "original (1)", "original (1).png"], "val": ["g001"], "test": ["c010.nii.gz"]}
    csv = "case,part\n" + "".join(f"{name},{part}\n" for part, names in parts.items() for name in names)
    for path in (write(tmp_path, "own.json", parts), write(tmp_path, "own.csv", csv)):
        split = read_split(path, CASES)
        assert split.folds[0].train == ("c000", "c001")
        assert split.folds[0].val == ("c002", "c003")
        assert split.test == ("c010",)
        assert split.title == f"your own, {path.name}"
    rows = ["; ".join(reversed(line.split(","))) for line in csv.splitlines()[1:]]
    for separator in (";", "\t"):
        text = "\n".join(["\ufeffPart; CASE", *rows, ""]).replace(";", separator).replace("train", "Train")
        split = read_split(write(tmp_path, "spreadsheet.csv", text), CASES)
        assert (split.folds[0].train, split.test) == (("c000", "c001"), ("c010",))
    folds = [{"train": ["c000"], "val": ["c002"]}, {"train": ["c002"], "val": ["c000"]}]
    split = read_split(write(tmp_path, "folds.json", folds), CASES)
    assert split.nnunet() == folds
    assert split.test == ()


def test_without_validation_cases_the_training_cases_stand_in(tmp_path: Path) -> None:
    split = read_split(write(tmp_path, "own.json", {"train": ["c000"], "test": ["c002"]}), CASES)
    assert split.nnunet() == [{"train": ["c000"], "val": ["c000"]}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"train": ["c000", "c999"], "val": ["nobody"]},
            "2 cases not there: c999, nobody; .* like c000",
        ),
        ({"train": ["c000"], "val": ["original (0)"]}, "has 1 case in train and in val: c000"),
        ({"train": ["c000"], "test": ["c000"]}, "has 1 case in train and in test"),
        ({"train": ["c000"], "val": ["c001"], "test": ["c001"]}, "has 1 case in val and in test"),
        ({"train": [], "val": ["c001"]}, "without training cases"),
        ({"training": ["c000"]}, 'has to be {"train"'),
        ({"train": ["c000"], "vall": []}, 'has to be {"train"'),
        ({"train": "c000"}, 'has to be {"train"'),
        ([{"train": ["c000"], "val": [], "test": []}], 'has to be {"train"'),
        ([], 'has to be {"train"'),
        ("train: c000", "is no JSON"),
    ],
)
def test_own_splits_that_cannot_be_right_are_refused(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_split(write(tmp_path, "own.json", content), CASES)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("name,part\nc000,train\n", "needs the columns case and part"),
        ("case,part\nc000,dev\n", "line 2 .* 'c000' in 'dev'"),
    ],
)
def test_own_tables_that_cannot_be_right_are_refused(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_split(write(tmp_path, "own.csv", content), CASES)
    with pytest.raises(UserError, match="there is no split file"):
        read_split(tmp_path / "absent.csv", CASES)


def test_groups_on_both_sides_are_found(tmp_path: Path) -> None:
    torn = {"train": ["c000", "c002", "c004"], "val": ["c001"], "test": ["c003"]}
    split = read_split(write(tmp_path, "own.json", torn), CASES)
    assert audit(split, CASES) == ["g000 is in train and val", "g001 is in train and test"]
    folds = [{"train": ["c000"], "val": ["c002"]}, {"train": ["c000"], "val": ["c001"]}]
    assert audit(read_split(write(tmp_path, "f.json", folds), CASES), CASES) == ["g000 is in train and val of fold 1"]


def test_cases_can_be_taken_out() -> None:
    split = without(paper_split(CASES, RECIPES["ph2"]), ["c000", "c001"])
    assert len(split.named) == 198


@pytest.mark.parametrize("name", ["acdc", "busi", "ham10000", "ph2", "synapse"])
def test_one_case_is_too_few_for_this_split(name: str) -> None:
    for case in ("case0005", "case0001"):  # of Synapse's list, a training case and a test case
        with pytest.raises(UserError, match=r"^1 case is too few for this split \(.*training [01], .*test [01]; "):
            paper_split([Case(case, case, ())], RECIPES[name])


def test_what_is_too_few_is_counted_in_cases_and_groups() -> None:
    with pytest.raises(UserError) as caught:
        paper_split([Case(f"c{k}", "one patient", ()) for k in range(4)], RECIPES["acdc"])
    assert str(caught.value) == (
        "4 cases of 1 group are too few for this split (training / validation / test 70 / 10 / 20, of which 6 or more "
        "give each part one): training 4, validation 0, test 0; complete the folder with the rest of the release, or "
        "give a split of your own with --split"
    )
