"""Rotary position encoding along the raster index of the tokens."""

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["rotate_by_position"]


def rotate_by_position(x: Float[Tensor, "*batch N D"], base: float = 10000.0) -> Float[Tensor, "*batch N D"]:
    r"""Turn neighbouring channel pairs $(2i, 2i+1)$ of token $n$ by the angle $n \cdot base^{-2i/D}$ (RoPE).

    Args:
        x: Queries or keys, tokens in raster order; D is even.
        base: Largest wavelength over 2 pi.

    Returns:
        Same shape and dtype.

    Raises:
        ValueError: If D is odd.

    Numerics: angles in float32 (float64 for float64 input), computed anew each call: no table to outgrow or to cache.
    Reference: Su et al. 2021, eq. 34 (arXiv:2104.09864).
    """
    tokens, width = x.shape[-2:]
    if width % 2:
        raise ValueError(f"rotary positions need an even width, got {tuple(x.shape)}")
    acc = torch.promote_types(x.dtype, torch.float32)
    frequency = base ** (-torch.arange(0, width, 2, device=x.device, dtype=acc) / width)
    angle = torch.arange(tokens, device=x.device, dtype=acc)[:, None] * frequency
    even, odd = x.to(acc).unflatten(-1, (width // 2, 2)).unbind(-1)
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2).to(x.dtype)
