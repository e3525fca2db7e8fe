"""The GDLA mixer: gated differential linear attention with a local branch."""

from typing import Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nnunet_gdla.layers.grid import check_grid, convolution, to_grid, to_tokens
from nnunet_gdla.layers.norm import HeadRMSNorm
from nnunet_gdla.layers.untouched import has_hooks, is_seen, is_untouched
from nnunet_gdla.ops.gated_differential import GATES, Gate, attend_and_gate, gated_differential_attention
from nnunet_gdla.ops.local_mixing import LocalWeights, mix_in_place, mix_in_place_fits
from nnunet_gdla.ops.projection import projection

__all__ = ["GATES", "LOCAL_MIXINGS", "Gate", "GatedDifferentialLinearAttention", "LocalMixing"]

LocalMixing = Literal["joint", "separate"] | None
LOCAL_MIXINGS = ("joint", "separate", None)


class GatedDifferentialLinearAttention(nn.Module):
    r"""Mix tokens by the difference of two linear attentions, normalised and gated per head, globally and locally.

    $$[Q, K, V, G] = X W,\qquad Y = A_1 - \lambda \odot A_2,\qquad
      \mathrm{head} = \mathrm{RMSNorm}(Y) \odot \mathrm{gate}(G),$$

    with $A_i$ as in `differential_linear_attention`. The local branch computes the same on $f([Q, K, V, G])$, where f
    is a depthwise and a 1x1 convolution on the token grid; [global, local] goes through the output projection.

    Args:
        dim: Channels C of the tokens.
        num_heads: Heads; each has C / num_heads channels, split in two equal halves for the two branches.
        qkv_bias: Bias of the first projection.
        differential: False: one full-width linear attention, no lambda; norm and gate stay.
        gate: "silu" (paper), "sigmoid" (released code and checkpoints) or None (no G: three projections only).
        local_mixing: "joint" (released: one dense 1x1 over all projections), "separate" (paper's text: one dense 1x1 a
            projection) or None (no local branch, output projection C -> C).
        local_kernel: Odd edge of the depthwise convolution.
        spatial_dims: Axes of the token grid.

    Raises:
        ValueError: If the heads do not divide `dim`, a head's width is odd, the kernel is even or a choice is unknown.

    Parameters: `qkvg` Linear (C -> 4C, order q, k, v, g), `local_depthwise`, `local_pointwise`, `lambda_global` and
    `lambda_local` (heads, C / heads) from N(0, 0.1), `norm` (shared by heads and branches), `out_proj`.
    Differs from the paper: biases, 1e-6 in the normalisers, and by default the joint 1x1, all as in the released code.
    Reference: GDLA paper, Eq. 13-27 (arXiv:2603.02727); `gdla_mixer_naive` in tests/reference.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        qkv_bias: bool = True,
        differential: bool = True,
        gate: Gate = "silu",
        local_mixing: LocalMixing = "joint",
        local_kernel: int = 3,
        spatial_dims: int = 2,
    ) -> None:
        super().__init__()
        _check_arguments(dim, num_heads, differential, gate, local_mixing, local_kernel)
        self.num_heads, self.gate, self.spatial_dims = num_heads, gate, spatial_dims
        parts = 3 if gate is None else 4
        self.num_parts = parts
        self.qkvg = nn.Linear(dim, parts * dim, bias=qkv_bias)
        self.norm = HeadRMSNorm(dim // num_heads)
        self.out_proj = nn.Linear(dim if local_mixing is None else 2 * dim, dim)
        self.local_depthwise = self.local_pointwise = None
        if local_mixing is not None:
            conv, width = convolution(spatial_dims), parts * dim
            self.local_depthwise = conv(width, width, local_kernel, padding=local_kernel // 2, groups=width)
            # One dense C -> C a projection is the joint one cut into as many groups.
            self.local_pointwise = conv(width, width, 1, groups=1 if local_mixing == "joint" else parts)
        self.lambda_global = self._new_lambda(dim) if differential else None
        self.lambda_local = self._new_lambda(dim) if differential and local_mixing is not None else None

    def _new_lambda(self, dim: int) -> nn.Parameter:
        return nn.Parameter(torch.empty(self.num_heads, dim // self.num_heads).normal_(std=0.1))

    def forward(self, x: Float[Tensor, "B N C"], grid: tuple[int, ...]) -> Float[Tensor, "B N C"]:
        """Mix tokens that lie on `grid` in raster order.

        Raises:
            ValueError: If the grid does not have N cells.
        """
        check_grid(x, grid, self.spatial_dims)
        projected = _project(self.qkvg, x)
        mixed = self._attend(projected, self.lambda_global)
        if self.local_depthwise is not None:
            local = self._mix_locally(projected, grid)
            mixed = torch.cat([mixed, self._attend(local, self.lambda_local)], dim=-1)
        return _project(self.out_proj, mixed)

    def _mix_locally(self, projected: Tensor, grid: tuple[int, ...]) -> Tensor:
        """Both convolutions of the local branch; without gradients the result may lie where `projected` is."""
        depthwise, pointwise = cast(nn.Conv2d, self.local_depthwise), cast(nn.Conv2d, self.local_pointwise)
        seen = is_seen(self.qkvg, depthwise)
        if self.spatial_dims == 2 and not seen and not is_seen(pointwise) and pointwise.groups == 1:
            biases = cast(Tensor, depthwise.bias), cast(Tensor, pointwise.bias)
            weights = LocalWeights(depthwise.weight, biases[0], pointwise.weight.flatten(1), biases[1])
            if mix_in_place_fits(projected, weights):
                return mix_in_place(projected, (grid[0], grid[1]), weights)
        return self._mix_pointwise(depthwise(to_grid(projected, grid)), None if seen else projected)

    def _mix_pointwise(self, image: Tensor, unused: Tensor | None) -> Tensor:
        """The 1x1 convolution, which on tokens is a linear map, or one for each projection.

        Without gradients the result may lie in `unused`: fresh memory costs much of what the sums cost.
        """
        layer, tokens = cast(nn.Conv2d, self.local_pointwise), to_tokens(image)
        if not is_untouched(layer):
            return to_tokens(layer(image))
        if layer.groups == 1:
            return projection(tokens, layer.weight.flatten(1), layer.bias, unused=unused)
        weights, biases = layer.weight.flatten(1).chunk(layer.groups), cast(Tensor, layer.bias).chunk(layer.groups)
        parts = zip(tokens.chunk(layer.groups, dim=-1), weights, biases, strict=True)
        return torch.cat([projection(part, weight, bias) for part, weight, bias in parts], dim=-1)

    def _attend(self, projected: Tensor, lam: Tensor | None) -> Tensor:
        if type(self.norm) is not HeadRMSNorm or has_hooks(self.norm):
            return attend_and_gate(projected, lam, self.norm, num_heads=self.num_heads, gate=self.gate)
        return gated_differential_attention(
            projected, lam, self.norm.weight, num_heads=self.num_heads, gate=self.gate, norm_eps=self.norm.eps
        )


def _project(layer: nn.Module, x: Tensor) -> Tensor:
    if not is_untouched(layer):
        return cast(Tensor, layer(x))
    plain = cast(nn.Linear, layer)
    return projection(x, plain.weight, plain.bias)


def _check_arguments(
    dim: int, num_heads: int, differential: bool, gate: Gate, local_mixing: LocalMixing, local_kernel: int
) -> None:
    if num_heads < 1 or dim % num_heads:
        raise ValueError(f"num_heads {num_heads} must divide dim {dim}")
    if differential and (dim // num_heads) % 2:
        raise ValueError(f"dim {dim} / num_heads {num_heads} must be even: a head is cut into two branches")
    if gate not in GATES:
        raise ValueError(f"unknown gate {gate!r}; choose one of {', '.join(map(repr, GATES))}")
    if local_mixing not in LOCAL_MIXINGS:
        raise ValueError(f"unknown local_mixing {local_mixing!r}; choose one of {', '.join(map(repr, LOCAL_MIXINGS))}")
    if local_kernel < 1 or local_kernel % 2 == 0:
        raise ValueError(f"local_kernel must be odd and positive, got {local_kernel}")
