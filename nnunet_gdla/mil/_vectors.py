"""One number a patient, as people hold it: array, tensor or list."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from nnunet_gdla.errors import UserError

__all__ = ["Array", "Vector", "as_events", "as_vector", "check_lengths"]

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Vector: TypeAlias = Shaped[Array, " _"] | Shaped[Tensor, " _"] | Sequence[float] | Sequence[int]


def as_vector(values: Vector, name: str) -> Float[Array, " n"]:
    """Return the values as float64.

    Raises:
        ValueError: If there is more than one axis.
    """
    plain = values.detach().cpu().double().numpy() if isinstance(values, Tensor) else values
    vector = np.asarray(plain, dtype=np.float64)
    if vector.ndim != 1:
        raise ValueError(f"{name} {vector.shape} must have one axis, one number a patient")
    return vector


def as_events(event: Vector) -> Bool[Array, " n"]:
    """Return True for events, False for censored patients.

    Raises:
        UserError: If a value is neither 0 nor 1.
    """
    values = as_vector(event, "event")
    odd = values[(values != 0) & (values != 1)]
    if odd.size:
        raise UserError(f"event holds {odd[0]:g}; it must be 1 (the event was seen) or 0 (censored)")
    seen: Array = values == 1
    return seen


def check_lengths(**vectors: Array) -> None:
    """Raise a ValueError that names all lengths unless they are equal."""
    if len({len(vector) for vector in vectors.values()}) > 1:
        raise ValueError(f"lengths differ: {', '.join(f'{name} {len(vector)}' for name, vector in vectors.items())}")
