"""Ranges of the network's arguments, which come from plans files and so may be anything that JSON holds."""

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import TypeGuard

__all__ = ["check_flags", "check_heads", "check_numbers", "check_strides"]

# Fewer leave the narrowest layers of SwiGLU without a hidden channel.
_LEAST_MLP_RATIO = 1 / 16


def check_numbers(
    *,
    input_channels: object,
    num_classes: object,
    mlp_ratio: object,
    upsample_kernel: object,
    local_kernel: object,
    drop_path_rate: object,
) -> None:
    """Refuse numbers out of range, by the name of the argument.

    Raises:
        ValueError: For the first that is.
    """
    for name, count in (("input_channels", input_channels), ("num_classes", num_classes)):
        if not _is_whole(count) or count < 1:
            raise ValueError(f"{name} must be at least 1 and a whole number, got {count!r}")
    for name, edge, least in (("upsample_kernel", upsample_kernel, 3), ("local_kernel", local_kernel, 1)):
        if not _is_whole(edge) or edge < least or edge % 2 == 0:
            raise ValueError(f"{name} must be odd and at least {least}, got {edge!r}")
    if not _is_real(mlp_ratio) or not _LEAST_MLP_RATIO <= mlp_ratio < math.inf:
        raise ValueError(f"mlp_ratio must be a finite number of at least {_LEAST_MLP_RATIO}, got {mlp_ratio!r}")
    if not _is_real(drop_path_rate) or not 0 <= drop_path_rate < 1:
        raise ValueError(f"drop_path_rate must be at least 0 and below 1, got {drop_path_rate!r}")


def check_flags(flags: Mapping[str, object]) -> None:
    """Refuse what is not True or False, such as the text "false".

    Raises:
        ValueError: For the first that is neither.
    """
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be True or False, got {value!r}")


def check_heads(num_heads: object, channels: Sequence[int]) -> Sequence[int]:
    """Heads at strides 4, 8 and 16: those that are given, or by default channels / 32.

    Raises:
        ValueError: If they are not three whole numbers from 1; whether they divide the channels is the layers' matter.
    """
    if num_heads is None:
        return [dim // 32 for dim in channels[:3]]
    if not isinstance(num_heads, list | tuple) or len(num_heads) != 3:
        raise ValueError(f"num_heads {num_heads!r} must list three numbers: the heads at strides 4, 8 and 16")
    for heads, dim in zip(num_heads, channels, strict=False):
        if not _is_whole(heads) or heads < 1:
            raise ValueError(f"num_heads {num_heads!r}: {heads!r} must be a whole number from 1 that divides {dim}")
    return num_heads


def check_strides(strides: object, expected: list[list[int]]) -> None:
    """Refuse strides that are not those of the network.

    Raises:
        ValueError: If they are others.
    """
    if strides is None:
        return
    given = [list(step) if isinstance(step, list | tuple) else step for step in _listed(strides)]
    if given != expected:
        raise ValueError(
            f"strides {given or strides!r} do not fit this network, whose outputs lie at 1, 1/8, 1/16 and 1/32; set "
            f"them to {expected} in the plans"
        )


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_real(value: object) -> TypeGuard[float]:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
