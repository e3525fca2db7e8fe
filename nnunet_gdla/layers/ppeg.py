"""The position convolution of TransMIL-style slide models."""

import math
from typing import cast

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nnunet_gdla.layers.untouched import is_untouched

__all__ = ["PPEG", "square_side"]

KERNEL = 7


def square_side(rows: int) -> int:
    """Return the edge of the smallest square with at least that many cells, ceil(sqrt(rows))."""
    return math.isqrt(rows - 1) + 1 if rows > 0 else 0


class PPEG(nn.Module):
    r"""Add three depthwise convolutions to the patch rows, $t + k_7 * t + k_5 * t + k_3 * t$; the class row stays.

    Rows 1, 2, ... are laid out in row-major order as an image: the order of the rows, not their coordinates, decides
    who is whose neighbour. Cells without a row are zero.

    Args:
        dim: Channels C of the tokens.

    Parameters: `k7`, `k5`, `k3` depthwise convolutions with bias, zero padding, PyTorch's default initialisation.
    Numerics: the kernels are summed before they are applied; the row itself is added outside the convolution, so that
    autocast does not round it.
    Cost: one depthwise 7x7 convolution.
    Reference: position encoding of TransMIL (Shao et al. 2021, arXiv:2106.00908); `ppeg_naive` in tests/reference.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.k7 = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.k5 = nn.Conv2d(dim, dim, 5, padding=2, groups=dim)
        self.k3 = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)

    def forward(self, x: Float[Tensor, "B L C"], grid: tuple[int, int] | None = None) -> Float[Tensor, "B L C"]:
        """Convolve tokens, the class token first.

        Args:
            x: Class row and patch rows.
            grid: Height and width of the image; None: the smallest square that holds all rows.

        Raises:
            ValueError: If the rows do not fit on the grid.
        """
        rows = x.shape[1] - 1
        height, width = grid or (square_side(rows), square_side(rows))
        if rows > height * width:
            raise ValueError(f"{rows} patch rows of {tuple(x.shape)} do not fit on a grid of {height} x {width}")
        patches = x[:, 1:]
        image = rearrange(
            F.pad(patches, (0, 0, 0, height * width - rows)) if rows < height * width else patches,
            "b (h w) c -> b c h w",
            h=height,
        )
        if is_untouched(self.k7, self.k5, self.k3):
            moved = F.conv2d(image, self._kernel(), self._bias(), padding=KERNEL // 2, groups=image.shape[1])
        else:
            moved = self.k7(image) + self.k5(image) + self.k3(image)
        added = patches + rearrange(moved, "b c h w -> b (h w) c")[:, :rows]
        return torch.cat([x[:, :1], added], dim=1)

    def _kernel(self) -> Tensor:
        return self.k7.weight + F.pad(self.k5.weight, (1, 1, 1, 1)) + F.pad(self.k3.weight, (2, 2, 2, 2))

    def _bias(self) -> Tensor:
        # not a sum of their stack: autograd would give all three one memory for their gradients, and a second backward
        # would add to it three times
        k7, k5, k3 = (cast(Tensor, part.bias) for part in (self.k7, self.k5, self.k3))
        return k7 + k5 + k3
