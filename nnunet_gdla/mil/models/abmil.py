"""Attention-based multiple instance learning: a weighted mean of patches.

Shape legend (this file): B batch, N patches, D feature width, C channels, K outputs.
"""

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from nnunet_gdla.mil.models.bags import each_slide, eval_no_grad
from nnunet_gdla.mil.models.tokens import check_sizes, project_features
from nnunet_gdla.ops.neighbours import NeighbourGraph

__all__ = ["ABMIL"]


class ABMIL(nn.Module):
    r"""Gated attention pooling.

    $$h = \mathrm{ReLU}(W_e x),\quad a = \mathrm{softmax}_n\,w^\top(\tanh(V h_n) \odot \sigma(U h_n)),\quad
      y = W_o \sum_n a_n h_n + b_o .$$

    Args:
        in_dim: Width D of the features.
        num_outputs: Classes or time bins K.
        width: Channels C.
        attention_width: Rows of V and U.

    Parameters: `embed`, `attention_tanh` (V), `attention_sigmoid` (U), `attention_score` (w), `head`; all with bias,
    PyTorch's default initialisation.
    Reference: Ilse et al. 2018 (arXiv:1802.04712).
    """

    needs_coords = False

    def __init__(self, in_dim: int, num_outputs: int, *, width: int = 512, attention_width: int = 128) -> None:
        super().__init__()
        check_sizes(in_dim=in_dim, num_outputs=num_outputs, width=width, attention_width=attention_width)
        self.in_dim, self.num_outputs = in_dim, num_outputs
        self.embed = nn.Linear(in_dim, width)
        self.attention_tanh = nn.Linear(width, attention_width)
        self.attention_sigmoid = nn.Linear(width, attention_width)
        self.attention_score = nn.Linear(attention_width, 1)
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
            coords: Not used, as the order of the patches is not; `stride` and `graph` neither.
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
        """Return the attention weight of every patch, in row order; they sum to 1."""
        with eval_no_grad(self):
            return each_slide(lambda bag: self._pool(bag)[1], features, coords, None, self.in_dim)[0]

    def _pool(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return channels (1, N, C) and weights (1, N)."""
        h = torch.relu(project_features(self.embed, features))
        score = self.attention_score(torch.tanh(self.attention_tanh(h)) * torch.sigmoid(self.attention_sigmoid(h)))
        return h, score.squeeze(-1).softmax(-1)

    def _classify(self, features: Tensor) -> Tensor:
        h, weight = self._pool(features)
        return self.head((weight.to(h.dtype).unsqueeze(1) @ h).squeeze(1))
