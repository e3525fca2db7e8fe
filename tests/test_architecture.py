"""What may import what, and how long a command takes to answer."""

import ast
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from tests.paths import ROOT

HOSTS = ("nnunetv2", "batchgenerators", "batchgeneratorsv2", "dynamic_network_architectures")
SOURCES = sorted(path for folder in ("nnunet_gdla", "trainers", "plans") for path in (ROOT / folder).rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kernels_and_networks_import_without_nnunet() -> None:
    code = f"import sys; sys.modules.update(dict.fromkeys({HOSTS}))\n"
    code += "from nnunet_gdla import evaluation, insight, layers, losses, networks, ops\n"
    python(code + "from nnunet_gdla.networks import weights")


def test_slide_models_import_without_nnunet_and_without_their_extra() -> None:
    extra = ("h5py", "lightning", "jsonargparse", "torchsurv", "pandas", "sklearn")
    code = f"import sys; sys.modules.update(dict.fromkeys({HOSTS + extra}))\n"
    python(code + "import nnunet_gdla.mil; from nnunet_gdla.mil import SlideTransformer, build_model")


def test_all_of_mil_imports_without_nnunet() -> None:
    files = sorted((ROOT / "nnunet_gdla" / "mil").rglob("*.py"))
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in files]
    code = f"import sys, importlib; sys.modules.update(dict.fromkeys({HOSTS}))\n"
    python(code + f"for name in {modules}: importlib.import_module(name)")


def test_the_package_itself_and_the_names_import_nothing_heavy() -> None:
    code = "import sys, nnunet_gdla, nnunet_gdla.errors, nnunet_gdla.trainers, nnunet_gdla.plans, nnunet_gdla.cli\n"
    loaded = python(code + "print(*sys.modules)").split()
    assert not {"torch", "numpy", "timm", "nnunetv2", "jaxtyping"}.intersection(loaded)


COMMANDS = ("doctor", "demo", "plan", "convert", "recipe", "weights", "evaluate", "compare", "efficiency")


@pytest.mark.parametrize("arguments", [["--help"], ["env"], *([command, "--help"] for command in COMMANDS)])
def test_help_answers_within_a_second_without_torch(arguments: list[str]) -> None:
    code = "import sys; from nnunet_gdla import cli\n"
    code += f"try: cli.main({arguments})\nexcept SystemExit: pass\n"
    code += "print(sorted({'torch', 'numpy', 'nnunetv2', 'timm'}.intersection(sys.modules)))"
    seconds = []
    for _ in range(3):  # the best of three, because other tests run at the same time
        start = time.perf_counter()
        out = python(code)
        seconds.append(time.perf_counter() - start)
    assert out.splitlines()[-1] == "[]"
    assert min(seconds) < 1


def test_nothing_beside_the_build_backend_has_a_standard_name() -> None:
    # The folder is on sys.path while the package is built.
    names = {path.stem for path in (ROOT / "nnunet_gdla").iterdir()}
    assert not names & sys.stdlib_module_names


def test_files_in_trainers_and_plans_have_names_of_their_own() -> None:
    names = [
        path.stem
        for folder in ("trainers", "plans")
        for path in (ROOT / folder).glob("*.py")
        if path.stem != "__init__"
    ]
    assert len(set(names)) == len(names)
    assert all(name.startswith("nnunet_") for name in names), names


def test_every_folder_with_code_is_shipped() -> None:
    mapped = PROJECT["tool"]["setuptools"]["package-dir"]
    shipped = {name.replace(".", "/") for name in PROJECT["tool"]["setuptools"]["packages"]}
    shipped |= set(mapped.values())
    assert {path.parent.relative_to(ROOT).as_posix() for path in SOURCES} <= shipped


def imported(path: Path) -> set[str]:
    """Top-level names of the modules that a file imports, at its top or inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module.partition(".")[0])
    return names


def test_what_we_import_is_what_we_require() -> None:
    base = PROJECT["project"]["dependencies"]
    extras = PROJECT["project"]["optional-dependencies"]
    providers = importlib.metadata.packages_distributions()
    missing = {}
    for path in SOURCES:
        if path.name == "_build_backend.py":
            continue
        # recipes read one public copy that is H5, and say which extra brings h5py
        with_extras = any(path.is_relative_to(ROOT / "nnunet_gdla" / part) for part in ("mil", "recipes"))
        lines = base + extras["mil"] + extras["wsi"] if with_extras else base
        required = {canonical(re.split(r"[^\w.-]", line)[0]) for line in lines}
        for name in imported(path) - sys.stdlib_module_names - {"nnunet_gdla"}:
            if name == "triton" and path.name.startswith("_triton_"):
                continue  # comes with torch's CUDA wheels, and is loaded for CUDA tensors only
            if not required & {canonical(provider) for provider in providers.get(name, [name])}:
                missing[name] = str(path.relative_to(ROOT))
    assert not missing


def canonical(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()
