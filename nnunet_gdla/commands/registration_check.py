"""Does nnU-Net find our trainers and planners, by its own look-up, and do our overrides fit the installed version?"""

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from nnunet_gdla import _register
from nnunet_gdla.commands.findings import BREAKAGES, Finding, failed, one_line, passed, warned
from nnunet_gdla.commands.signatures import compare_overrides, missing_hooks
from nnunet_gdla.errors import UserError

__all__ = [
    "check_external_folders",
    "check_planners",
    "check_registration",
    "check_signatures",
    "check_trainers",
    "find_trainer",
]

ENV_FIX = 'eval "$(nnunet-gdla env)", or install again with pip into this environment (pip --target skips .pth files)'
IMPORT_LIMIT_S = 120

# Imports the files of a folder as nnU-Net's search does, one after the other, and names each before it is imported:
# when a file ends the process, by an error or by sys.exit(), the last name is its name. Skips the names up to argv[2].
IMPORT_FOLDER = """
import importlib, pkgutil, sys
def walk(folder, prefix):
    found = list(pkgutil.iter_modules([folder]))
    for _, name, is_package in found:
        if not is_package:
            yield prefix + name
    for _, name, is_package in found:
        if is_package:
            yield from walk(folder + "/" + name, prefix + name + ".")
sys.path.insert(0, sys.argv[1])
names = list(walk(sys.argv[1], ""))
for name in names[names.index(sys.argv[2]) + 1 if sys.argv[2] else 0:]:
    print("nnunet-gdla imports", name, flush=True)
    importlib.import_module(name)
print("nnunet-gdla imports nothing more", flush=True)
"""


def check_registration() -> Iterator[Finding]:
    """Say whether this Python registered us when it started."""
    error = os.environ.get(_register.ERROR_VARIABLE)
    if error:
        yield failed("registration", f"it broke when Python started: {error}", ENV_FIX)
    ours = Path(_register.shim_folder())
    entries = _external_entries()
    if not any(Path(entry) == ours for entry in entries):
        opted_out = os.environ.get(_register.OPT_OUT_VARIABLE)
        why = f" ({_register.OPT_OUT_VARIABLE}={opted_out})" if opted_out else ""
        yield failed("registration", f"{_register.TRAINERS_VARIABLE} does not hold {ours}{why}", ENV_FIX)
    elif Path(entries[0]) != ours:
        detail = f"{entries[0]} stands before our folder; a broken file there ends nnU-Net's search before ours"
        yield warned("registration", detail, ENV_FIX)
    else:
        yield passed("registration", f"{ours} is the first folder in {_register.TRAINERS_VARIABLE}")


def check_external_folders() -> Iterator[Finding]:
    """Look at the user's own folders of trainers: a file that cannot be imported ends nnU-Net's search there."""
    ours = Path(_register.shim_folder())
    for entry in _external_entries():
        if Path(entry) == ours:
            continue
        if not Path(entry).is_dir():
            fix = f"correct {_register.TRAINERS_VARIABLE}; nnU-Net passes over it without a word"
            yield warned("own trainers", f"{entry} is no folder", fix)
            continue
        broken = list(_broken_files(entry))
        if not broken:
            yield passed("own trainers", f"every file in {entry} can be imported")
        for file, reason in broken:
            fix = "mend it or move it away: nnU-Net imports every file there and its search stops at a broken one"
            yield failed("own trainers", f"{file} in {entry}: {reason}", fix)


def check_trainers(names: Sequence[str]) -> Iterator[Finding]:
    """Look each trainer up as nnUNetv2_train does, and compare the find with our own class of that name."""
    from nnunet_gdla.trainers import is_ours, resolve

    for name in names:
        trainer = find_trainer(name)
        if isinstance(trainer, Finding):
            yield trainer
        elif is_ours(name) and trainer is not resolve(name):
            detail = f"nnU-Net finds another class of that name first, in {trainer.__module__}"
            yield failed(f"trainer {name}", detail, "rename or remove that class, or the file that holds it")
        else:
            yield passed(f"trainer {name}", f"found, from {trainer.__module__}")


def find_trainer(name: str) -> type | Finding:
    """Return the trainer that nnU-Net finds by this name, or the finding that says why it finds none."""
    from nnunetv2.utilities.find_objects import recursive_find_trainer_class_by_name

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            trainer: type = recursive_find_trainer_class_by_name(name)
    except BREAKAGES as error:
        title = f"trainer {name}"
        if isinstance(error, UserError):  # our own sentence about a name that is close to ours
            return failed(title, f"nnU-Net does not find it: {error}", "correct the name given with -tr")
        if not str(error).startswith("Could not find"):
            detail = f"nnU-Net's search broke with {one_line(error)}"
        else:
            detail = "nnU-Net does not find it"
        return failed(title, detail, f"check the spelling and the lines above; {ENV_FIX}")
    return trainer


def check_planners(names: Sequence[str]) -> Iterator[Finding]:
    """Look each planner up as nnUNetv2_plan_and_preprocess -pl does."""
    import nnunetv2
    from nnunetv2.experiment_planning import plan_and_preprocess_api

    for name in names:
        folder = str(Path(nnunetv2.__path__[0]) / "experiment_planning")
        module = "nnunetv2.experiment_planning"
        planner = plan_and_preprocess_api.recursive_find_python_class(folder, name, current_module=module)
        if planner is None:
            yield failed(
                f"planner {name}", "nnU-Net does not find it", f"the hook is armed at Python's start: {ENV_FIX}"
            )
        else:
            yield passed(f"planner {name}", f"found, from {planner.__module__}")


def check_signatures(classes: Sequence[type], base: type, hooks: Iterable[str]) -> Iterator[Finding]:
    """Compare the methods that our classes override with those of the installed nnU-Net."""
    title = f"hooks of {base.__name__}"
    fix = 'pip install "nnunetv2>=2.8,<3" and the newest nnunet-gdla; if both are, please report this line'
    problems = list(dict.fromkeys(problem for ours in classes for problem in compare_overrides(ours, base)))
    problems += [f"the installed {base.__name__} has no method {name}" for name in missing_hooks(base, hooks)]
    for problem in problems:
        yield failed(title, problem, fix)
    if not problems:
        names = ", ".join(ours.__name__ for ours in classes)
        yield passed(title, f"the installed methods have the parameters that {names} expect")


def _external_entries() -> list[str]:
    entries = os.environ.get(_register.TRAINERS_VARIABLE, "").split(os.pathsep)
    return [entry.strip() for entry in entries if entry.strip()]


def _broken_files(folder: str) -> Iterator[tuple[str, str]]:
    """Yield name and reason of each file that cannot be imported, in a Python of its own for safety."""
    last = ""
    while True:
        command = [sys.executable, "-P", "-c", IMPORT_FOLDER, folder, last]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_LIMIT_S, check=False)
            output, reason = done.stdout, _reason(done)
        except subprocess.TimeoutExpired as error:
            output = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
            reason = f"still running after {IMPORT_LIMIT_S} s"
        lines = [line for line in output.splitlines() if line.startswith("nnunet-gdla imports ")]
        name = lines[-1].removeprefix("nnunet-gdla imports ") if lines else ""
        if name == "nothing more":
            return
        if not name:  # not even the list of files could be made
            yield "the folder", reason
            return
        yield f"{name.replace('.', os.sep)}.py", reason
        last = name


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"it ends Python with exit code {done.returncode}"
