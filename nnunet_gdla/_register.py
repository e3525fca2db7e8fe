"""How a stock nnU-Net finds our trainers and planners: run once at every Python start, by `nnunet_gdla.pth`.

Trainers: nnU-Net imports every file in the folders of the variable `nnUNet_extTrainer` and asks each for a class by
name. Our folder holds one such file, which answers for our names only. Planners: nnU-Net asks the modules of its own
`nnunetv2.experiment_planning`; one of them learns our planners' names when it is imported.

It imports nothing that Python has not imported already, `typing` included, because every start of Python pays for it.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

__all__ = ["autoregister", "external_trainers", "register", "shim_folder"]

TRAINERS_VARIABLE = "nnUNet_extTrainer"
OPT_OUT_VARIABLE = "NNUNET_GDLA_NO_AUTOREGISTER"
ERROR_VARIABLE = "NNUNET_GDLA_REGISTER_ERROR"
PLANNING_MODULE = "nnunetv2.experiment_planning.plan_and_preprocess_api"


def autoregister() -> None:
    """Register at the start of Python, unless `NNUNET_GDLA_NO_AUTOREGISTER=1`; never raises.

    What went wrong is kept in `NNUNET_GDLA_REGISTER_ERROR`, which `nnunet-gdla doctor` shows: a plugin must not be able
    to break the start of every Python program of its environment.
    """
    if os.environ.get(OPT_OUT_VARIABLE, "").lower() not in ("", "0", "f", "false", "no", "off"):
        return
    try:
        register()
    except Exception as error:  # noqa: BLE001 - see the docstring
        os.environ[ERROR_VARIABLE] = repr(error)
    else:
        os.environ.pop(ERROR_VARIABLE, None)  # a parent process may have left one


def register() -> None:
    """Make our trainers and planners visible to nnU-Net in this process and its children; again is harmless."""
    os.environ[TRAINERS_VARIABLE] = external_trainers(os.environ.get(TRAINERS_VARIABLE))
    loaded = sys.modules.get(PLANNING_MODULE)
    if loaded is not None:
        _offer_planners(loaded)
    if not any(isinstance(finder, _PlanningFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _PlanningFinder())


def shim_folder() -> str:
    """Return the folder that nnU-Net searches for our trainers."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "ext")  # noqa: PTH100, PTH118, PTH120 - no pathlib


def external_trainers(current: str | None) -> str:
    """Return the value of `nnUNet_extTrainer` with our folder first and everything in `current` kept.

    First, because a file that cannot be imported, in any folder before ours, ends nnU-Net's search.
    """
    ours = shim_folder()
    others = [folder for folder in (current or "").split(os.pathsep) if folder and folder != ours]
    return os.pathsep.join([ours, *others])


class _PlanningFinder:
    """Lets the other finders find nnU-Net's planning module and adds our planners to it once it has run."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        if name != PLANNING_MODULE:
            return None
        for finder in sys.meta_path:
            find_spec = getattr(finder, "find_spec", None)
            if find_spec is None or isinstance(finder, _PlanningFinder):
                continue
            spec: ModuleSpec | None = find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _PlanningLoader(spec.loader)  # type: ignore[assignment]
                return spec
        return None


class _PlanningLoader:
    """The planning module's own loader, with one step after it."""

    def __init__(self, loader: "Any") -> None:  # noqa: ANN401 - loaders share no type
        self._loader = loader

    def __getattr__(self, name: str) -> "Any":  # noqa: ANN401
        return getattr(self._loader, name)

    def exec_module(self, module: "ModuleType") -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        _offer_planners(module)


def _offer_planners(module: "ModuleType") -> None:
    """Let `module` answer for our planners' names, which nnU-Net asks it for with `hasattr`."""
    own = vars(module).get("__getattr__")
    if getattr(own, "offers_our_planners", False):
        return

    def __getattr__(name: str) -> "Any":  # noqa: ANN401, N807 - the name is Python's (PEP 562)
        if name.startswith("nnUNetPlanner"):
            import nnunet_gdla.plans as plans

            if name in plans.PLANNERS:
                return getattr(plans, name)
        if own is not None:
            return own(name)
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

    __getattr__.offers_our_planners = True  # type: ignore[attr-defined]
    module.__getattr__ = __getattr__  # type: ignore[method-assign]
