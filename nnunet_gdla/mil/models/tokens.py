"""The sequence of a slide model: the class token, the patches in row order, copies that fill a square.

Shape legend (this file): B batch, N patches, L tokens, C channels, D feature width, K neighbour slots.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from nnunet_gdla.layers.ppeg import square_side
from nnunet_gdla.layers.untouched import is_untouched
from nnunet_gdla.ops.neighbours import NeighbourGraph, local_homogeneity

__all__ = [
    "ROWS_AT_ONCE",
    "SlideContext",
    "check_bag",
    "check_sizes",
    "cut_graph",
    "fill_square",
    "known_homogeneity",
    "parameter_dtype",
    "project_features",
    "with_class_token",
]

ROWS_AT_ONCE = 8192


class SlideContext(NamedTuple):
    """What the layers know of a slide beside its tokens.

    Rows 1 to `num_patches` of the sequence are real patches; `graph` and `homogeneity` speak of these. They are None
    where no layer asks for them.
    """

    num_patches: int
    graph: NeighbourGraph | None = None
    homogeneity: Float[Tensor, "B N"] | None = None


def with_class_token(token: Float[Tensor, "1 1 C"], patches: Float[Tensor, "B M C"]) -> Float[Tensor, "B L C"]:
    """Put the class token in front, in the wider dtype: autocast must not round what the blocks add to."""
    wider = torch.promote_types(token.dtype, patches.dtype)
    return torch.cat([token.to(wider).expand(patches.shape[0], -1, -1), patches.to(wider)], dim=1)


def fill_square(patches: Float[Tensor, "B N C"]) -> Float[Tensor, "B M C"]:
    """Append the first patches once more until a square is full, ceil(sqrt(N))^2 rows."""
    rows = patches.shape[1]
    missing = square_side(rows) ** 2 - rows
    return torch.cat([patches, patches[:, :missing]], dim=1) if missing else patches


def cut_graph(graph: NeighbourGraph, keep: Bool[Tensor, " N"]) -> NeighbourGraph:
    """Return the graph (N, K) of the patches to keep; slots that hold another patch become empty."""
    new_row = keep.cumsum(0) - 1
    index, mask, weight = (part[keep] for part in graph)
    seen = mask & keep[index.clamp(min=0)]
    return NeighbourGraph(
        torch.where(seen, new_row[index.clamp(min=0)], -1), seen, torch.where(seen, weight, torch.zeros_like(weight))
    )


def known_homogeneity(
    homogeneity: Tensor | None, features: Float[Tensor, "B N D"], graph: NeighbourGraph
) -> Float[Tensor, "B N"]:
    """Return the homogeneity that was handed over, on the device of the features, else that of the graph.

    Raises:
        ValueError: If it is not one number a patch.
    """
    if homogeneity is None:
        return local_homogeneity(features, graph)
    if homogeneity.shape != features.shape[:2]:
        raise ValueError(f"homogeneity {tuple(homogeneity.shape)} must be {tuple(features.shape[:2])}, one a patch")
    return homogeneity.to(features.device)


def check_sizes(**sizes: int) -> None:
    """Refuse sizes of a model that are less than 1, by their names.

    Raises:
        ValueError: With the name of the first such size.
    """
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


def check_bag(features: Tensor, coords: Tensor | None, mask: Tensor | None, in_dim: int) -> None:
    """Raise an error that shows the shapes unless features (B,N,D), coords (B,N,2) and mask (B,N) fit.

    Raises:
        TypeError: If features, coords or mask are no tensors.
        ValueError: If their shapes or dtypes do not fit.
    """
    for name, value in (("features", features), ("coords", coords), ("mask", mask)):
        if value is not None and not isinstance(value, Tensor):
            kind = type(value)
            raise TypeError(
                f"{name} are a {kind.__module__}.{kind.__qualname__}, not a torch tensor; convert them first"
            )
    if not features.is_floating_point():
        raise ValueError(f"features {tuple(features.shape)} {features.dtype} must be floating point numbers")
    if features.ndim != 3 or features.shape[-1] != in_dim:
        raise ValueError(
            f"features {tuple(features.shape)} must be (batch, patches, {in_dim}), the width of this model"
        )
    if features.shape[0] == 0 or features.shape[1] == 0:
        raise ValueError(f"features {tuple(features.shape)} must hold at least one patch")
    bag = tuple(features.shape[:2])
    if coords is not None and (coords.ndim != 3 or tuple(coords.shape[:2]) != bag or coords.shape[2] < 2):
        raise ValueError(f"coords {tuple(coords.shape)} must be {(*bag, 2)} as features are {tuple(features.shape)}")
    if mask is not None and (tuple(mask.shape) != bag or mask.dtype != torch.bool):
        raise ValueError(
            f"mask {tuple(mask.shape)} {mask.dtype} must be {bag} torch.bool, True for patches that take part "
            f"(features are {tuple(features.shape)})"
        )
    if mask is not None and not bool(mask.any(-1).all()):
        raise ValueError(f"mask {bag} leaves a slide without any patch")


class _ProjectHalf(torch.autograd.Function):
    """A linear layer on half-precision rows in the dtype of the weight; no copy of all rows is made or kept."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        out = weight.new_empty((*x.shape[:-1], weight.shape[0]))
        for target, part in zip(out.split(ROWS_AT_ONCE, 1), x.split(ROWS_AT_ONCE, 1), strict=True):
            target.copy_(F.linear(part.to(weight.dtype), weight, bias))
        return out

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> tuple[None, Tensor, Tensor]:
        x, weight = ctx.saved_tensors  # type: ignore[attr-defined] # not in torch's annotations
        (grad,) = grads
        grad_weight = torch.zeros_like(weight)
        for grad_part, part in zip(grad.split(ROWS_AT_ONCE, 1), x.split(ROWS_AT_ONCE, 1), strict=True):
            grad_weight.addmm_(grad_part.flatten(0, 1).T, part.flatten(0, 1).to(weight.dtype))
        return None, grad_weight, grad.sum((0, 1))


def parameter_dtype(layer: nn.Module) -> torch.dtype:
    """Dtype in which a layer computes: of its weight, or of the parameters of what is wrapped in it."""
    found = (getattr(layer, "weight", None), *layer.parameters())  # of quantised layers the weight is a method
    return next((part.dtype for part in found if isinstance(part, Tensor) and part.is_floating_point()), torch.float32)


def project_features(layer: nn.Module, features: Float[Tensor, "B N D"]) -> Float[Tensor, "B N C"]:
    """Apply the input projection to features of any floating dtype.

    Half-precision features are taken to the dtype of the weight in chunks of rows, in backward once more.
    """
    if not features.is_meta and torch.is_autocast_enabled(features.device.type):
        return layer(features)
    dtype = parameter_dtype(layer)
    wider = is_untouched(layer) and features.dtype.itemsize < dtype.itemsize
    if wider and not features.requires_grad and not torch.compiler.is_compiling():
        return _ProjectHalf.apply(features, layer.weight, layer.bias)
    return layer(features.to(dtype))
