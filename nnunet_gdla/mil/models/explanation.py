"""What a slide model looks at: attention of the class token, and beta of every block.

Shape legend (this file): N patches, H heads.
"""

import dataclasses

from jaxtyping import Float
from torch import Tensor, nn

from nnunet_gdla.layers.redundancy import FixedSRP

__all__ = ["SlideExplanation", "fixed_betas"]


@dataclasses.dataclass(frozen=True)
class SlideExplanation:
    """What the model looks at on one slide, one value per head and patch, patches in row order.

    `attention` is the class token's in the last block (differential heads for "diff"), `beta` holds what each block in
    which a correction acts does to a patch: 0 keeps, 1 removes, 2 reflects, below 0 amplifies.
    """

    attention: Float[Tensor, "H N"]
    beta: dict[int, Float[Tensor, "..."]]


def fixed_betas(blocks: nn.ModuleList, num_patches: int) -> dict[int, Float[Tensor, "H N"]]:
    """Return beta (H, N) of each block whose coefficients are the same for all patches."""
    return {
        number: part.beta.detach()[:, None].expand(-1, num_patches).clone()
        for number, block in enumerate(blocks)
        for part in block.modules()
        if isinstance(part, FixedSRP)
    }
