"""Small slide transformers of every allowed combination, and bags to feed them."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nnunet_gdla.mil.models.slide_transformer import SlideTransformer

__all__ = ["COMBINATIONS", "IN_DIM", "OUTPUTS", "STRIDE", "Bag", "bag", "shared_gradients", "slide_model", "stir_gates"]

IN_DIM, OUTPUTS, STRIDE = 10, 3, 256.0

CORRECTIONS = ("srp", "fixed:1.5", "fixed:learned")
COMBINATIONS: list[dict[str, Any]] = [
    *({"attention": a, "correction": "none"} for a in ("nystrom", "softmax", "linear", "gdla", "diff")),
    *({"attention": a, "correction": "xsa"} for a in ("nystrom", "softmax", "linear")),
    *({"attention": a, "correction": c} for a in ("nystrom", "softmax", "linear", "gdla") for c in CORRECTIONS),
    *(
        {"attention": a, "correction": c, "placement": p}
        for a in ("nystrom", "softmax")
        for c in CORRECTIONS
        for p in ("pre_q", "pre_k", "pre_v")
    ),
    {"attention": "gdla", "correction": "none", "local_mixing": "lattice"},
    {"attention": "gdla", "correction": "srp", "local_mixing": "lattice"},
    {"attention": "nystrom", "correction": "srp", "position": None},
    {"attention": "gdla", "correction": "srp", "position": None},
    {"attention": "linear", "correction": "srp", "position": None, "window": 5, "weighting": "gaussian"},
]


class Bag(NamedTuple):
    """One or more slides of the same length."""

    features: Tensor
    coords: Tensor


def bag(patches: int, *, batch: int = 1, seed: int = 0, dtype: torch.dtype = torch.float32) -> Bag:
    """Return random features on a lattice with holes and an origin that is no multiple of the stride."""
    generator = torch.Generator().manual_seed(1000 * patches + seed)
    side = max(1, round((1.5 * patches) ** 0.5)) + 1
    cells = torch.stack([torch.randperm(side * side, generator=generator)[:patches] for _ in range(batch)])
    coords = torch.stack([cells % side, cells // side], dim=-1) * int(STRIDE) + 37
    return Bag(torch.randn(batch, patches, IN_DIM, generator=generator).to(dtype), coords)


def slide_model(*, seed: int = 0, stirred: bool = True, **options: Any) -> SlideTransformer:  # noqa: ANN401
    """Build a small model in eval mode; stirred, its gates no longer stand at zero and its weights are larger."""
    torch.manual_seed(seed)
    small = {"width": 16, "depth": 3, "num_heads": 2, "num_landmarks": 4, "gate_hidden": 5, "mlp_ratio": 2.0}
    model = SlideTransformer(IN_DIM, OUTPUTS, **(small | options))
    if stirred:
        stir_gates(model)
    return model.eval()


@torch.no_grad()
def stir_gates(model: nn.Module) -> None:
    """Move every parameter away from its start."""
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))


def shared_gradients(model: nn.Module) -> list[tuple[str, str]]:
    """Return the pairs of parameters whose gradients lie in one memory: what is added in place would count twice."""
    seen: dict[int, str] = {}
    pairs = []
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            place = parameter.grad.untyped_storage().data_ptr()
            if place in seen:
                pairs.append((seen[place], name))
            seen[place] = name
    return pairs
