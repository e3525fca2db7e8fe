"""Slides of a padded batch, one by one; a model that is looked at and not trained."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from nnunet_gdla.mil.models.tokens import check_bag

__all__ = ["each_slide", "eval_no_grad"]


def each_slide(
    model: Callable[[Tensor], Tensor],
    features: Float[Tensor, "B N D"],
    coords: Shaped[Tensor, "B N _"] | None,
    mask: Bool[Tensor, "B N"] | None,
    in_dim: int,
) -> Shaped[Tensor, " B *out"]:
    """Run a model on every slide of a batch by itself, with the masked rows cut out.

    So neither padding nor the other slides of a batch can change a result, not even by rounding.

    Args:
        model: From features (1, n, D) of one slide to its output (1, ...).
        features: Bags of one length.
        coords: Only its shape is looked at; a model that needs coordinates does not use this function.
        mask: True for patches that take part. None: all do.
        in_dim: Width that the features must have.

    Raises:
        ValueError: If shapes do not fit or a slide has no patch.
    """
    check_bag(features, coords, mask, in_dim)
    if features.shape[0] == 1 and mask is None:
        return model(features)
    slides = features.unbind() if mask is None else [bag[keep] for bag, keep in zip(features, mask, strict=True)]
    return torch.cat([model(slide[None]) for slide in slides])


@contextmanager
def eval_no_grad(model: nn.Module) -> Iterator[None]:
    """Without gradients and dropout; afterwards every module is in its own mode again, frozen parts in theirs."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
