"""Do our overrides still fit the class they override? nnU-Net moves signatures between minor versions."""

import inspect
from collections.abc import Iterable, Iterator

__all__ = ["PLANNER_HOOKS", "TRAINER_HOOKS", "compare_overrides", "missing_hooks"]

# What nnU-Net has to call on our classes, and what they call on it. A method that is renamed there would leave ours
# uncalled without a word, so its absence is a finding too.
TRAINER_HOOKS = (
    "_build_loss",
    "_do_i_compile",
    "_get_deep_supervision_scales",
    "build_network_architecture",
    "configure_optimizers",
    "configure_rotation_dummyDA_mirroring_and_inital_patch_size",
    "initialize",
    "on_train_epoch_start",
    "on_train_start",
    "print_to_log_file",
    "set_deep_supervision_enabled",
    "train_step",
    "validation_step",
)
PLANNER_HOOKS = ("get_plans_for_configuration", "static_estimate_VRAM_usage")


def compare_overrides(ours: type, base: type) -> Iterator[str]:
    """Yield one sentence for each method of `ours` whose parameters are not those of the method it overrides.

    Args:
        ours: The derived class; the classes between it and `base` are looked at too.
        base: The class of the installed nnU-Net.
    """
    for owner in ours.__mro__:
        if owner is base:
            return
        for name, member in vars(owner).items():
            theirs = inspect.getattr_static(base, name, None)
            if _plain(theirs) is None or _plain(member) is None or getattr(object, name, None) is theirs:
                continue
            mine, wanted = _parameters(member), _parameters(theirs)
            if mine != wanted:
                yield f"{owner.__name__}.{name}({', '.join(mine)}), in {base.__name__} it has ({', '.join(wanted)})"
            elif isinstance(member, staticmethod) != isinstance(theirs, staticmethod):
                yield f"{owner.__name__}.{name} and that of the installed {base.__name__} are not both static"


def missing_hooks(base: type, names: Iterable[str]) -> list[str]:
    """Return the names that the installed class does not have any more."""
    return [name for name in names if not callable(getattr(base, name, None))]


def _plain(member: object) -> object:
    """The function under a method, static or class method; None for anything else."""
    function = member.__func__ if isinstance(member, staticmethod | classmethod) else member
    return function if inspect.isfunction(function) else None


def _parameters(member: object) -> list[str]:
    function = _plain(member)
    assert callable(function)
    return list(inspect.signature(function).parameters)
