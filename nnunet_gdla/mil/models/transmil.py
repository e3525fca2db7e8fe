"""TransMIL: two Nystrom attention layers with a position convolution between them.

Shape legend (this file): B batch, N patches, L tokens, D feature width, C channels, H heads, K outputs.
"""

from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from nnunet_gdla.layers.ppeg import PPEG
from nnunet_gdla.mil.models.bags import each_slide, eval_no_grad
from nnunet_gdla.mil.models.tokens import check_sizes, fill_square, project_features, with_class_token
from nnunet_gdla.ops.neighbours import NeighbourGraph
from nnunet_gdla.ops.nystrom import PinvInit, nystrom_attention, nystrom_attention_row

__all__ = ["TransMIL", "TransMILAttention"]

CONVOLUTION = 33


class TransMILAttention(nn.Module):
    r"""Nystrom attention plus a convolution of the values along the rows, $W_o(\mathrm{Nys}(q,k,v) + c_h * v)$.

    The sequence is filled up with zero rows in front to a multiple of the landmarks, and these are not masked: as
    published, they are keys of score 0 and take part in landmarks, pseudo-inverse and convolution.

    Args:
        dim: Channels C.
        num_heads: Heads H, a divisor of C.
        num_landmarks: Landmarks; a shorter sequence has one per row.
        pinv_init: Start of the pseudo-inverse; "global", as published, couples the heads of a slide.
        dropout: After the output projection.

    Parameters: `qkv` (C -> 3C, rows q, k, v, each head-major, no bias), `value_convolution` (per head 33 weights along
    the rows), `out_proj` (C -> C); PyTorch's default initialisation.
    """

    def __init__(
        self, dim: int, num_heads: int, *, num_landmarks: int, pinv_init: PinvInit = "global", dropout: float = 0.1
    ) -> None:
        super().__init__()
        if num_heads < 1 or dim % num_heads:
            raise ValueError(f"num_heads {num_heads} must divide width {dim}")
        self.num_heads, self.num_landmarks, self.pinv_init = num_heads, num_landmarks, pinv_init
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.value_convolution = nn.Conv2d(
            num_heads, num_heads, (CONVOLUTION, 1), padding=(CONVOLUTION // 2, 0), groups=num_heads, bias=False
        )
        self.out_proj = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "1 L C"]) -> Float[Tensor, "1 L C"]:
        """Mix the tokens of one slide, the class token first."""
        q, k, v, options = self._project(x)
        y = nystrom_attention(q, k, v, **options) + self.value_convolution(v)
        merged = rearrange(y, "b h l d -> b l (h d)")[:, -x.shape[1] :]
        return self.dropout(self.out_proj(merged))

    def class_row(self, x: Float[Tensor, "1 L C"]) -> Float[Tensor, "1 H L"]:
        """Return how the class token weighs all tokens, per head, without the value convolution."""
        q, k, _, options = self._project(x)
        front = q.shape[2] - x.shape[1]
        return nystrom_attention_row(q, k, row=front, **options)[..., front:]

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
        landmarks = min(self.num_landmarks, x.shape[1])
        padded = F.pad(x, (0, 0, -x.shape[1] % landmarks, 0))
        q, k, v = rearrange(self.qkv(padded), "b l (p h d) -> p b h l d", p=3, h=self.num_heads)
        return q, k, v, {"num_landmarks": landmarks, "pinv_init": self.pinv_init}


class TransMIL(nn.Module):
    r"""Class token, attention, position convolution, attention, linear head.

    The result depends on the order of the patches: they are laid out row by row on a square whose free places are
    filled with copies of the first patches, and landmarks are means over consecutive rows.

    Args:
        in_dim: Width D of the features.
        num_outputs: Classes or time bins K.
        width: Channels C.
        num_heads: Heads.
        num_landmarks: Landmarks of both layers; None: half the width.
        pinv_init: See `TransMILAttention`.
        dropout: See `TransMILAttention`.

    Parameters: `embed` (linear, then ReLU), `class_token` from N(0, 1), `norm1`, `attention1`, `position` (PPEG),
    `norm2`, `attention2`, `norm`, `head`; PyTorch's default initialisation.
    Reference: Shao et al. 2021 (arXiv:2106.00908), in the form of the Gated SRP comparison.
    """

    needs_coords = False
    depends_on_row_order = True

    def __init__(
        self,
        in_dim: int,
        num_outputs: int,
        *,
        width: int = 512,
        num_heads: int = 8,
        num_landmarks: int | None = None,
        pinv_init: PinvInit = "global",
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        check_sizes(in_dim=in_dim, num_outputs=num_outputs, width=width, num_heads=num_heads)
        self.in_dim, self.num_outputs = in_dim, num_outputs
        landmarks = width // 2 if num_landmarks is None else num_landmarks
        self.embed = nn.Linear(in_dim, width)
        self.class_token = nn.Parameter(torch.randn(1, 1, width))
        self.norm1, self.norm2, self.norm = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention1, self.attention2 = (
            TransMILAttention(width, num_heads, num_landmarks=landmarks, pinv_init=pinv_init, dropout=dropout)
            for _ in range(2)
        )
        self.position = PPEG(width)
        self.head = nn.Linear(width, num_outputs)

    def forward(
        self,
        features: Float[Tensor, "B N D"],
        coords: Shaped[Tensor, "B N _"] | None = None,
        stride: float | int | None = None,
        *,
        graph: NeighbourGraph | None = None,
        mask: Bool[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B K"]:
        """Classify bags of patches.

        Args:
            features: Patch features of any floating dtype.
            coords: Not used: the order of the rows stands for the place. `stride` and `graph` neither.
            stride: Not used.
            graph: Not used.
            mask: True for patches that take part; the others might as well not be there. None: all take part.
        """
        return each_slide(self._classify, features, coords, mask, self.in_dim)

    def patch_scores(
        self,
        features: Float[Tensor, "1 N D"],
        coords: Shaped[Tensor, "1 N _"] | None = None,
        stride: float | int | None = None,
        *,
        graph: NeighbourGraph | None = None,
    ) -> Float[Tensor, " N"]:
        """Return the class token's attention to every patch in the last layer, mean over heads, in row order.

        Small negative values occur: the attention matrix is an approximation.
        """

        def row(bag: Tensor) -> Tensor:
            weight = self.attention2.class_row(self.norm2(self._before_last(bag)))
            return weight.mean(1)[:, 1 : 1 + bag.shape[1]]

        with eval_no_grad(self):
            return each_slide(row, features, coords, None, self.in_dim)[0]

    def _before_last(self, features: Tensor) -> Tensor:
        patches = torch.relu(project_features(self.embed, features))
        x = with_class_token(self.class_token, fill_square(patches))
        x = x + self.attention1(self.norm1(x))
        return self.position(x)

    def _classify(self, features: Tensor) -> Tensor:
        x = self._before_last(features)
        x = x + self.attention2(self.norm2(x))
        return self.head(self.norm(x[:, 0]))
