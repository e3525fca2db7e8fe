"""`recipe --runs`: what is not done yet is done, each run has its seed, and the table has mean and spread."""

import argparse
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnunet_gdla.commands import arguments_recipes, recipe, recipe_runs
from nnunet_gdla.commands.recipe_runs import Run, table
from nnunet_gdla.errors import UserError
from nnunet_gdla.recipes import RECIPES
from nnunet_gdla.recipes.catalogue import PaperModel
from tests.recipes.test_paper_plans import plans_of
from tests.recipes.trees import png

CASES = ("busi_a", "busi_b")
TRAINER = "nnUNetTrainerGDLA_Paper"


class Programs:
    """Stands for the commands: notes them, and leaves the files that they would leave."""

    def __init__(self, folders: Path) -> None:
        self.folders, self.called = folders, list[list[str]]()
        self.fails_at = ""

    def run(self, command: list[str], check: bool) -> subprocess.CompletedProcess[bytes]:
        assert not check
        command = [Path(command[0]).name, *command[1:]]
        self.called.append(command)
        if command[0] == self.fails_at:
            return subprocess.CompletedProcess(command, 3)
        getattr(self, f"_{command[0].rpartition('_')[2].replace('-', '_')}")(command)
        return subprocess.CompletedProcess(command, 0)

    def _nnunet_gdla(self, command: list[str]) -> None:
        if command[1] == "plan":
            self._plan()
            return
        from nnunet_gdla.cli import main

        assert main([*command[1:], "-np", "1"]) == 0

    def _plan(self) -> None:
        folder = self.folders / "preprocessed" / "Dataset503_BUSI"
        folder.mkdir(exist_ok=True)
        (folder / "dataset.json").write_text(json.dumps({"channel_names": {"0": "US"}}))
        (folder / "nnUNetGDLAPlans.json").write_text(json.dumps(plans_of([224.0, 224.0], [1.0, 1.0])))

    def _preprocess(self, _command: list[str]) -> None:
        data = self.folders / "preprocessed" / "Dataset503_BUSI" / "nnUNetGDLAPaperPlans_2d"
        data.mkdir()
        (data / "busi_c.pkl").touch()

    def _fold(self, command: list[str]) -> Path:
        plans, trainer = (command[command.index(option) + 1] for option in ("-p", "-tr"))
        return self.folders / "results" / "Dataset503_BUSI" / f"{trainer}__{plans}__2d" / "fold_0"

    def _train(self, command: list[str]) -> None:
        fold = self._fold(command)
        fold.mkdir(parents=True, exist_ok=True)
        for name in ("best", "final"):
            (fold / f"checkpoint_{name}.pth").touch()

    def _predict(self, command: list[str]) -> None:
        assert command[command.index("-chk") + 1] == "checkpoint_best.pth"
        assert "--disable_tta" in command
        source = Path(command[command.index("-i") + 1]).parent / "labelsTs"
        shutil.copytree(source, command[command.index("-o") + 1], copy_function=shutil.copyfile)


