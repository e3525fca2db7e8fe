"""RMS normalisation of attention heads."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nnunet_gdla.ops._checks import without_autocast

__all__ = ["HeadRMSNorm"]


class HeadRMSNorm(nn.Module):
    r"""$x / \sqrt{\overline{x^2} + \varepsilon} \cdot w$ over the channels of one head; all heads share the weight.

    Parameters: `weight` (head_dim,), ones.
    Numerics: float32 (float64 for float64 input) whatever autocast says, result in the dtype of the input; a head of
    zeros gives zeros with finite gradients.
    """

    def __init__(self, head_dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(head_dim))
        self.eps = eps

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        """Normalise the last axis."""
        acc = torch.promote_types(x.dtype, torch.float32)
        with without_autocast(x):
            return F.rms_norm(x.to(acc), self.weight.shape, self.weight.to(acc), self.eps).to(x.dtype)
