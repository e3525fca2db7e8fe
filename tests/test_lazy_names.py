"""Names that are imported at their first use: listed, typed, and nothing heavy before."""

import subprocess
import sys
from pathlib import Path

import pytest

import nnunet_gdla.mil
import nnunet_gdla.plans
import nnunet_gdla.trainers
from tests.paths import ROOT

SNIPPET = """\
from nnunet_gdla.mil import SlideTransformer, read_slide, concordance_index
from nnunet_gdla.plans import nnUNetPlannerGDLA, nnUNetPlannerGDLA_B0
from nnunet_gdla.trainers import nnUNetTrainerGDLA, nnUNetTrainerGDLA_B0

class Mine(nnUNetTrainerGDLA): ...

reveal_type(SlideTransformer(8, 2))
reveal_type(read_slide("a.h5"))
reveal_type(concordance_index)
reveal_type(nnUNetTrainerGDLA)
reveal_type(nnUNetTrainerGDLA_B0)
reveal_type(nnUNetPlannerGDLA_B0)
from nnunet_gdla.mil import SlideTransfromer
"""
# the interfaces alone: what lies below them would take mypy minutes
CONFIG = """\
[mypy]
python_version = 3.11
[mypy-torch.*,numpy.*,pandas.*,jaxtyping.*,nnunetv2.*,batchgenerators*.*,timm.*,h5py.*,scipy.*,sklearn.*,einops.*,\
dynamic_network_architectures.*,lightning.*,yaml.*,SimpleITK.*,matplotlib.*,PIL.*]
follow_imports = skip
ignore_missing_imports = True
"""


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (nnunet_gdla.mil, nnunet_gdla.mil.__all__),
        (nnunet_gdla.trainers, nnunet_gdla.trainers.EXAMPLES),
        (nnunet_gdla.plans, nnunet_gdla.plans.PLANNERS),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_dir_lists_every_name_and_every_name_is_there(module: object, names: tuple[str, ...]) -> None:
    assert set(names) <= set(dir(module))
    for name in names:
        assert getattr(module, name).__name__ == name
    with pytest.raises(AttributeError, match="SlideTransfromer"):
        module.SlideTransfromer  # type: ignore[attr-defined] # noqa: B018


def test_nothing_heavy_is_imported_for_the_list() -> None:
    code = (
        "import sys, nnunet_gdla.mil as m, nnunet_gdla.trainers as t, nnunet_gdla.plans as p; dir(m), dir(t), dir(p)\n"
    )
    code += "print([name for name in ('torch', 'pandas', 'nnunetv2', 'timm', 'numpy') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.slow
def test_mypy_sees_the_types_of_lazy_names(tmp_path: Path) -> None:
    """In a tree as it is installed: there trainers and plans lie inside the package."""
    package = tmp_path / "site" / "nnunet_gdla"
    package.mkdir(parents=True)
    for entry in [*(ROOT / "nnunet_gdla").iterdir(), ROOT / "trainers", ROOT / "plans"]:
        (package / entry.name).symlink_to(entry)
    (tmp_path / "mine.py").write_text(SNIPPET, encoding="utf-8")
    (tmp_path / "mypy.ini").write_text(CONFIG, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "mine.py"]
    environment = {"MYPYPATH": str(tmp_path / "site"), "PATH": ""}
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, check=False)
    ours = [line for line in run.stdout.splitlines() if line.startswith("mine.py")]
    types = [line.split('"')[1] for line in ours if "Revealed type" in line]
    assert types[:2] == [
        "nnunet_gdla.mil.models.slide_transformer.SlideTransformer",
        "nnunet_gdla.mil.slides.slide.Slide",
    ], run.stdout + run.stderr
    assert types[2].startswith("def (time:")
    assert "nnUNetTrainerGDLA" in types[3]
    assert types[4] == "type[nnunet_gdla.trainers.nnunet_trainer_gdla.nnUNetTrainerGDLA]"
    assert types[5] == "type[nnunet_gdla.plans.nnunet_planner_gdla.nnUNetPlannerGDLA]"
    (error,) = [line for line in ours if ": error:" in line]
    assert "SlideTransfromer" in error
