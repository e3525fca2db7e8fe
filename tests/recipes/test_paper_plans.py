import argparse
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnunet_gdla.commands import arguments_recipes, recipe
from nnunet_gdla.errors import UserError
from nnunet_gdla.paper_settings import read_paper_settings
from nnunet_gdla.recipes import RECIPES
from nnunet_gdla.recipes.catalogue import PaperModel
from nnunet_gdla.recipes.paper_plans import paper_plans


def run_recipe(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    arguments_recipes.recipe(parser)
    return recipe.run(parser.parse_args([str(argument) for argument in arguments]))


def plans_of(size: list[float], spacing: list[float]) -> dict[str, Any]:
    plan = {
        "data_identifier": "nnUNetPlans_2d",
        "batch_size": 7,
        "patch_size": [512, 512],
        "median_image_size_in_voxels": size,
        "spacing": spacing,
        "normalization_schemes": ["ZScoreNormalization"],
        "use_mask_for_norm": [True],
        "architecture": {"network_class_name": "nnunet_gdla.networks.PVTGDLA", "arch_kwargs": {"gate": "silu"}},
    }
    properties = {"max": 3000.0, "mean": 90.0, "median": 100.0, "min": -900.0}
    properties |= {"percentile_00_5": -150.0, "percentile_99_5": 250.0, "std": 70.0}
    return {
        "plans_name": "nnUNetGDLAPlans",
        "configurations": {"2d": plan},
        "foreground_intensity_properties_per_channel": {"0": properties},
    }


@pytest.mark.parametrize(
    ("name", "epochs", "warmup", "steps", "augmentation", "convention"),
    [
        ("synapse", 200, 10, 277, "slices", "transunet"),
        ("acdc", 150, 10, 82, "slices", "monai"),
        ("busi", 100, 10, 39, "photographs", "monai"),
        ("ham10000", 150, 10, 450, "photographs", "monai"),
        ("ph2", 100, 5, 5, "photographs", "monai"),
    ],
)
def test_plans_hold_the_papers_lengths(
    name: str, epochs: int, warmup: int, steps: int, augmentation: str, convention: str
) -> None:
    paper = RECIPES[name]
    for run, plans_name in ((1, "nnUNetGDLAPaperPlans"), (3, "nnUNetGDLAPaperPlans_run3")):
        made = paper_plans(plans_of([224.0, 224.0], [1.0, 1.0]), paper, ["US"], run=run)
        assert made["plans_name"] == plans_name
        assert made["configurations"]["2d"]["data_identifier"] == "nnUNetGDLAPaperPlans_2d"  # preprocessed once
        assert made["nnunet_gdla_paper"] == {
            "recipe": name,
            "epochs": epochs,
            "warmup_epochs": warmup,
            "steps_per_epoch": steps,
            "augmentation": augmentation,
            "seed": 41 + run,
        }
        assert read_paper_settings(made) is not None
    assert paper.convention == convention


SELF = PaperModel("nnUNetTrainerPVTSelfAttn_Paper")


@pytest.mark.parametrize(
    ("trainer", "source", "plans"),
    [
        ("nnUNetTrainerGDLA_Paper", "nnUNetGDLAPlans", "nnUNetGDLAPaperPlans"),
        ("nnUNetTrainerGDLA_B0_Paper_2epochs", "nnUNetGDLAPlans_B0", "nnUNetGDLAPaperPlans_B0"),
        ("nnUNetTrainerPVTDiffAttn_B4_Paper", "nnUNetGDLAPlans_B4", "nnUNetGDLAPaperPlans_B4_diff"),
    ],
)
def test_plans_of_other_networks_have_names_of_their_own(trainer: str, source: str, plans: str) -> None:
    assert (PaperModel(trainer).source_plans, PaperModel(trainer).plans()) == (source, plans)
    assert PaperModel(trainer).plans(3) == f"{plans}_run3"


def test_comparators_have_plans_with_their_decoder(capsys: pytest.CaptureFixture[str]) -> None:
    made = paper_plans(plans_of([224.0, 224.0], [1.0, 1.0]), RECIPES["ph2"], ["R", "G", "B"], model=SELF, run=2)
    assert made["plans_name"] == "nnUNetGDLAPaperPlans_self_run2"
    assert made["configurations"]["2d"]["architecture"]["arch_kwargs"]["decoder"] == "self"
    run_recipe("ph2", "-tr", "nnUNetTrainerPVTSelfAttn_Paper")
    out = capsys.readouterr().out
    assert "nnUNetv2_train 505 2d 0 -tr nnUNetTrainerPVTSelfAttn_Paper -p nnUNetGDLAPaperPlans_self\n" in out
    assert "nnunet-gdla recipe ph2 -d 505 -tr nnUNetTrainerPVTSelfAttn_Paper --write-plans" in out


@pytest.mark.parametrize("trainer", ["nnUNetTrainerGDLA", "nnUNetTrainer", "nnUNetTrainerGDLA_Paper_DiceCE"])
def test_trainers_that_read_no_recipe_are_refused(trainer: str) -> None:
    with pytest.raises(UserError, match="is not a trainer of ours with _Paper"):
        run_recipe("ph2", "-tr", trainer)


def test_squares_without_their_black_borders_keep_their_pixels() -> None:
    made = paper_plans(plans_of([220.0, 224.0], [1.0, 1.0]), RECIPES["busi"], ["US"])
    assert made["configurations"]["2d"]["spacing"] == [1.0, 1.0]
    made = paper_plans(plans_of([448.0, 672.0], [1.0, 1.0]), RECIPES["busi"], ["US"])
    assert made["configurations"]["2d"]["spacing"] == [2.0, 3.0]


def test_the_median_slice_becomes_224_by_224() -> None:
    before = plans_of([256.0, 216.0], [1.5, 1.25])
    kept = json.dumps(before)
    made = paper_plans(before, RECIPES["acdc"], ["MRI"])
    assert json.dumps(before) == kept
    plan = made["configurations"]["2d"]
    assert plan["patch_size"] == [224, 224]
    assert plan["batch_size"] == 16
    assert plan["spacing"] == pytest.approx([1.5 * 256 / 224, 1.25 * 216 / 224])
    assert [s * 224 for s in plan["spacing"]] == pytest.approx([1.5 * 256, 1.25 * 216])
    assert plan["data_identifier"] == "nnUNetGDLAPaperPlans_2d"
    assert made["plans_name"] == "nnUNetGDLAPaperPlans"
    assert made["experiment_planner_used"] == "nnunet-gdla recipe"
    assert plan["normalization_schemes"] == ["RescaleTo01Normalization"]
    assert plan["use_mask_for_norm"] == [False]
    assert plan["architecture"] == before["configurations"]["2d"]["architecture"]


def test_hounsfield_units_are_clipped_and_scaled_by_nnunets_own_ct_scheme() -> None:
    from nnunetv2.preprocessing.normalization.default_normalization_schemes import CTNormalization

    made = paper_plans(plans_of([512.0, 512.0], [0.8, 0.8]), RECIPES["synapse"], ["CT"])
    assert made["configurations"]["2d"]["normalization_schemes"] == ["CTNormalization"]
    assert made["configurations"]["2d"]["batch_size"] == 8
    scheme = CTNormalization(False, made["foreground_intensity_properties_per_channel"]["0"])
    scaled = scheme.run(np.array([-1000.0, -125.0, 75.0, 275.0, 2000.0]), None)
    np.testing.assert_allclose(scaled, [0.0, 0.0, 0.5, 1.0, 1.0])


def test_prepared_intensities_are_left_alone() -> None:
    made = paper_plans(plans_of([512.0, 512.0], [1.0, 1.0]), RECIPES["synapse"], ["noNorm"])
    assert made["configurations"]["2d"]["normalization_schemes"] == ["NoNormalization"]
    made = paper_plans(plans_of([224.0, 224.0], [1.0, 1.0]), RECIPES["ph2"], ["R", "G", "B"])
    assert made["configurations"]["2d"]["normalization_schemes"] == 3 * ["RescaleTo01Normalization"]
    assert made["configurations"]["2d"]["spacing"] == [1.0, 1.0]


def test_plans_are_written_beside_ours(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folders / "preprocessed" / "Dataset503_BUSI"
    with pytest.raises(UserError, match="plan first: nnunet-gdla plan -d 503"):
        run_recipe("busi", "--write-plans")
    folder.mkdir()
    (folder / "dataset.json").write_text(json.dumps({"channel_names": {"0": "US"}}))
    (folder / "nnUNetGDLAPlans.json").write_text(json.dumps(plans_of([224.0, 224.0], [1.0, 1.0])))
    assert run_recipe("busi", "--write-plans") == 0
    assert json.loads((folder / "nnUNetGDLAPaperPlans.json").read_text())["configurations"]["2d"]["batch_size"] == 16
    assert "nnUNetv2_preprocess -d 503 -plans_name nnUNetGDLAPaperPlans -c 2d" in capsys.readouterr().out


def test_other_plans_of_that_name_are_replaced_only_when_asked_to(folders: Path) -> None:
    folder = folders / "preprocessed" / "Dataset503_BUSI"
    folder.mkdir()
    (folder / "dataset.json").write_text(json.dumps({"channel_names": {"0": "US"}}))
    (folder / "nnUNetGDLAPlans.json").write_text(json.dumps(plans_of([224.0, 224.0], [1.0, 1.0])))
    run_recipe("busi", "--write-plans")
    target = folder / "nnUNetGDLAPaperPlans.json"
    made = json.loads(target.read_text())
    assert run_recipe("busi", "--write-plans") == 0  # the same again is no loss
    for other in (json.dumps(made | {"mine": 1}), "{"):
        target.write_text(other)
        with pytest.raises(UserError, match="nnUNetGDLAPaperPlans"):
            run_recipe("busi", "--write-plans")
        assert target.read_text() == other
        assert run_recipe("busi", "--write-plans", "--overwrite") == 0
        assert json.loads(target.read_text()) == made


def test_a_number_of_another_dataset_is_named(folders: Path) -> None:
    (folders / "preprocessed" / "Dataset906_Other").mkdir()
    with pytest.raises(UserError, match="number 906 is Dataset906_Other"):
        run_recipe("busi", "-d", 906, "--write-plans")


@pytest.mark.parametrize("name", ["dataset.json", "nnUNetGDLAPlans.json"])
@pytest.mark.parametrize("content", ["{", "[1]", "{}"])
def test_damaged_files_end_in_a_sentence(name: str, content: str, folders: Path) -> None:
    folder = folders / "preprocessed" / "Dataset503_BUSI"
    folder.mkdir()
    (folder / "dataset.json").write_text(json.dumps({"channel_names": {"0": "US"}}))
    (folder / "nnUNetGDLAPlans.json").write_text(json.dumps(plans_of([224.0, 224.0], [1.0, 1.0])))
    (folder / name).write_text(content)
    with pytest.raises(UserError):
        run_recipe("busi", "--write-plans")


def test_plans_of_other_networks_are_refused(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = plans_of([512.0, 512.0], [1.0, 1.0])
    foreign["configurations"]["2d"]["architecture"]["network_class_name"] = "PlainConvUNet"
    with pytest.raises(UserError, match="no 2d configuration with PVTGDLA"):
        paper_plans(foreign, RECIPES["busi"], ["US"])
    monkeypatch.delenv("nnUNet_preprocessed")
    with pytest.raises(UserError, match="nnUNet_preprocessed is not set"):
        run_recipe("busi", "--write-plans")


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_a_shell_script_with_our_and_nnunets_commands(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_recipe(name, "-d", 77) == 0
    out = capsys.readouterr().out
    commands = [shlex.split(line) for line in out.splitlines() if not line.startswith("#")]
    assert [command[:2] for command in commands] == [
        ["nnunet-gdla", "convert"],
        ["nnunet-gdla", "doctor"],
        ["nnunet-gdla", "plan"],
        ["nnunet-gdla", "recipe"],
        ["nnUNetv2_preprocess", "-d"],
        ["nnUNetv2_train", "77"],
        ["nnUNetv2_predict", "-d"],
        ["nnunet-gdla", "evaluate"],
    ]
    assert "https://" in out
    assert "arXiv:2603.02727" in out or re.search(r"Dice in % to compare with: PVT-GDLA \d\d\.\d\d", out)
    assert [command[-1] for command in commands if command[0] == "nnUNetv2_predict"] == ["--disable_tta"]
    assert "-chk checkpoint_best.pth" in out
    assert commands[-1][-2:] == ["--convention", RECIPES[name].convention]
    assert f"nnunet-gdla recipe {name} -d 77 --runs 3" in out
    trainer = "nnUNetTrainerGDLA_Paper"
    assert [trainer in command for command in commands] == [False] * 5 + [True, True, False]
    assert f"Dataset077_{RECIPES[name].title}/labelsTs" in out
    parser = argparse.ArgumentParser()
    arguments_recipes.convert(parser)
    convert = parser.parse_args(commands[0][2:])
    assert (convert.name, convert.dataset_id, convert.size) == (name, 77, 224 if RECIPES[name].square else None)
    parser = argparse.ArgumentParser()
    arguments_recipes.recipe(parser)
    assert parser.parse_args(commands[3][2:]).write_plans


def test_a_recipe_says_that_its_number_is_taken(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folders / "raw" / "Dataset077_BUSI").mkdir()
    run_recipe("busi", "-d", 77)
    assert "NOTE" not in capsys.readouterr().out
    run_recipe("ph2", "-d", 77)
    assert capsys.readouterr().out.startswith("# NOTE: number 77 is taken by ")


@pytest.mark.parametrize("size", ["0", "100000", "x"])
def test_a_size_that_fills_the_memory_or_is_none_is_wrong_usage(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    arguments_recipes.convert(parser)
    with pytest.raises(SystemExit) as caught:
        parser.parse_args(["busi", "source", "-d", "77", "--size", size])
    assert caught.value.code == 2
    assert "--size" in capsys.readouterr().err


def test_a_recipe_says_what_it_equals(capsys: pytest.CaptureFixture[str]) -> None:
    run_recipe("acdc")
    out = capsys.readouterr().out
    assert "As in the paper: 150 epochs of 82 steps = 12300 steps," in out
    assert "warm-up 10 epochs = 820 steps, batch 16," in out
    assert "PVT-GDLA 92.53, DiffAttn 92.20, SelfAttn 92.10, LinearAttn 91.77, EMCAD-B2 92.12" in out
    assert "the split, drawn as 70 / 10 / 20 with seed 0 (paper-ratio, seed 0)" in out


@pytest.mark.parametrize("kind", ["convert", "recipe"])
def test_every_example_of_the_help_is_understood(kind: str) -> None:
    details = getattr(arguments_recipes, f"{kind.upper()}_DETAILS")
    lines = re.findall(rf"^  nnunet-gdla {kind} (.*)$", details, flags=re.MULTILINE)
    assert len(lines) == {"convert": 3, "recipe": 5}[kind]
    for line in lines:
        parser = argparse.ArgumentParser()
        getattr(arguments_recipes, kind)(parser)
        args = parser.parse_args(shlex.split(line))
        assert args.name in RECIPES
        assert args.dataset_id == 27 if "27" in line else args.dataset_id in {None, RECIPES[args.name].dataset_id}


@pytest.mark.parametrize("number", ["0", "1000", "-3", "x"])
def test_numbers_that_no_dataset_has_are_refused(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    arguments_recipes.convert(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["busi", "folder", "-d", number])
    assert "dataset-id" in capsys.readouterr().err