@pytest.fixture
def programs(folders: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    (folders / "results").mkdir()
    monkeypatch.setenv("nnUNet_results", str(folders / "results"))
    raw = folders / "raw" / "Dataset503_BUSI"
    mask = np.zeros((8, 8), np.uint8)
    mask[2:5, 2:6] = 1
    png(raw / "labelsTr" / "busi_c.png", mask)
    for case in CASES:
        png(raw / "labelsTs" / f"{case}.png", mask)
    labels = {"background": 0, "tumor": 1}
    (raw / "dataset.json").write_text(
        json.dumps({"labels": labels, "channel_names": {"0": "US"}, "file_ending": ".png"})
    )
    made = Programs(folders)
    monkeypatch.setattr(recipe_runs.subprocess, "run", made.run)
    monkeypatch.setattr(recipe_runs.shutil, "which", lambda program, path=None: program)
    return made


def run_recipe(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    arguments_recipes.recipe(parser)
    return recipe.run(parser.parse_args([str(argument) for argument in arguments]))


def test_three_runs_are_done_once_with_their_seeds(
    programs: Programs, folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_recipe("busi", "--runs", 3, "-device", "cpu") == 0
    out = capsys.readouterr().out
    names = [" ".join(command[:2]) if command[0] == "nnunet-gdla" else command[0] for command in programs.called]
    each = ["nnUNetv2_train", "nnUNetv2_predict", "nnunet-gdla evaluate"]
    assert names == ["nnunet-gdla plan", "nnUNetv2_preprocess", *each, *each, *each]
    trained = [command for command in programs.called if command[0] == "nnUNetv2_train"]
    for command, plans, seed in zip(trained, ("", "_run2", "_run3"), (42, 43, 44), strict=True):
        name = f"nnUNetGDLAPaperPlans{plans}"
        assert command[1:] == ["503", "2d", "0", "-tr", TRAINER, "-p", name, "-device", "cpu"]
        written = json.loads((folders / "preprocessed" / "Dataset503_BUSI" / f"{name}.json").read_text())
        assert written["nnunet_gdla_paper"]["seed"] == seed
    assert "# run 2 of 3, seed 43: training\nnnUNetv2_train 503 2d 0 -tr" in out
    assert "Dice: mean 100.00, standard deviation 0.00, range 100.00 to 100.00\npaper: PVT-GDLA 80.54\n" in out

    programs.called.clear()
    assert run_recipe("busi", "--runs", 3) == 0
    assert programs.called == []
    assert "# run 3 of 3, seed 44: evaluation is done already" in capsys.readouterr().out


def test_what_is_half_done_goes_on(programs: Programs) -> None:
    run_recipe("busi", "--runs", 1)
    fold = programs._fold(["-p", "nnUNetGDLAPaperPlans", "-tr", TRAINER])
    (fold / "checkpoint_final.pth").rename(fold / "checkpoint_latest.pth")
    shutil.rmtree(fold / "predictions_test")
    programs.called.clear()
    run_recipe("busi", "--runs", 1)
    assert programs.called[0][-1] == "--c"
    assert [command[0] for command in programs.called] == ["nnUNetv2_train", "nnUNetv2_predict", "nnunet-gdla"]
    # A training that was done again makes its predictions stale.
    os.utime(fold / "checkpoint_best.pth", ns=(2**62, 2**62))
    with pytest.raises(FileExistsError):  # so it predicts; here the folder is in the way of the stand-in
        run_recipe("busi", "--runs", 1)


@pytest.mark.parametrize("program", ["nnUNetv2_preprocess", "nnUNetv2_train", "nnUNetv2_predict"])
def test_a_step_that_fails_is_named(program: str, programs: Programs) -> None:
    programs.fails_at = program
    with pytest.raises(UserError, match=r"ended with exit code 3 .* give the same recipe command again"):
        run_recipe("busi", "--runs", 2)
    assert programs.called[-1][0] == program


def test_what_runs_need_is_named(programs: Programs, folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="leave out --write-plans"):
        run_recipe("busi", "--runs", 2, "--write-plans")
    with pytest.raises(UserError, match="convert first: nnunet-gdla convert ph2 SOURCE -d 505 --size 224"):
        run_recipe("ph2", "--runs", 2)
    monkeypatch.setenv("NNUNET_GDLA_SEED", "1")
    with pytest.raises(UserError, match="NNUNET_GDLA_SEED is set"):
        run_recipe("busi", "--runs", 2)
    monkeypatch.delenv("NNUNET_GDLA_SEED")
    monkeypatch.delenv("nnUNet_results")
    with pytest.raises(UserError, match="nnUNet_results is not set"):
        run_recipe("busi", "--runs", 2)
    assert programs.called == []


@pytest.mark.parametrize(
    ("name", "trainer", "last"),
    [
        ("acdc", "nnUNetTrainerPVTDiffAttn_Paper", "paper: DiffAttn 92.20"),
        ("synapse", "nnUNetTrainerGDLA_Paper", "paper: see its table (arXiv:2603.02727)"),
    ],
)
def test_the_table_has_mean_and_spread(name: str, trainer: str, last: str) -> None:
    runs = [Run(1, 42, 80.0, 10.0), Run(2, 43, 82.0, 14.0), Run(3, 44, 84.0, 12.0)]
    lines = list(table(RECIPES[name], PaperModel(trainer), runs))
    assert lines[-1] == last
    assert "Dice: mean 82.00, standard deviation 2.00, range 80.00 to 84.00" in lines
    assert ("HD95: mean 12.00, standard deviation 2.00" in lines) == (name == "synapse")
    alone: Any = list(table(RECIPES[name], PaperModel(trainer), runs[:1]))
    assert any("not defined for one run" in line for line in alone)
