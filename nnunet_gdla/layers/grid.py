"""Tokens of an image and back: (B, N, C) in raster order and (B, C, *grid) share their memory (channels last)."""

import math

from torch import Tensor, nn

__all__ = ["check_grid", "convolution", "to_grid", "to_tokens"]


def to_tokens(x: Tensor) -> Tensor:
    """(B, C, *grid) -> (B, N, C), a view."""
    return x.flatten(2).transpose(1, 2)


def to_grid(x_BNC: Tensor, grid: tuple[int, ...]) -> Tensor:
    """(B, N, C) -> (B, C, *grid), a view with channels-last strides, on which convolutions run without a copy."""
    # Unfolded before it is transposed: the other way round a batch of one gets a stride that convolutions take for no
    # channels-last, and they copy the image twice.
    return x_BNC.unflatten(1, grid).movedim(-1, 1)


def check_grid(x_BNC: Tensor, grid: tuple[int, ...], spatial_dims: int) -> None:
    """Raise a ValueError unless the grid has the stated number of axes and as many cells as there are tokens."""
    if len(grid) != spatial_dims or math.prod(grid) != x_BNC.shape[1]:
        raise ValueError(
            f"grid {tuple(grid)} has {math.prod(grid)} cells, tokens {tuple(x_BNC.shape)} have {x_BNC.shape[1]}; "
            f"pass the {spatial_dims} sizes of the token grid"
        )


def convolution(spatial_dims: int) -> type[nn.Conv1d] | type[nn.Conv2d] | type[nn.Conv3d]:
    """The convolution class for a grid with that many axes.

    Raises:
        ValueError: If `spatial_dims` is not 1, 2 or 3.
    """
    classes: dict[int, type[nn.Conv1d] | type[nn.Conv2d] | type[nn.Conv3d]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
    if spatial_dims not in classes:
        raise ValueError(f"spatial_dims must be 1, 2 or 3, got {spatial_dims}")
    return classes[spatial_dims]
