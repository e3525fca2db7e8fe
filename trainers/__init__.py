"""Trainers that nnU-Net finds by name; `nnunet_gdla.trainers.NAME` resolves any name of the naming rule.

Nothing is imported before a trainer is asked for: nnU-Net's search for somebody else's trainer passes through here.
"""

from nnunet_gdla.trainers.nnunet_gdla_naming import EXAMPLES, RULE, contradiction, is_ours, resolve

__all__ = ["EXAMPLES", "RULE", "contradiction", "is_ours", "resolve"]


def __getattr__(name: str) -> type:
    if is_ours(name):
        return resolve(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
