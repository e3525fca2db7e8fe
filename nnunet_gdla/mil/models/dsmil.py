"""Dual-stream multiple instance learning: the top patch of each class asks all others.

Shape legend (this file): B batch, N patches, D feature width, C channels, K outputs.
"""

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from nnunet_gdla.mil.models.bags import each_slide, eval_no_grad
from nnunet_gdla.mil.models.tokens import check_sizes, project_features
from nnunet_gdla.ops.neighbours import NeighbourGraph

__all__ = ["DSMIL"]


class DSMIL(nn.Module):
    r"""An instance classifier, and per class an attention pooling whose query is the top-scored patch of that class.

    $$h = \mathrm{ReLU}(W_e x),\quad s = W_s h + b_s,\quad n_k = \arg\max_n s_{nk},\quad
      a_{\cdot k} = \mathrm{softmax}_n\bigl(q(h_n)^\top q(h_{n_k}) / \sqrt{Q}\bigr),\quad b_k = \sum_n a_{nk} h_n .$$

    The bag's logits are one convolution over all $b_k$, as wide as they are.

    `forward` gives the bag's logits only; the top patch is chosen by an argmax, so that a loss on them alone never
    trains the instance scorer. Train on both outputs of `training_logits`.

    Args:
        in_dim: Width D of the features.
        num_outputs: Classes or time bins K.
        width: Channels C.
        query_width: Width Q of the queries.

    Parameters: `embed`, `instance_head`, `query` (linear, ReLU, linear, tanh), `bag_head` (Conv1d); all with bias,
    PyTorch's default initialisation.
    Differs from the paper: one embedding feeds both streams; no value projection and no dropout (as in the released
    Gated SRP comparison).
    Reference: Li et al. 2021 (arXiv:2011.08939).
    """

    needs_coords = False

    def __init__(self, in_dim: int, num_outputs: int, *, width: int = 512, query_width: int = 128) -> None:
        super().__init__()
        check_sizes(in_dim=in_dim, num_outputs=num_outputs, width=width, query_width=query_width)
        self.in_dim, self.num_outputs, self.query_width = in_dim, num_outputs, query_width
        self.embed = nn.Linear(in_dim, width)
        self.instance_head = nn.Linear(width, num_outputs)
        self.query = nn.Sequential(
            nn.Linear(width, query_width), nn.ReLU(), nn.Linear(query_width, query_width), nn.Tanh()
        )
        self.bag_head = nn.Conv1d(num_outputs, num_outputs, width)

    def forward(
        self,
        features: Float[Tensor, "B N D"],
        coords: Shaped[Tensor, "B N _"] | None = None,
        stride: float | int | None = None,
        *,
        graph: NeighbourGraph | None = None,
        mask: Bool[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "B K"]:
        """Classify bags of patches by the bag stream.

        Args:
            features: Patch features of any floating dtype.
            coords: Not used, as the order of the patches is not; `stride` and `graph` neither.
            stride: Not used.
            graph: Not used.
            mask: True for patches that take part; the others might as well not be there. None: all take part.
        """
        return each_slide(lambda bag: self._streams(bag)[0], features, coords, mask, self.in_dim)

    def training_logits(
        self,
        features: Float[Tensor, "B N D"],
        coords: Shaped[Tensor, "B N _"] | None = None,
        stride: float | int | None = None,
        *,
        graph: NeighbourGraph | None = None,
        mask: Bool[Tensor, "B N"] | None = None,
    ) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B K"]]:
        """Return the logits of the bag and the highest instance score per class; train on the mean of both losses."""

        def both(bag: Tensor) -> Tensor:
            logits, scores, _ = self._streams(bag)
            return torch.stack([logits, scores.amax(1)], 1)

        bag, top = each_slide(both, features, coords, mask, self.in_dim).unbind(1)
        return bag, top

    def patch_scores(
        self,
        features: Float[Tensor, "1 N D"],
        coords: Shaped[Tensor, "1 N _"] | None = None,
        stride: float | int | None = None,
        *,
        graph: NeighbourGraph | None = None,
    ) -> Float[Tensor, " N"]:
        """Return the weight of every patch in the pooling of the predicted class, in row order; they sum to 1."""

        def predicted(bag: Tensor) -> Tensor:
            logits, _, weight = self._streams(bag)
            return weight[:, int(logits.argmax())]

        with eval_no_grad(self):
            return each_slide(predicted, features, coords, None, self.in_dim)[0]

    def _streams(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return bag logits (1, K), instance scores (1, N, K) and attention (1, K, N)."""
        h_1NC = torch.relu(project_features(self.embed, features))
        score_1NK = self.instance_head(h_1NC)
        query_1NQ = self.query(h_1NC)
        top_1KQ = query_1NQ[:, score_1NK.argmax(1)[0]]
        weight_1KN = (top_1KQ @ query_1NQ.transpose(1, 2) * self.query_width**-0.5).softmax(-1)
        bag_1KC = weight_1KN.to(h_1NC.dtype) @ h_1NC
        return self.bag_head(bag_1KC).squeeze(-1), score_1NK, weight_1KN
