import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nnunet_gdla import _register
from nnunet_gdla.commands import registration_check
from nnunet_gdla.commands.findings import Finding, Level
from nnunet_gdla.commands.signatures import compare_overrides, missing_hooks

OURS = _register.shim_folder()


@pytest.fixture
def external(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    return lambda *folders: monkeypatch.setenv("nnUNet_extTrainer", os.pathsep.join(map(str, folders)))


def test_a_registered_python_passes(external: Callable[..., None], tmp_path: Path) -> None:
    external(OURS, tmp_path)
    assert [finding.level for finding in registration_check.check_registration()] == [Level.PASS]


def test_what_broke_at_the_start_of_python_is_shown(
    external: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    external(OURS)
    monkeypatch.setenv("NNUNET_GDLA_REGISTER_ERROR", "OSError('gone')")
    first, *_ = registration_check.check_registration()
    assert first.level is Level.FAIL
    assert "OSError('gone')" in first.detail


def test_a_missing_folder_of_ours_fails_and_a_late_one_warns(
    external: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NNUNET_GDLA_NO_AUTOREGISTER", "1")
    external(tmp_path)
    (missing,) = registration_check.check_registration()
    assert missing.level is Level.FAIL
    assert "NNUNET_GDLA_NO_AUTOREGISTER=1" in missing.detail
    assert "nnunet-gdla env" in missing.fix
    external(tmp_path, OURS)
    (late,) = registration_check.check_registration()
    assert late.level is Level.WARN
    assert str(tmp_path) in late.detail


def test_every_file_that_ends_the_search_is_named(external: Callable[..., None], tmp_path: Path) -> None:
    (tmp_path / "a_good.py").write_text("class Good: ...\n")
    (tmp_path / "b_syntax.py").write_text("class Bad(:\n")
    (tmp_path / "c_exit.py").write_text("import sys\nsys.exit()\n")
    (tmp_path / "d_import.py").write_text("print('hello')\nimport a_module_that_is_not_there\n")
    (tmp_path / "e_good.py").write_text("import a_good\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "relative.py").write_text("from .. import a_good\n")
    external(OURS, tmp_path, tmp_path / "gone")
    *broken, gone = registration_check.check_external_folders()
    assert all(finding.level is Level.FAIL for finding in broken)
    details = [finding.detail.replace(str(tmp_path), "HERE") for finding in broken]
    assert details == [
        "b_syntax.py in HERE: SyntaxError: invalid syntax",
        "c_exit.py in HERE: it ends Python with exit code 0",
        "d_import.py in HERE: ModuleNotFoundError: No module named 'a_module_that_is_not_there'",
        f"package{os.sep}relative.py in HERE: ImportError: attempted relative import beyond top-level package",
    ]
    assert gone.level is Level.WARN
    assert gone.detail == f"{tmp_path / 'gone'} is no folder"


def test_own_trainers_that_work_pass(external: Callable[..., None], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Mine: ...\n")
    external(OURS, tmp_path)
    assert [finding.level for finding in registration_check.check_external_folders()] == [Level.PASS]


def test_a_trainer_of_the_user_is_found(external: Callable[..., None], tmp_path: Path) -> None:
    text = "from nnunet_gdla.trainers import nnUNetTrainerGDLA_B0\nclass nnUNetTrainerMine(nnUNetTrainerGDLA_B0): ...\n"
    (tmp_path / "mine.py").write_text(text)
    external(OURS, tmp_path)
    (finding,) = registration_check.check_trainers(["nnUNetTrainerMine"])
    assert (finding.level, finding.detail) == (Level.PASS, "found, from mine")


def test_a_copy_of_our_trainer_that_is_found_first_fails(external: Callable[..., None], tmp_path: Path) -> None:
    text = "from nnunet_gdla.trainers import nnUNetTrainerGDLA\nclass nnUNetTrainerGDLA_B0(nnUNetTrainerGDLA): ...\n"
    (tmp_path / "copied.py").write_text(text)
    external(tmp_path, OURS)
    (finding,) = registration_check.check_trainers(["nnUNetTrainerGDLA_B0"])
    assert finding.level is Level.FAIL
    assert finding.detail == "nnU-Net finds another class of that name first, in copied"


def test_an_unknown_trainer_and_planner_fail(external: Callable[..., None]) -> None:
    external(OURS)
    (trainer,) = registration_check.check_trainers(["nnUNetTrainerOfNobody"])
    assert (trainer.level, trainer.detail) == (Level.FAIL, "nnU-Net does not find it")
    (planner,) = registration_check.check_planners(["nnUNetPlannerOfNobody"])
    assert (planner.level, planner.detail) == (Level.FAIL, "nnU-Net does not find it")


def test_a_search_that_breaks_is_reported(external: Callable[..., None], tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('not today')\n")
    external(tmp_path, OURS)
    trainer = registration_check.find_trainer("nnUNetTrainerGDLA")
    assert isinstance(trainer, Finding)
    assert "RuntimeError: not today" in trainer.detail


class Base:
    @staticmethod
    def build(plans: object, channels: int) -> None: ...

    def step(self, batch: dict[str, int]) -> None: ...

    def renamed_in_the_next_version(self) -> None: ...


def test_equal_overrides_and_new_methods_are_fine() -> None:
    class Ours(Base):
        @staticmethod
        def build(plans: object, channels: int) -> None: ...

        def step(self, batch: dict[str, int]) -> None: ...

        def own(self, anything: int) -> None: ...

    assert list(compare_overrides(Ours, Base)) == []


def test_a_moved_signature_is_named_in_every_class_between() -> None:
    class Mixin:
        def step(self, batch: dict[str, int], extra: int = 0) -> None: ...

    class Middle(Base):
        @staticmethod
        def build(plans: object, num_channels: int) -> None: ...

    class Ours(Mixin, Middle): ...

    assert list(compare_overrides(Ours, Base)) == [
        "Mixin.step(self, batch, extra), in Base it has (self, batch)",
        "Middle.build(plans, num_channels), in Base it has (plans, channels)",
    ]


def test_a_method_that_is_static_on_one_side_only_is_named() -> None:
    class Ours(Base):
        def build(plans: object, channels: int) -> None: ...  # noqa: N805

    assert list(compare_overrides(Ours, Base)) == ["Ours.build and that of the installed Base are not both static"]


def test_a_hook_that_is_gone_is_named() -> None:
    assert missing_hooks(Base, ("step", "renamed_in_this_version")) == ["renamed_in_this_version"]
    (problem,) = registration_check.check_signatures([], Base, ("renamed_in_this_version",))
    assert problem.level is Level.FAIL
    assert problem.detail == "the installed Base has no method renamed_in_this_version"
