"""Tensors of a file against those of a module: what is missing, unknown, of another shape, not finite."""

from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["state_misfits"]

_SHOWN = 3


def state_misfits(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> list[str]:
    """Compare two sets of named tensors.

    Args:
        state: Tensors from a file, under the module's names.
        own: The module's own; only names and shapes are looked at.

    Returns:
        One entry per kind of fault, with the count and the first three names; empty if all tensors fit.
    """
    faults = {
        "missing": [name for name in own if name not in state],
        "unknown": [name for name in state if name not in own],
        "of another shape": [name for name in own if name in state and own[name].shape != state[name].shape],
        "not finite": [name for name, tensor in state.items() if not bool(torch.isfinite(tensor).all())],
    }
    return [
        f"{len(names)} {fault} ({', '.join(names[:_SHOWN])}{' ...' if len(names) > _SHOWN else ''})"
        for fault, names in faults.items()
        if names
    ]
