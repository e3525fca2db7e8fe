"""Planning while trainings read what is there, beside another planning, and after one that was interrupted."""

import pickle
import shutil
import threading
from pathlib import Path

import pytest
from nnunetv2.experiment_planning.plan_and_preprocess_api import plan_experiments, preprocess_dataset

from nnunet_gdla.commands import plan
from nnunet_gdla.commands.plan import run
from nnunet_gdla.in_use import hold, in_use, one_at_a_time
from nnunet_gdla.plans.nnunet_gdla_folders import free_identifier, is_of_family
from tests.plans.plan_command import edit, identifier, parse, stamps
from tests.trainers.nnunet_project import Project


class Training:
    """Something that reads a folder, as a trainer does."""


@pytest.mark.usefixtures("quick_fingerprint")
def test_data_that_a_training_may_read_are_never_made_again_in_place(
    dataset: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(dataset.preprocessed / "nnUNetPlans_2d")
    assert run(parse("-d 850 -np 1 --preprocess")) == 0
    old = dataset.preprocessed / "nnUNetGDLAPlans_2d"
    before = stamps(old)
    for round_, newer in ((2, "imagesTr/a b.0_0000.png"), (3, "labelsTr/a b.1.png")):
        (dataset.raw / newer).touch()
        capsys.readouterr()
        assert run(parse("-d 850 -np 1 --preprocess")) == 0
        shown = capsys.readouterr().out
        assert identifier(dataset) == f"nnUNetGDLAPlans_2d_{round_}"
        assert len(stamps(dataset.preprocessed / identifier(dataset))) == 18
        assert stamps(old) == before
        assert f"{old} is named by no plans any more; if no training reads it, delete it: rm -r {old}" in shown
        assert "one that is continued with --c takes the new plans" in shown
    (dataset.raw / newer).touch()
    training = Training()
    hold(dataset.preprocessed / "nnUNetGDLAPlans_2d_3", training)
    assert run(parse("-d 850 -np 1")) == 0
    assert identifier(dataset) == "nnUNetGDLAPlans_2d_4"
    assert "nnUNetGDLAPlans_2d_3 is named by no plans any more; when the training that" in capsys.readouterr().out


@pytest.mark.usefixtures("quick_fingerprint")
def test_stock_data_are_not_made_again_by_plans_of_their_name(dataset: Project) -> None:
    stock = dataset.preprocessed / "nnUNetPlans_2d"
    before = stamps(stock)
    (dataset.raw / "labelsTr" / "a b.1.png").touch()
    assert run(parse("-d 850 -np 1 --preprocess --plans-name nnUNetPlans --overwrite")) == 0
    assert identifier(dataset, "nnUNetPlans") == "nnUNetPlans_2d_2"
    assert stamps(stock) == before


def test_the_stock_commands_do_not_delete_what_a_training_reads(
    dataset: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    plan_experiments([850], "nnUNetPlannerGDLA_B0")
    preprocess_dataset(850, "nnUNetGDLAPlans_B0", ["2d"], [1], show_progress_bar=False)
    read = dataset.preprocessed / "nnUNetGDLAPlans_B0_2d"
    before, training = stamps(read), Training()
    hold(read, training)
    plan_experiments([850], "nnUNetPlannerGDLA_B0")
    assert "A training reads nnUNetGDLAPlans_B0_2d now" in capsys.readouterr().out
    preprocess_dataset(850, "nnUNetGDLAPlans_B0", ["2d"], [1], show_progress_bar=False)
    assert identifier(dataset, "nnUNetGDLAPlans_B0") == "nnUNetGDLAPlans_B0_2d_2"
    assert stamps(read) == before
    del training
    assert not in_use(read)
    plan_experiments([850], "nnUNetPlannerGDLA_B0")
    assert identifier(dataset, "nnUNetGDLAPlans_B0") == "nnUNetGDLAPlans_B0_2d_2"


def test_an_interrupted_preprocessing_leaves_plans_and_data_as_they_were(
    dataset: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(parse("-d 850 -np 1")) == 0
    plans = dataset.preprocessed / "nnUNetGDLAPlans.json"
    (dataset.preprocessed / "nnUNetPlans_2d" / "a b.3.pkl").unlink()
    before, names = plans.read_text(), set(stamps(dataset.preprocessed))

    def half(name: str, plans_name: str, processes: int) -> None:
        data = dataset.preprocessed / f"{plans_name}_2d"
        data.mkdir()
        (data / "a b.0.b2nd").touch()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(plan, "_preprocess", half)
        with pytest.raises(KeyboardInterrupt):
            run(parse("-d 850 -np 1 --preprocess"))
    assert plans.read_text() == before
    assert set(stamps(dataset.preprocessed)) == names
    killed = dataset.preprocessed / ".unfinished-1-nnUNetGDLAPlans_2d"
    killed.mkdir()
    capsys.readouterr()
    assert run(parse("-d 850 -np 1 --preprocess")) == 0
    assert f"{killed} is left of a planning that was interrupted; delete it: rm -r {killed}" in capsys.readouterr().out
    assert identifier(dataset) == "nnUNetGDLAPlans_2d"


def test_two_plannings_of_a_dataset_come_one_after_the_other(
    dataset: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    told = threading.Event()
    second = threading.Thread(target=run, args=(parse("-d 850"),))
    with one_at_a_time(dataset.preprocessed, told.set):
        second.start()
        second.join(1.0)
        assert second.is_alive()
        assert not (dataset.preprocessed / "nnUNetGDLAPlans.json").exists()
    second.join(60)
    assert not told.is_set()
    assert "waiting for another nnunet-gdla plan of Dataset850_Tiny to end" in capsys.readouterr().out
    assert identifier(dataset) == "nnUNetPlans_2d"


def test_stock_data_with_slices_along_another_axis_are_told_as_such(
    dataset: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spacing 1, 1, 1 with one slice along the last axis: stock planning keeps the order, ours puts it first."""
    edit(dataset.preprocessed / "nnUNetPlans.json", lambda plans: plans.update(transpose_forward=[1, 0, 2]))
    for path in (dataset.preprocessed / "nnUNetPlans_2d").glob("*.pkl"):
        reorder(path)
    assert run(parse("-d 850")) == 0
    shown = capsys.readouterr().out
    assert (
        "nnUNetPlans_2d are not used: nnUNetPlans has the image axes in the order [1, 0, 2], with slices along axis 1; "
        "these plans have [0, 1, 2]." in shown
    )


def reorder(path: Path) -> None:
    properties = pickle.loads(path.read_bytes())
    key = "shape_after_cropping_and_before_resampling"
    first, second, third = properties[key]
    path.write_bytes(pickle.dumps(properties | {key: (second, first, third)}))


def test_names_of_folders(tmp_path: Path) -> None:
    assert free_identifier(tmp_path, "P_2d") == "P_2d"
    for name in ("P_2d", "P_2d_2", "P_2d_4"):
        (tmp_path / name).mkdir()
    assert free_identifier(tmp_path, "P_2d") == "P_2d_3"
    assert [is_of_family(name, "P_2d") for name in ("P_2d", "P_2d_2", "P_2d_10", "P_2d_1", "P_2d_02", "xP_2d")] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]
