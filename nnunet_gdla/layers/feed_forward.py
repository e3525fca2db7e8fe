"""Feed-forward layers on tokens (B, N, C); all take the token grid, so that one can stand in another's place."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nnunet_gdla.layers.grid import check_grid, convolution, to_grid, to_tokens
from nnunet_gdla.layers.untouched import is_untouched
from nnunet_gdla.ops.conv_feed_forward import FeedForwardWeights, conv_feed_forward

__all__ = ["MixFFN", "Mlp", "SwiGLU"]


def _xavier(*layers: nn.Linear) -> None:
    for layer in layers:
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)


class Mlp(nn.Module):
    r"""$W_2\,\mathrm{GELU}(W_1 x)$, exact GELU.

    Parameters: `fc1` (C -> hidden), `fc2` (hidden -> C), Xavier weights, zero biases.
    """

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, dim)
        _xavier(self.fc1, self.fc2)

    def forward(self, x: Float[Tensor, "B N C"], grid: tuple[int, ...] | None = None) -> Float[Tensor, "B N C"]:
        """Map every token by itself; `grid` is not used."""
        return self.fc2(F.gelu(self.fc1(x)))


class SwiGLU(nn.Module):
    r"""$W_2 (a \odot \mathrm{SiLU}(b))$ with $[a, b] = W_1 x$.

    Parameters: `fc1` (C -> 2 hidden), `fc2` (hidden -> C), Xavier weights, zero biases.
    Reference: Shazeer 2020 (arXiv:2002.05202).
    """

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, 2 * hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, dim)
        _xavier(self.fc1, self.fc2)

    def forward(self, x: Float[Tensor, "B N C"], grid: tuple[int, ...] | None = None) -> Float[Tensor, "B N C"]:
        """Map every token by itself; `grid` is not used."""
        value, gate = self.fc1(x).chunk(2, dim=-1)
        return self.fc2(value * F.silu(gate))


class MixFFN(nn.Module):
    r"""Gated feed-forward with a depthwise convolution between its two projections.

    $$[a; g] = \mathrm{DWC}_{3\times3}(\mathrm{SiLU}(W_1 x)),\qquad y = W_2 (a \odot \mathrm{SiLU}(g)).$$

    Parameters: `expand` (C -> 2 hidden, bias), `depthwise` (3 per axis, zero padding, bias), `project` (hidden -> C, no
    bias), PyTorch's default initialisation.
    Reference: GDLA paper, Eq. 28 (arXiv:2603.02727); `mix_ffn_naive` in tests/reference.
    """

    def __init__(self, dim: int, hidden_dim: int, *, spatial_dims: int = 2) -> None:
        super().__init__()
        self.spatial_dims = spatial_dims
        self.expand = nn.Linear(dim, 2 * hidden_dim)
        self.depthwise = convolution(spatial_dims)(2 * hidden_dim, 2 * hidden_dim, 3, padding=1, groups=2 * hidden_dim)
        self.project = nn.Linear(hidden_dim, dim, bias=False)

    def forward(self, x: Float[Tensor, "B N C"], grid: tuple[int, ...]) -> Float[Tensor, "B N C"]:
        """Map tokens that lie on `grid` in raster order.

        Raises:
            ValueError: If the grid does not have N cells.
        """
        check_grid(x, grid, self.spatial_dims)
        if self.spatial_dims == 2 and is_untouched(self.expand, self.depthwise, self.project):
            weights = FeedForwardWeights(
                self.expand.weight,
                self.expand.bias,
                self.depthwise.weight,
                self.depthwise.bias,
                self.project.weight,
                self.project.bias,
            )
            return conv_feed_forward(x, (grid[0], grid[1]), weights, middle="gated_silu")
        mixed = to_tokens(self.depthwise(to_grid(F.silu(self.expand(x)), grid)))
        value, gate = torch.chunk(mixed, 2, dim=-1)
        return self.project(value * F.silu(gate))
