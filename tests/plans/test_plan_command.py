"""`nnunet-gdla plan`, and the stock command beside it: whose data are used, made, left alone."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import SimpleITK as sitk
from nnunetv2.experiment_planning.plan_and_preprocess_api import (
    plan_experiments,
    preprocess_dataset,
)
from nnunetv2.utilities.plans_handling.plans_handler import PlansManager

from nnunet_gdla.commands import arguments_plan
from nnunet_gdla.commands.plan import run
from nnunet_gdla.errors import UserError
from nnunet_gdla.networks.encoder import ENCODERS
from nnunet_gdla.trainers import resolve
from nnunet_gdla.trainers.nnunet_gdla_network import refuse_plans
from tests.plans.fingerprints import write_fingerprint
from tests.plans.plan_command import edit, identifier, parse, stamps
from tests.trainers.nnunet_project import Project, threads_for_pools


def test_stock_data_are_used_again_and_stay_as_they_are(dataset: Project, capsys: pytest.CaptureFixture[str]) -> None:
    data = dataset.preprocessed / "nnUNetPlans_2d"
    before = stamps(data)
    assert run(parse("-d 850 -e pvt_v2_b0 --preprocess")) == 0
    assert identifier(dataset, "nnUNetGDLAPlans_B0") == "nnUNetPlans_2d"
    assert stamps(data) == before
    assert not (dataset.preprocessed / "nnUNetGDLAPlans_B0_2d").exists()
    shown = capsys.readouterr().out
    assert "nnUNetv2_train 850 2d 0 -tr nnUNetTrainerGDLA_B0 -p nnUNetGDLAPlans_B0\n" in shown
    assert "to be made" not in shown
    for row in ("patch", "batch", "memory", "data"):
        assert f"\n{row} " in shown


@pytest.mark.parametrize("encoder", ENCODERS)
def test_the_printed_training_command_names_a_trainer_that_takes_the_plans(
    encoder: str, dataset: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(parse(f"-d 850 -e {encoder} --device cpu --memory 30 --plans-name mine")) == 0
    command = capsys.readouterr().out.splitlines()[-1].split()[1:]
    _, number, configuration, fold, _, name, _, plans, *device = command
    assert (number, configuration, fold, plans, device) == ("850", "2d", "0", "mine", ["-device", "cpu"])
    manager = PlansManager(dataset.plans(plans))
    trainer = resolve(name)
    assert trainer.encoder in (None, encoder)
    refuse_plans(manager, configuration, trainer.decoder, trainer.encoder)  # raises where they do not fit
    assert name.endswith("GDLA" if encoder == "pvt_v2_b2" else encoder.replace("pvt_v2_b", "_B"))


def test_the_stock_command_makes_its_own_data_and_leaves_the_stock_ones(dataset: Project) -> None:
    data = dataset.preprocessed / "nnUNetPlans_2d"
    before = stamps(data)
    for _ in range(2):
        plan_experiments([850], "nnUNetPlannerGDLA_B0")
        assert identifier(dataset, "nnUNetGDLAPlans_B0") == "nnUNetGDLAPlans_B0_2d"
        preprocess_dataset(850, "nnUNetGDLAPlans_B0", ["2d"], [1], show_progress_bar=False)
        assert stamps(data) == before
    # What the stock command made is used by ours as it is.
    own = stamps(dataset.preprocessed / "nnUNetGDLAPlans_B0_2d")
    assert run(parse("-d 850 -e pvt_v2_b0 --preprocess")) == 0
    assert identifier(dataset, "nnUNetGDLAPlans_B0") == "nnUNetGDLAPlans_B0_2d"
    assert stamps(dataset.preprocessed / "nnUNetGDLAPlans_B0_2d") == own


@pytest.mark.parametrize(
    ("place", "key", "value"),
    [
        ("configuration", "spacing", [2.0, 2.0]),
        ("configuration", "normalization_schemes", ["NoNormalization"]),
        ("configuration", "use_mask_for_norm", [True]),
        ("configuration", "resampling_fn_data_kwargs", {"order": 1}),
        ("configuration", "preprocessor_name", "MyPreprocessor"),
        ("configuration", "data_identifier", "elsewhere"),
        ("plans", "transpose_forward", [1, 0, 2]),
        ("plans", "image_reader_writer", "SimpleITKIO"),
        ("plans", "foreground_intensity_properties_per_channel", {}),
    ],
)
def test_stock_data_made_otherwise_are_not_used(place: str, key: str, value: Any, dataset: Project) -> None:  # noqa: ANN401
    def change(plans: dict[str, Any]) -> None:
        (plans if place == "plans" else plans["configurations"]["2d"])[key] = value

    edit(dataset.preprocessed / "nnUNetPlans.json", change)
    assert run(parse("-d 850")) == 0
    assert identifier(dataset) == "nnUNetGDLAPlans_2d"


def test_stock_data_with_other_labels_or_a_missing_case_are_not_used(dataset: Project) -> None:
    edit(dataset.preprocessed / "dataset.json", lambda content: content.update(labels={"background": 0, "one": [1, 2]}))
    assert run(parse("-d 850")) == 0
    assert identifier(dataset) == "nnUNetGDLAPlans_2d"
    (dataset.preprocessed / "nnUNetPlans_2d" / "a b.0.pkl").unlink()
    assert run(parse("-d 850")) == 0  # by now the copy of dataset.json is new
    assert identifier(dataset) == "nnUNetGDLAPlans_2d"


@pytest.mark.parametrize(
    "labels",
    [
        {"background": 0, "disc": 1},
        {"background": 0, "disc": 1, "corner": 2, "third": 3},
        {"background": 0, "disc": 1, "ignore": 2},
    ],
)
def test_stock_data_of_other_labels_are_not_used_after_a_stock_planning(
    labels: dict[str, int], dataset: Project
) -> None:
    edit(dataset.raw / "dataset.json", lambda content: content.update(labels=labels))
    plan_experiments([850], "ExperimentPlanner")  # now the copy of dataset.json beside the old data is new
    assert dataset.dataset_json()["labels"] == labels
    assert run(parse("-d 850")) == 0
    assert identifier(dataset) == "nnUNetGDLAPlans_2d"


def test_data_of_regions_are_known_by_their_labels(dataset: Project) -> None:
    regions = {"background": 0, "whole": [1, 2], "core": 1}
    edit(dataset.raw / "dataset.json", lambda content: content.update(labels=regions, regions_class_order=[2, 1]))
    plan_experiments([850], "ExperimentPlanner")
    preprocess_dataset(850, "nnUNetPlans", ["2d"], [1], show_progress_bar=False)
    assert run(parse("-d 850")) == 0
    assert identifier(dataset) == "nnUNetPlans_2d"
    edit(dataset.raw / "dataset.json", lambda content: content.update(labels=regions | {"core": 2}))
    plan_experiments([850], "ExperimentPlanner")
    assert run(parse("-d 850")) == 0
    assert identifier(dataset) == "nnUNetGDLAPlans_2d"


@pytest.mark.parametrize("content", [b"", b"no pickle", pickle.dumps({}), pickle.dumps([1])])
def test_data_with_a_damaged_file_are_not_used(content: bytes, dataset: Project) -> None:
    (dataset.preprocessed / "nnUNetPlans_2d" / "a b.0.pkl").write_bytes(content)
    assert run(parse("-d 850")) == 0
    assert identifier(dataset) == "nnUNetGDLAPlans_2d"


def test_an_interrupted_planning_leaves_the_earlier_plans(dataset: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(parse("-d 850")) == 0
    plans = dataset.preprocessed / "nnUNetGDLAPlans.json"
    before, names = plans.read_text(), set(stamps(dataset.preprocessed))
    written = Path.write_text

    def half(path: Path, text: str) -> int:
        written(path, text[: len(text) // 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(KeyboardInterrupt):
        run(parse("-d 850 --batch-size 5"))
    assert plans.read_text() == before
    assert set(stamps(dataset.preprocessed)) == names


def test_preprocessing_runs_once(dataset: Project, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(dataset.preprocessed / "nnUNetPlans_2d")
    assert run(parse("-d 850 -np 1")) == 0
    assert "to be made: nnUNetv2_preprocess -d 850 -plans_name nnUNetGDLAPlans -c 2d" in capsys.readouterr().out
    data = dataset.preprocessed / "nnUNetGDLAPlans_2d"
    assert not data.exists()
    assert run(parse("-d 850 -np 1 --preprocess")) == 0
    made = stamps(data)
    assert len(made) == 18  # six cases: image, mask, properties
    assert run(parse("-d 850 -np 1 --preprocess")) == 0
    assert stamps(data) == made
    next(data.glob("*.pkl")).unlink()  # as after a stop in the middle
    assert run(parse("-d 850 -np 1 --preprocess")) == 0
    assert len(stamps(data)) == 17
    assert len(stamps(dataset.preprocessed / identifier(dataset))) == 18


def test_data_of_other_settings_are_not_passed_off_as_those_of_the_plans(dataset: Project) -> None:
    shutil.rmtree(dataset.preprocessed / "nnUNetPlans_2d")
    assert run(parse("-d 850 -np 1 --preprocess")) == 0
    plans = dataset.preprocessed / "nnUNetGDLAPlans.json"
    edit(plans, lambda content: content["configurations"]["2d"].update(spacing=[3.0, 3.0]))
    before = plans.read_text()
    with pytest.raises(UserError, match=r"other settings.*--preprocess.*--plans-name"):
        run(parse("-d 850"))
    assert plans.read_text() == before
    assert run(parse("-d 850 --plans-name another")) == 0
    assert run(parse("-d 850 -np 1 --preprocess")) == 0
    assert identifier(dataset) == "nnUNetGDLAPlans_2d_2"


def test_what_is_asked_for_reaches_the_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def planned(line: str, plans: str = "nnUNetGDLAPlans") -> dict[str, Any]:
        assert run(parse(f"-d 700 {line}")) == 0
        flat: dict[str, Any] = json.loads((preprocessed / f"{plans}.json").read_text())["configurations"]["2d"]
        return flat

    preprocessed = tmp_path / "preprocessed" / "Dataset700_Form"
    write_fingerprint(tmp_path, monkeypatch, [(1, 512, 512)] * 4, num_training=5000)
    image = sitk.GetImageFromArray(np.ones((1, 512, 512), dtype=np.uint8))
    image.SetSpacing((1.0, 1.0, 999.0))
    for file in (tmp_path / "raw").rglob("*.nii.gz"):
        sitk.WriteImage(image, file)
    (preprocessed / "dataset_fingerprint.json").touch()
    with threads_for_pools():
        small, large = planned("-gpu_memory_target 6"), planned("-gpu_memory_target 24")
        assert small["batch_size"] < large["batch_size"]
        on_cpu = planned("-e pvt_v2_b1 --device cpu --memory 16", "nnUNetGDLAPlans_B1")
        assert on_cpu["architecture"]["arch_kwargs"]["encoder"] == "pvt_v2_b1"
        assert on_cpu["batch_size"] == 2
        paper = planned("--patch-size 224 224 --batch-size 24 --plans-name paper", "paper")
        assert (paper["patch_size"], paper["batch_size"]) == ([224, 224], 24)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-d 123", "123 is not in"),
        ("-d 850 --memory 4", "--memory for --device cpu"),
        ("-d 850 --device cpu -gpu_memory_target 4", "-gpu_memory_target is for --device cuda"),
        ("-d 850 -gpu_memory_target 0", "0 GB of memory train nothing: give at least"),
        ("-d 850 -gpu_memory_target -3", "-3 GB of memory"),
        ("-d 850 -gpu_memory_target nan", "nan GB of memory"),
        ("-d 850 -gpu_memory_target inf", "inf GB of memory"),
        ("-d 850 -gpu_memory_target 1e-9", "1e-09 GB of memory"),  # stock planning would never end
        ("-d 850 --patch-size 100 64", "multiples of 32"),
        ("-d 850 --batch-size 0", "at least 1"),
        ("-d 850 -np 0", "at least 1"),
        ("-d 850 --plans-name a__b", "plain name"),
        ("-d 850 --plans-name ../a", "plain name"),
    ],
)
def test_wrong_wishes_are_refused_in_a_sentence(line: str, message: str, project: Project) -> None:
    with pytest.raises(UserError, match=message):
        run(parse(line))


@pytest.mark.parametrize("variable", ["nnUNet_raw", "nnUNet_preprocessed"])
def test_unset_folders_are_named(variable: str, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(variable)
    with pytest.raises(UserError, match=f"{variable} is not set"):
        run(parse("-d 850"))


def test_every_example_is_understood() -> None:
    lines = [line.strip() for line in arguments_plan.DETAILS.splitlines() if line.startswith("  nnunet-gdla plan ")]
    parsed = [parse(line.removeprefix("nnunet-gdla plan ")) for line in lines]
    assert [args.dataset for args in parsed] == ["4", "4", "4", "Dataset004_Hippocampus"]
    assert parsed[1].gpu_memory_target == 24
    assert (parsed[2].device, parsed[2].memory, parsed[2].encoder, parsed[2].preprocess) == (
        "cpu",
        16,
        "pvt_v2_b0",
        True,
    )
    assert (parsed[3].patch_size, parsed[3].batch_size, parsed[3].plans_name) == ([224, 224], 24, "nnUNetGDLAPlans_224")


def test_the_command_offers_the_encoders_there_are() -> None:
    assert arguments_plan.ENCODERS == ENCODERS
