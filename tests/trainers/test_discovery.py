"""nnU-Net finds each trainer by its name, and each is what nnU-Net expects of a trainer."""

import importlib
import inspect
import os
import pickle
import sys
from pathlib import Path

import pytest
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.utilities.find_class_by_name import recursive_find_python_class
from nnunetv2.utilities.find_objects import recursive_find_trainer_class_by_name

from nnunet_gdla import trainers
from nnunet_gdla._register import shim_folder
from nnunet_gdla.errors import UserError
from nnunet_gdla.trainers import EXAMPLES, is_ours, resolve

WRONG = [
    "nnUNetTrainerGDLA_B2",  # the default is not spelled out
    "nnUNetTrainerGDLA_B6",
    "nnUNetTrainerGDLA_b0",
    "nnUNetTrainerGDLA_DiceCE_B0",  # order
    "nnUNetTrainerGDLA_NoMirroring_DiceCE",
    "nnUNetTrainerGDLA_Paper_DiceCE",
    "nnUNetTrainerGDLA_Paper_B0",
    "nnUNetTrainerGDLA_50epochs_B0",
    "nnUNetTrainerGDLA_2epoch",
    "nnUNetTrainerGDLA_0epochs",
    "nnUNetTrainerGDLA_050epochs",
    "nnUNetTrainerGDLA_",
    "nnUNetTrainerGDLA_B0_B1",
    "nnUNetTrainerPVT",
    "nnUNetTrainerPVTLinearAttn_DICECE",
    "xnnUNetTrainerGDLA",
    "nnUNetTrainerGDLA\n",
]
# Methods that exist to be overridden, with the arguments that nnU-Net passes. Names that begin with two underscores are
# Python's own.
HOOKS = sorted(name for name, _ in inspect.getmembers(nnUNetTrainer, callable) if not name.startswith("__"))


def find_in_our_folder(name: str) -> type | None:
    """Do what nnU-Net does for one external folder, without its long search through nnunetv2 first."""
    folder = shim_folder()
    found: type | None = recursive_find_python_class(
        folder, name, None, base_folder=folder, cleanup_imports_from_base_folder=True
    )
    return found


@pytest.mark.parametrize("name", EXAMPLES)
def test_nnunet_finds_the_trainer(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("nnUNet_extTrainer", os.pathsep.join([shim_folder(), str(tmp_path)]))
    assert recursive_find_trainer_class_by_name(name) is resolve(name)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_trainer_is_one_class_that_pickles(name: str) -> None:
    found = find_in_our_folder(name)
    assert found is not None
    assert found is find_in_our_folder(name) is getattr(trainers, name)
    assert issubclass(found, nnUNetTrainer)
    assert found.__name__ == found.__qualname__ == name  # goes into the checkpoint, by which predict finds it again
    assert "__" not in name  # nnU-Net splits folder names there
    assert getattr(importlib.import_module(found.__module__), name) is found
    assert pickle.loads(pickle.dumps(found)) is found


@pytest.mark.parametrize("name", EXAMPLES)
def test_signatures_are_those_of_the_installed_nnunet(name: str) -> None:
    trainer = resolve(name)
    assert list(inspect.signature(trainer.__init__).parameters) == list(
        inspect.signature(nnUNetTrainer.__init__).parameters
    )
    for hook in HOOKS:
        if getattr(trainer, hook) is not getattr(nnUNetTrainer, hook):
            ours, theirs = (inspect.signature(getattr(cls, hook)) for cls in (trainer, nnUNetTrainer))
            assert list(ours.parameters) == list(theirs.parameters), hook
            kinds = [[parameter.kind for parameter in signature.parameters.values()] for signature in (ours, theirs)]
            assert kinds[0] == kinds[1], hook


@pytest.mark.parametrize("name", EXAMPLES)
def test_static_hooks_stay_static(name: str) -> None:
    trainer = resolve(name)
    for hook in HOOKS:
        if isinstance(inspect.getattr_static(nnUNetTrainer, hook), staticmethod):
            assert isinstance(inspect.getattr_static(trainer, hook), staticmethod), hook
    assert "plans_manager" in inspect.signature(trainer.build_network_architecture).parameters


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_name_is_nobodys(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_ours(name)
    with pytest.raises(AttributeError):
        resolve(name)
    with pytest.raises(AttributeError):
        getattr(trainers, name)
    monkeypatch.setenv("nnUNet_extTrainer", shim_folder())
    if name.startswith("nnUNetTrainer"):
        with pytest.raises(UserError, match=r"(?s)has no trainer .* such as .*nnUNetTrainerGDLA_B0"):
            find_in_our_folder(name)
    else:
        assert find_in_our_folder(name) is None
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("ending", "why"), [("Paper_DiceCE", "_DiceCE contradicts _Paper"), ("B0_0epochs", "_0epochs would train nothing")]
)
def test_the_search_ends_with_the_contradiction_in_a_name(
    ending: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("nnUNet_extTrainer", shim_folder())
    with pytest.raises(UserError, match=why):
        recursive_find_trainer_class_by_name(f"nnUNetTrainerGDLA_{ending}")


def test_a_name_that_may_be_in_another_folder_is_not_explained(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("nnUNet_extTrainer", os.pathsep.join([shim_folder(), "mine"]))
    assert find_in_our_folder("nnUNetTrainerGDLA_mine") is None
    assert capsys.readouterr().err == ""


def test_a_search_for_another_trainer_leaves_nothing_behind(capsys: pytest.CaptureFixture[str]) -> None:
    before = set(sys.modules)
    assert find_in_our_folder("nnUNetTrainerOfSomebodyElse") is None
    assert set(sys.modules) == before
    assert capsys.readouterr().err == ""


def test_the_user_may_build_on_a_trainer_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "my_trainer.py").write_text(
        "from nnunet_gdla.trainers import nnUNetTrainerGDLA_B0\n\n\nclass MyTrainer(nnUNetTrainerGDLA_B0):\n    pass\n"
    )
    monkeypatch.setenv("nnUNet_extTrainer", os.pathsep.join([shim_folder(), str(tmp_path)]))
    found = recursive_find_trainer_class_by_name("MyTrainer")
    assert issubclass(found, resolve("nnUNetTrainerGDLA_B0"))
