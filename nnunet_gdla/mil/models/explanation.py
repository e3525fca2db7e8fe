"""What a slide model looks at: attention of the class token, and beta of every block.

Shape legend (this file): N patches, H heads.
"""

import dataclasses
from collections.abc import Callable
from types import TracebackType

from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from nnunet_gdla.layers.redundancy import FixedSRP, GatedSRP

__all__ = ["BetaRecorder", "SlideExplanation"]


@dataclasses.dataclass(frozen=True)
class SlideExplanation:
    """What the model looks at on one slide, one value per head and patch, patches in row order.

    `attention` is the class token's in the last block (differential heads for "diff"), `beta` holds what each block in
    which a correction acts does to a patch: 0 keeps, 1 removes, 2 reflects, below 0 amplifies.
    """

    attention: Float[Tensor, "H N"]
    beta: dict[int, Float[Tensor, "..."]]


class BetaRecorder:
    """Keeps what the gates of a list of blocks return while the context is open."""

    def __init__(self, blocks: nn.ModuleList) -> None:
        self._corrections = {
            number: part
            for number, block in enumerate(blocks)
            for part in block.modules()
            if isinstance(part, GatedSRP | FixedSRP)
        }
        self._seen: dict[int, Tensor] = {}
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> "BetaRecorder":
        for number, correction in self._corrections.items():
            if isinstance(correction, GatedSRP):
                self._handles.append(correction.gate.register_forward_hook(self._keep(number)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()

    def betas(self, num_patches: int) -> dict[int, Float[Tensor, "H N"]]:
        """Return beta (H, N) by block; a fixed one is the same for all patches."""
        found = {}
        for number, correction in self._corrections.items():
            if isinstance(correction, FixedSRP):
                found[number] = correction.beta.detach()[:, None].expand(-1, num_patches).clone()
            else:
                found[number] = self._seen[number]
        return found

    def _keep(self, number: int) -> Callable[[nn.Module, object, Tensor], None]:
        def hook(module: nn.Module, inputs: object, beta: Tensor) -> None:
            self._seen[number] = beta.detach()[0].clone()

        return hook
