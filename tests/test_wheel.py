"""What pip installs, what nnU-Net then finds in new processes, and that an uninstall leaves nothing behind."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.paths import ROOT

pytestmark = pytest.mark.slow

FOLDERS = {"nnunet_gdla": "nnunet_gdla", "trainers": "nnunet_gdla/trainers", "plans": "nnunet_gdla/plans"}
FILES = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md")
BUILD = """
import sys
sys.path.insert(0, "nnunet_gdla")
import _build_backend
print(getattr(_build_backend, sys.argv[1])(sys.argv[2]))
"""
# What a user's program does, seen from a new process. nnU-Net prints while it searches: the last line is the answer.
LOOK_UP = """
import json, os, pickle
import nnunetv2
from nnunetv2.utilities.find_class_by_name import recursive_find_python_class
from nnunetv2.utilities.find_objects import recursive_find_trainer_class_by_name

def found(name):
    trainer = recursive_find_trainer_class_by_name(name)
    return [trainer.__name__, trainer.__module__, pickle.loads(pickle.dumps(trainer)) is trainer]

ours = [found(name) for name in ("nnUNetTrainerGDLA", "nnUNetTrainerGDLA_B0_1epoch", "nnUNetTrainerPVTDiffAttn")]
planner = recursive_find_python_class(
    os.path.join(nnunetv2.__path__[0], "experiment_planning"), "nnUNetPlannerGDLA", "nnunetv2.experiment_planning"
)
mine = recursive_find_trainer_class_by_name("MyTrainer")
import nnunet_gdla
answer = {"ours": ours, "planner": planner.__module__, "mine": mine.__name__, "package": nnunet_gdla.__file__}
print(json.dumps(answer))
"""


def run(*command: str | Path, cwd: Path | str = "/", **variables: str) -> str:
    """Run a program to its good end, without our variables that this process has, and return what it printed."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("nnUNet_", "NNUNET_GDLA_"))}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=inherited | variables, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


