"""Registration inside one process; tests/test_wheel.py has the installed one."""

import importlib
import importlib.machinery
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from nnunet_gdla import _register

SHIM = _register.shim_folder()


def python(code: str, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter that has exactly these of our variables."""
    ours = {"nnUNet_extTrainer", _register.OPT_OUT_VARIABLE, _register.ERROR_VARIABLE}
    environment = {name: value for name, value in os.environ.items() if name not in ours} | variables
    return subprocess.run(
        [sys.executable, *flags, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )


def join(*folders: str) -> str:
    return os.pathsep.join(folders)


@pytest.mark.parametrize(
    ("current", "expected"),
    [
        (None, SHIM),
        ("", SHIM),
        (SHIM, SHIM),
        ("mine", join(SHIM, "mine")),
        (join("mine", SHIM), join(SHIM, "mine")),
        (join("b", "a", "", "b dir"), join(SHIM, "b", "a", "b dir")),
        (join(SHIM, "mine", SHIM), join(SHIM, "mine")),
    ],
)
def test_our_folder_comes_first_once_and_others_stay(current: str | None, expected: str) -> None:
    assert _register.external_trainers(current) == expected
    assert _register.external_trainers(expected) == expected


def test_the_folder_holds_one_file_with_a_name_nobody_else_has() -> None:
    files = [path.name for path in Path(SHIM).iterdir() if path.name != "__pycache__"]
    assert files == ["nnunet_gdla_shim.py"]


def test_every_python_start_registers_silently_and_children_add_nothing() -> None:
    code = "import os, subprocess, sys; print(os.environ['nnUNet_extTrainer'], flush=True)\n"
    child = "subprocess.run([sys.executable, '-c', 'import os; print(os.environ[\"nnUNet_extTrainer\"])'], check=True)"
    done = python(code + child, "-W", "error", nnUNet_extTrainer="mine")
    assert done.stderr == ""
    assert done.stdout.split() == [join(SHIM, "mine")] * 2


def test_a_python_start_imports_two_files_of_ours_and_these_nothing_new() -> None:
    ours = {name for name in python("import sys; print(*sys.modules)").stdout.split() if name.startswith("nnunet_gdla")}
    assert ours == {"nnunet_gdla", "nnunet_gdla._register"}
    code = f"import os, sys; sys.path.insert(0, {str(Path(SHIM).parents[1])!r}); before = set(sys.modules)\n"
    code += "import nnunet_gdla._register as r; r.autoregister(); print(*set(sys.modules) - before)"
    assert set(python(code, "-S").stdout.split()) == ours


@pytest.mark.parametrize("value", ["1", "true", "yes"])
def test_opting_out_leaves_everything_alone(value: str) -> None:
    code = "import os, sys; print(os.environ['nnUNet_extTrainer'], sys.meta_path)"
    done = python(code, NNUNET_GDLA_NO_AUTOREGISTER=value, nnUNet_extTrainer="mine")
    assert done.stdout.split()[0] == "mine"
    assert "_PlanningFinder" not in done.stdout


def test_opting_out_with_0_is_not_opting_out() -> None:
    assert (
        python("import os; print(os.environ['nnUNet_extTrainer'])", NNUNET_GDLA_NO_AUTOREGISTER="0").stdout.strip()
        == SHIM
    )


def test_without_site_nothing_happens() -> None:
    done = python("import os; print(os.environ.get('nnUNet_extTrainer'))", "-S")
    assert (done.stdout.strip(), done.stderr) == ("None", "")


def test_isolated_mode_registers_too() -> None:
    assert python("import os; print(os.environ['nnUNet_extTrainer'])", "-I").stdout.strip() == SHIM


def test_an_error_is_kept_and_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError("no such luck")

    monkeypatch.setattr(_register, "register", broken)
    monkeypatch.setenv(_register.ERROR_VARIABLE, "")
    _register.autoregister()
    assert os.environ[_register.ERROR_VARIABLE] == "OSError('no such luck')"


def test_a_success_clears_the_error_of_a_parent() -> None:
    code = "import os; print(os.environ.get('NNUNET_GDLA_REGISTER_ERROR'))"
    assert python(code, NNUNET_GDLA_REGISTER_ERROR="OSError('old')").stdout.strip() == "None"


@pytest.fixture
def planning_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A made-up module in the place of nnU-Net's planning module."""
    name = "made_up_planning_api"
    own = "def __getattr__(name):\n    if name == 'own':\n        return 1\n    raise AttributeError(name)\n"
    (tmp_path / f"{name}.py").write_text(own)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(_register, "PLANNING_MODULE", name)
    monkeypatch.setattr(sys, "meta_path", [_register._PlanningFinder(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.invalidate_caches()
    return name


def offers_ours(module: ModuleType) -> bool:
    from nnunet_gdla.plans import PLANNERS

    return all(getattr(module, name).__name__ == name for name in PLANNERS)


def test_the_planning_module_learns_our_planners_and_keeps_its_own_names(planning_module: str) -> None:
    module = importlib.import_module(planning_module)
    assert offers_ours(module)
    assert module.own == 1
    assert not hasattr(module, "nnUNetPlannerGDLA2")
    assert not hasattr(module, "somebody_elses_planner")


def test_the_planning_module_looks_as_if_nobody_had_touched_it(planning_module: str) -> None:
    module = importlib.import_module(planning_module)
    assert isinstance(module.__loader__, importlib.machinery.SourceFileLoader)
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__
    reloaded = importlib.reload(module)
    assert offers_ours(reloaded)
    assert reloaded.own == 1


def test_registering_by_hand_reaches_a_planning_module_that_is_already_imported(
    planning_module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "meta_path", [f for f in sys.meta_path if type(f).__name__ != "_PlanningFinder"])
    monkeypatch.setenv("nnUNet_extTrainer", "mine")
    module = importlib.import_module(planning_module)
    assert not hasattr(module, "nnUNetPlannerGDLA")
    for _ in range(2):
        _register.register()
    assert offers_ours(module)
    assert module.own == 1
    assert sum(type(finder).__name__ == "_PlanningFinder" for finder in sys.meta_path) == 1
    assert os.environ["nnUNet_extTrainer"] == join(SHIM, "mine")
