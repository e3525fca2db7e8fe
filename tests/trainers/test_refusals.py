"""What a 2D network cannot train is refused before a file is made, and in prediction."""

import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from nnunetv2.utilities.plans_handling.plans_handler import PlansManager

from nnunet_gdla.errors import UserError
from nnunet_gdla.trainers import resolve
from tests.trainers.nnunet_project import Project, as_ours, make_trainer

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "3d_fullres": {"patch_size": [32, 64, 64]},
    "3d_lowres": {"patch_size": [16, 32, 32], "next_stage": "3d_cascade_fullres"},
    "3d_cascade_fullres": {"inherits_from": "3d_fullres", "previous_stage": "3d_lowres"},
    "heir_of_3d": {"inherits_from": "3d_fullres", "batch_size": 4},
    "heir_of_an_heir": {"inherits_from": "heir_of_3d"},
    "cascade_of_2d": {"inherits_from": "2d", "previous_stage": "2d"},
    "heir_of_a_cascade": {"inherits_from": "cascade_of_2d"},
}
NAMES = ["nnUNetTrainerGDLA", "nnUNetTrainerPVTSelfAttn_B0_DiceCE_NoMirroring_2epochs"]


@pytest.fixture(params=["stock", "ours"])
def plans(request: pytest.FixtureRequest, project: Project) -> dict[str, Any]:
    """Plans of a 3D dataset, as nnU-Net's planner writes them, and some that users make of them."""
    made = project.plans()
    flat = made["configurations"]["2d"]
    volume = {key: value for key, value in flat.items() if key not in ("patch_size", "architecture")}
    architecture = as_ours() if request.param == "ours" else flat["architecture"]
    for name, change in CONFIGURATIONS.items():
        base = {} if "inherits_from" in change else volume | {"architecture": architecture}
        made["configurations"][name] = base | change
    return made


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
@pytest.mark.parametrize("name", NAMES)
def test_refused_before_anything_is_created(
    name: str, configuration: str, plans: dict[str, Any], project: Project, tmp_path: Path
) -> None:
    before = deepcopy(plans)
    with pytest.raises(UserError) as caught:
        make_trainer(resolve(name), project, plans, configuration=configuration)
    message = str(caught.value)
    assert configuration in message
    assert ("cascade" in message.split("(")[0]) == ("cascade" in configuration)
    assert "supported are 2D configurations" in message
    assert "'2d'" in message
    assert "\n" not in message
    assert plans == before
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_refused_in_prediction(configuration: str, plans: dict[str, Any]) -> None:
    manager = PlansManager(plans)
    with pytest.raises(UserError, match="supported are 2D configurations"):
        resolve("nnUNetTrainerGDLA").build_network_architecture(manager, manager.get_configuration(configuration), 1, 3)


def test_a_heir_of_2d_is_welcome(project: Project) -> None:
    plans = project.plans()
    plans["configurations"]["larger"] = {"inherits_from": "2d", "batch_size": 3, "patch_size": [96, 64]}
    trainer = make_trainer(resolve("nnUNetTrainerGDLA_B0"), project, plans, configuration="larger")
    assert trainer.configuration_manager.batch_size == 3
    assert Path(trainer.output_folder).is_dir()


def plain_hook(*_: object) -> None:
    """Stands for Python's own."""


def test_nnunets_commands_end_with_the_sentence(
    plans: dict[str, Any], project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Uncaught, the sentence alone is printed, in training and in prediction, which makes no trainer."""
    trainer, manager = resolve("nnUNetTrainerGDLA"), PlansManager(plans)
    volume = manager.get_configuration("3d_fullres")
    calls = (
        lambda: make_trainer(trainer, project, plans, configuration="3d_fullres"),
        lambda: trainer.build_network_architecture(manager, volume, 1, 3),
    )
    for call in calls:
        monkeypatch.setattr(sys, "excepthook", plain_hook)
        with pytest.raises(UserError) as caught:
            call()
        sys.excepthook(caught.type, caught.value, caught.tb)
        assert capsys.readouterr().err == f"{caught.value}\n"
