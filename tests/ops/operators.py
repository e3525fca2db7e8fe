"""The attention operators with their naive twins and random inputs, so that one test serves all of them.

Shape legend (this file): B batch, H heads, N query tokens, M key tokens, K width of q and k, V value width.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nnunet_gdla.ops import differential_attention, differential_linear_attention, linear_attention
from tests.reference.differential import differential_attention_naive, differential_linear_attention_naive
from tests.reference.linear import linear_attention_naive

__all__ = ["KEY_MASKS", "OPERATORS", "SIZES", "Operator", "Sizes", "key_mask"]


@dataclass(frozen=True)
class Sizes:
    """Sizes of one case; `d` is the width of one branch, q and k of differential operators hold two."""

    b: int
    h: int
    n: int
    m: int
    d: int
    v: int

    def __str__(self) -> str:
        return f"b{self.b}h{self.h}n{self.n}m{self.m}d{self.d}v{self.v}"


@dataclass(frozen=True)
class Operator:
    """One operator: what is tested, what it must equal, and what it takes."""

    name: str
    fast: Callable[..., Tensor]
    naive: Callable[..., Tensor]
    branches: int
    lam_shape: Callable[[Sizes], tuple[int, ...]] | None = None
    positive: bool = False
    linear: bool = True

    def inputs(self, sizes: Sizes, *, dtype: torch.dtype = torch.float64, seed: int = 0) -> list[Tensor]:
        """Return random q, k, v and, for a differential operator, lambda."""
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        width = self.branches * sizes.d
        q, k = normal(sizes.b, sizes.h, sizes.n, width), normal(sizes.b, sizes.h, sizes.m, width)
        if self.positive:
            q, k = q.abs(), k.abs()
        tensors = [q, k, normal(sizes.b, sizes.h, sizes.m, sizes.v)]
        if self.lam_shape is not None:
            tensors.append(normal(*self.lam_shape(sizes)))
        return [tensor.to(dtype) for tensor in tensors]

    def arguments(self, **options: Any) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:  # noqa: ANN401
        """Return the operator and its twin with keyword arguments bound."""
        return functools.partial(self.fast, **options), functools.partial(self.naive, **options)


def _head_and_channel(sizes: Sizes) -> tuple[int, ...]:
    return (sizes.h, sizes.v)


def _head(sizes: Sizes) -> tuple[int, ...]:
    return (sizes.h,)


def _scalar(_: Sizes) -> tuple[int, ...]:
    return ()


OPERATORS = [
    Operator("linear", linear_attention, linear_attention_naive, 1),
    Operator(
        "linear_mapped",
        functools.partial(linear_attention, feature_map=None),
        functools.partial(linear_attention_naive, feature_map=None),
        1,
        positive=True,
    ),
    Operator(
        "differential_linear",
        differential_linear_attention,
        differential_linear_attention_naive,
        2,
        lam_shape=_head_and_channel,
    ),
    Operator("differential", differential_attention, differential_attention_naive, 2, lam_shape=_head, linear=False),
    Operator(
        "differential_one_lambda",
        differential_attention,
        differential_attention_naive,
        2,
        lam_shape=_scalar,
        linear=False,
    ),
]

SIZES = [
    Sizes(1, 1, 1, 1, 1, 1),
    Sizes(2, 3, 7, 7, 4, 5),
    Sizes(1, 2, 1, 9, 3, 2),
    Sizes(2, 1, 13, 1, 2, 8),
    Sizes(3, 2, 5, 17, 8, 1),
]

KEY_MASKS = ("none", "random", "one key", "no key in one element")


def key_mask(kind: str, sizes: Sizes) -> Tensor | None:
    """Return a mask of that kind, or None for "none"."""
    if kind == "none":
        return None
    generator = torch.Generator().manual_seed(sizes.m)
    mask = torch.rand((sizes.b, sizes.m), generator=generator) < 0.6
    if kind == "one key":
        mask[:] = False
        mask[:, sizes.m // 2] = True
    if kind == "no key in one element":
        mask[0] = False
    return mask
