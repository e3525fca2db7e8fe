"""`nnunet-gdla plan` on a dataset that has changed, is unfit, or has plans of that name already."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from nnunet_gdla.commands.plan import run
from nnunet_gdla.errors import UserError
from tests.plans.plan_command import edit, identifier, parse, stamps
from tests.trainers.nnunet_project import Project


@pytest.mark.usefixtures("quick_fingerprint")
def test_data_older_than_their_raw_files_are_made_anew(dataset: Project, capsys: pytest.CaptureFixture[str]) -> None:
    (dataset.raw / "labelsTr" / "a b.3.png").touch()
    assert run(parse("-d 850 -np 1 --preprocess")) == 0
    assert "The data in nnUNetPlans_2d are not used: raw files of 1 case (a b.3) are newer." in capsys.readouterr().out
    assert identifier(dataset) == "nnUNetGDLAPlans_2d"
    (dataset.raw / "imagesTr" / "a b.0_0000.png").touch()
    before = stamps(dataset.preprocessed / "nnUNetGDLAPlans_2d")
    assert run(parse("-d 850")) == 0
    shown = capsys.readouterr().out
    assert "The data in nnUNetGDLAPlans_2d are not used: raw files of 1 case (a b.0) are newer." in shown
    assert "nnUNetGDLAPlans_2d_2 (to be made: nnUNetv2_preprocess -d 850" in shown
    assert run(parse("-d 850 -np 1 --preprocess")) == 0
    assert identifier(dataset) == "nnUNetGDLAPlans_2d_2"
    assert stamps(dataset.preprocessed / "nnUNetGDLAPlans_2d") == before
    capsys.readouterr()
    assert run(parse("-d 850")) == 0
    shown = capsys.readouterr().out
    assert "nnUNetGDLAPlans_2d are not used" not in shown
    assert "nnUNetGDLAPlans_2d_2\n" in shown


def drop(dataset: Project, case: str) -> None:
    for part in (f"imagesTr/{case}_0000.png", f"labelsTr/{case}.png"):
        (dataset.raw / part).unlink()
    edit(dataset.raw / "dataset.json", lambda content: content.update(numTraining=content["numTraining"] - 1))


def copy(dataset: Project, case: str, other: str) -> None:
    for part in ("imagesTr/{}_0000.png", "labelsTr/{}.png"):
        shutil.copy2(dataset.raw / part.format(case), dataset.raw / part.format(other))
    edit(dataset.raw / "dataset.json", lambda content: content.update(numTraining=content["numTraining"] + 1))


@pytest.mark.usefixtures("quick_fingerprint")
def test_cases_that_were_added_or_removed_make_data_stale(dataset: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """A removed case would still be trained on: nnU-Net takes all that lie in the folder."""
    assert run(parse("-d 850 -np 1")) == 0
    assert identifier(dataset) == "nnUNetPlans_2d"
    drop(dataset, "a b.5")
    capsys.readouterr()
    assert run(parse("-d 850 -np 1 --preprocess")) == 0
    shown = capsys.readouterr().out
    assert "The data in nnUNetPlans_2d are not used: 1 case there (a b.5) not in the raw dataset." in shown
    assert identifier(dataset) == "nnUNetGDLAPlans_2d"
    before = stamps(dataset.preprocessed / "nnUNetGDLAPlans_2d")
    copy(dataset, "a b.4", "new")
    assert run(parse("-d 850 -np 1")) == 0
    shown = capsys.readouterr().out
    assert "The data in nnUNetGDLAPlans_2d are not used: 1 case (new) not there." in shown
    assert "nnUNetGDLAPlans_2d_2 (to be made: nnUNetv2_preprocess -d 850" in shown
    assert stamps(dataset.preprocessed / "nnUNetGDLAPlans_2d") == before
    assert run(parse("-d 850 -np 1 --preprocess")) == 0
    shown = capsys.readouterr().out
    assert "to be made" not in shown
    assert (dataset.preprocessed / "nnUNetGDLAPlans_2d_2" / "new.b2nd").is_file()


def test_stock_data_of_other_labels_are_told(dataset: Project, capsys: pytest.CaptureFixture[str]) -> None:
    edit(dataset.raw / "dataset.json", lambda content: content.update(labels={"background": 0, "disc": 1}))
    assert run(parse("-d 850 -np 1")) == 0
    shown = capsys.readouterr().out
    assert "The data in nnUNetPlans_2d are not used: they were made for other labels or channels" in shown
    assert "nnUNetGDLAPlans_2d (to be made: " in shown


def fingerprint(dataset: Project) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((dataset.preprocessed / "dataset_fingerprint.json").read_text())
    return content


@pytest.mark.usefixtures("quick_fingerprint")
def test_a_missing_fingerprint_is_taken_and_one_of_other_cases_again(
    dataset: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(dataset.preprocessed)
    assert run(parse("-d Dataset850_Tiny -np 1")) == 0
    captured = capsys.readouterr()
    assert "taking the fingerprint of Dataset850_Tiny" in captured.out
    assert "6/6" in captured.err
    assert (dataset.preprocessed / "nnUNetGDLAPlans.json").is_file()
    for part in ("imagesTr/a b.5_0000.png", "labelsTr/a b.5.png"):
        (dataset.raw / part).unlink()
    edit(dataset.raw / "dataset.json", lambda content: content.update(numTraining=5))
    assert run(parse("-d 850 -np 1")) == 0
    shown = capsys.readouterr().out
    assert "is out of date (it knows 6 cases, the dataset has 5) and is taken anew" in shown
    assert len(fingerprint(dataset)["spacings"]) == 5
    assert run(parse("-d 850 -np 1")) == 0
    assert "fingerprint" not in capsys.readouterr().out


@pytest.mark.usefixtures("quick_fingerprint")
@pytest.mark.parametrize("newer", [True, False])
def test_images_of_another_size_are_planned_and_preprocessed_anew(
    newer: bool, dataset: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    before = fingerprint(dataset)["shapes_after_crop"]
    for path in (*dataset.raw.glob("imagesTr/*"), *dataset.raw.glob("labelsTr/*")):
        times = path.stat()
        with Image.open(path) as image:
            image.resize((image.width * 2, image.height * 2), Image.Resampling.NEAREST).save(path)
        if not newer:  # as an archiver leaves them
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert run(parse("-d 850 -np 1 --preprocess")) == 0
    shown = capsys.readouterr().out
    why = "raw files of 6 cases (a b.0, a b.1, a b.2, ...) are newer" if newer else "of another size or spacing"
    assert why in shown
    assert "The data in nnUNetPlans_2d are not used" in shown
    after = fingerprint(dataset)["shapes_after_crop"]
    assert after == [[shape[0], 2 * shape[1], 2 * shape[2]] for shape in before]
    assert identifier(dataset) == "nnUNetGDLAPlans_2d"
    assert run(parse("-d 850 -np 1")) == 0
    assert "to be made" not in capsys.readouterr().out


def test_plans_of_another_planner_are_not_replaced(dataset: Project, capsys: pytest.CaptureFixture[str]) -> None:
    stock = dataset.preprocessed / "nnUNetPlans.json"
    before = stock.read_text()
    with pytest.raises(UserError, match=r"nnUNetPlans already, made by ExperimentPlanner.*--plans-name.*--overwrite"):
        run(parse("-d 850 --plans-name nnUNetPlans"))
    assert stock.read_text() == before
    assert run(parse("-d 850 --plans-name mine")) == 0
    with pytest.raises(UserError, match="mine already, made by nnUNetPlannerGDLA:"):
        run(parse("-d 850 --plans-name mine -e pvt_v2_b0"))
    capsys.readouterr()
    assert run(parse("-d 850 --plans-name mine -e pvt_v2_b0 --overwrite")) == 0
    assert "mine was there and is now another: encoder pvt_v2_b2 -> pvt_v2_b0. " in capsys.readouterr().out


def test_planning_again_says_what_has_changed(dataset: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(parse("-d 850 --batch-size 5")) == 0
    assert run(parse("-d 850 --batch-size 5")) == 0
    assert "was there" not in capsys.readouterr().out
    assert run(parse("-d 850 --batch-size 6 --patch-size 96 64")) == 0
    assert "batch 5 -> 6" in (shown := capsys.readouterr().out)
    assert "-> [96, 64]" in shown
    assert shown.count("was there and is now another") == 1


def test_too_large_a_wish_is_answered_with_one_that_fits(dataset: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(parse("-d 850 --batch-size 5000")) == 0
    fitting = int(re.findall(r"a batch of (\d+) fits\.", capsys.readouterr().out)[0])
    assert run(parse(f"-d 850 --batch-size {fitting}")) == 0
    assert "more than" not in capsys.readouterr().out
    assert run(parse("-d 850 --patch-size 3200 3200")) == 0
    edges = re.findall(r"a patch of (\d+) x (\d+) with a batch of 2 fits\.", capsys.readouterr().out)[0]
    assert run(parse(f"-d 850 --patch-size {' '.join(edges)}")) == 0
    assert "more than" not in capsys.readouterr().out


def no_cases(raw: Path) -> None:
    for path in raw.glob("imagesTr/*"):
        path.unlink()


def no_json(raw: Path) -> None:
    (raw / "dataset.json").write_text('{"labels"')


def no_list(raw: Path) -> None:
    (raw / "dataset.json").write_text("[1]")


def two_channels(raw: Path) -> None:
    edit(raw / "dataset.json", lambda content: content.update(channel_names={"0": "a", "1": "b"}))


def a_number_in_quotes(raw: Path) -> None:
    edit(raw / "dataset.json", lambda content: content.update(numTraining="6"))


def a_label_gone(raw: Path) -> None:
    (raw / "labelsTr" / "a b.3.png").unlink()


def a_broken_image(raw: Path) -> None:
    (raw / "imagesTr" / "a b.0_0000.png").write_bytes(b"no image")


def test_another_number_of_cases_is_noted(dataset: Project, capsys: pytest.CaptureFixture[str]) -> None:
    edit(dataset.raw / "dataset.json", lambda content: content.update(numTraining=60))
    assert run(parse("-d 850 -np 1")) == 0
    assert "NOTE: " + str(dataset.raw / "dataset.json") in (shown := capsys.readouterr().out)
    assert "says numTraining 60, there are 6 training cases; the batch is limited by what it says" in shown


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (no_cases, "has no training cases"),
        (no_json, "dataset.json cannot be read"),
        (no_list, "holds a list"),
        (two_channels, "names 2 channels, the files of a b.0 have 1"),
        (a_number_in_quotes, "it is '6': write the number"),
        (a_label_gone, r"1 raw file not there \(.*a b.3.png\)"),
        (a_broken_image, r"a b\.0_0000\.png cannot be read \(.*remove all files of the case"),
    ],
)
def test_unfit_datasets_end_in_a_sentence_and_leave_nothing(
    damage: Callable[[Path], None], message: str, known: bool, dataset: Project
) -> None:
    if not known:
        shutil.rmtree(dataset.preprocessed.parent)
    damage(dataset.raw)
    with pytest.raises(UserError, match=message):
        run(parse("-d 850 -np 1"))
    assert dataset.preprocessed.parent.exists() == known
    assert not (dataset.preprocessed / "nnUNetGDLAPlans.json").exists()


def test_a_folder_that_cannot_be_made_is_named(dataset: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    file = dataset.root / "file"
    file.touch()
    monkeypatch.setenv("nnUNet_preprocessed", str(file / "preprocessed"))
    with pytest.raises(UserError, match=r"cannot be written.*nnUNet_preprocessed"):
        run(parse("-d 850 -np 1"))