class Environment:
    """A virtual environment that sees this one's packages, all but ours, and takes no time to make."""

    def __init__(self, folder: Path) -> None:
        run(sys.executable, "-m", "venv", "--without-pip", folder)
        self.scripts = folder / ("Scripts" if os.name == "nt" else "bin")
        self.python = self.scripts / "python"
        self.site = Path(run(self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
        host = folder / "host"
        host.mkdir()
        for site in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
            for entry in Path(site).iterdir():
                # pip sees what is here as this environment's own; .pth files are not read from here
                if "nnunet_gdla" not in entry.name and not (host / entry.name).exists():
                    (host / entry.name).symlink_to(entry)
        (self.site / "host.pth").write_text(f"{host}\n")

    def pip(self, *arguments: str | Path) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check"]
        run(*pip, arguments[0], "--quiet", *arguments[1:])

    def files(self) -> set[str]:
        places = [path for place in (self.site, self.scripts) for path in place.rglob("*")]
        return {str(path) for path in places if path.is_file() or path.is_symlink()}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is shipped, so that building leaves no trace in this checkout."""
    copy = tmp_path_factory.mktemp("checkout")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, copy)
    return copy


def build(checkout: Path, hook: str, out: Path) -> Path:
    out.mkdir(exist_ok=True)
    return out / run(sys.executable, "-c", BUILD, hook, out, cwd=checkout).splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(checkout, "build_wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def editable_wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(checkout, "build_editable", tmp_path_factory.mktemp("editable"))


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path / "venv")


@pytest.fixture
def users_folders(tmp_path: Path) -> str:
    """Two folders of somebody who works with nnU-Net: a trainer, and what else lies around where one works."""
    good, bad = tmp_path / "good", tmp_path / "bad folder"
    for folder in (good, bad):
        folder.mkdir()
    base = "from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer"
    trainer = base + "\n\n\nclass {}(nnUNetTrainer):\n    pass\n"
    (good / "a_copy.py").write_text(trainer.format("nnUNetTrainerGDLA"))
    (good / "my_trainer.py").write_text(trainer.format("MyTrainer"))
    (bad / "a_syntax_error.py").write_text("def broken(:\n")
    (bad / "setup.py").write_text("from setuptools import setup\n\nsetup()\n")
    (bad / "test_that_exits.py").write_text("import sys\n\nsys.exit(3)\n")
    return os.pathsep.join([str(good), str(bad)])


def shipped_files(checkout: Path) -> set[str]:
    return {
        f"{target}/{path.relative_to(checkout / source).as_posix()}"
        for source, target in FOLDERS.items()
        for path in (checkout / source).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }


def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_the_wheel_holds_the_tree_and_the_pth(wheel: Path, checkout: Path) -> None:
    assert contents(wheel) == shipped_files(checkout) | {"nnunet_gdla.pth"}


def test_record_lists_every_file_once(wheel: Path, editable_wheel: Path) -> None:
    for path in (wheel, editable_wheel):
        with zipfile.ZipFile(path) as archive:
            record = next(name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
            listed = [line.split(",")[0] for line in archive.read(record).decode().splitlines()]
            assert sorted(listed) == sorted(archive.namelist())
            assert "nnunet_gdla.pth" in listed


def test_the_source_distribution_builds_the_same_wheel(checkout: Path, wheel: Path, tmp_path: Path) -> None:
    sdist = build(checkout, "build_sdist", tmp_path / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    again = build(tmp_path / sdist.name.removesuffix(".tar.gz"), "build_wheel", tmp_path / "wheel")
    assert contents(again) == contents(wheel)


def test_a_file_that_was_deleted_is_not_shipped_from_an_old_build(checkout: Path, tmp_path: Path) -> None:
    (checkout / "build" / "lib" / "nnunet_gdla").mkdir(parents=True)
    (checkout / "build" / "lib" / "nnunet_gdla" / "old.py").touch()
    assert "nnunet_gdla/old.py" not in contents(build(checkout, "build_wheel", tmp_path / "wheel"))
    shutil.rmtree(checkout / "build")


@pytest.mark.parametrize("kind", ["wheel", "editable_wheel"])
def test_nnunet_finds_everything_and_an_uninstall_leaves_nothing(
    kind: str, request: pytest.FixtureRequest, environment: Environment, users_folders: str, checkout: Path
) -> None:
    import nnunetv2

    host_before = digest(Path(nnunetv2.__path__[0]))
    files_before = environment.files()
    environment.pip("install", "--no-deps", request.getfixturevalue(kind))

    home = checkout if kind == "editable_wheel" else environment.site
    output = run(environment.python, "-W", "ignore", "-c", LOOK_UP, nnUNet_extTrainer=users_folders)
    answer = json.loads(output.splitlines()[-1])
    assert Path(answer["package"]) == home / "nnunet_gdla" / "__init__.py"
    assert answer["ours"] == [
        ["nnUNetTrainerGDLA", "nnunet_gdla.trainers.nnunet_trainer_gdla", True],
        ["nnUNetTrainerGDLA_B0_1epoch", "nnunet_gdla.trainers", True],
        ["nnUNetTrainerPVTDiffAttn", "nnunet_gdla.trainers.nnunet_trainer_pvt_attention", True],
    ]
    assert answer["planner"] == "nnunet_gdla.plans.nnunet_planner_gdla"
    assert answer["mine"] == "MyTrainer"

    variable = "import os; print(os.environ.get('nnUNet_extTrainer'))"
    ours = str(home / "nnunet_gdla" / "ext")
    registered = run(environment.python, "-W", "error", "-c", variable, nnUNet_extTrainer=users_folders)
    assert registered.strip() == os.pathsep.join([ours, users_folders])
    assert run(environment.python, "-c", variable, NNUNET_GDLA_NO_AUTOREGISTER="1").strip() == "None"
    assert run(environment.scripts / "nnunet-gdla", "--version").startswith("nnunet-gdla ")

    environment.pip("uninstall", "--yes", "nnunet-gdla")
    assert environment.files() == files_before
    assert run(environment.python, "-c", variable).strip() == "None"
    assert digest(Path(nnunetv2.__path__[0])) == host_before
    stock = "from nnunetv2.utilities.find_objects import recursive_find_trainer_class_by_name as find\n"
    run(environment.python, "-W", "ignore", "-c", stock + "find('nnUNetTrainer_5epochs')")


def test_a_package_that_is_half_gone_is_silent(wheel: Path, environment: Environment) -> None:
    environment.pip("install", "--no-deps", wheel)
    shutil.rmtree(environment.site / "nnunet_gdla")
    error = "import os; print(os.environ['NNUNET_GDLA_REGISTER_ERROR'])"
    done = subprocess.run([environment.python, "-c", error], capture_output=True, text=True, timeout=60)
    assert "nnunet_gdla" in done.stdout
    assert done.stderr == ""


def test_in_a_target_folder_env_says_what_to_set(wheel: Path, environment: Environment, tmp_path: Path) -> None:
    target = tmp_path / "target"
    environment.pip("install", "--no-deps", "--target", target, wheel)
    variable = "import os; print(os.environ.get('nnUNet_extTrainer'))"
    assert run(environment.python, "-c", variable, PYTHONPATH=str(target)).strip() == "None"
    line = run(environment.python, "-m", "nnunet_gdla.cli", "env", "--shell", "bash", PYTHONPATH=str(target))
    assert line == f"export nnUNet_extTrainer={target / 'nnunet_gdla' / 'ext'}\n"


def digest(folder: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }
