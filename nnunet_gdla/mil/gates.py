"""What the gates of a model did: recorded by forward hooks, one line of numbers per slide and active block.

Shape legend (this file): B slides, H heads, N patches, D head width.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Any, Final, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nnunet_gdla.layers.redundancy_gate import RedundancyGate

__all__ = [
    "GATE_COLUMNS",
    "REGIMES",
    "GateRecord",
    "GateRecorder",
    "block_of",
    "gate_statistics",
    "observed_gates",
    "summarise_gates",
]

REGIMES: Final = ("anti", "identity", "projection", "reflection")
_STATISTICS: Final = ("mean", "std", "min", "max", *REGIMES, "cosine", "corr_h")
GATE_COLUMNS: Final = ("epoch", "block", *_STATISTICS)
_FLAT: Final = 1e-8  # below this standard deviation a correlation says nothing


class GateRecord(NamedTuple):
    """The statistics of one slide in one block, in the order of `GATE_COLUMNS` without `epoch` and `block`."""

    block: int
    values: tuple[float, ...]


def gate_statistics(
    beta: Float[Tensor, "B H N"],
    cosine: Float[Tensor, "B H N"],
    homogeneity: Float[Tensor, "B N"],
) -> dict[str, Float[Tensor, " B"]]:
    r"""Describe the coefficients of each slide in one block.

    Shares of heads and patches: anti $\beta \le -0.5$, identity $-0.5 < \beta < 0.5$, projection
    $0.5 \le \beta \le 1.5$, reflection $\beta > 1.5$.

    Args:
        beta: Signed coefficients.
        cosine: Cosine of the corrected vectors with the local direction.
        homogeneity: Mean cosine of a patch's features with its neighbours'.

    Returns:
        One value per slide: `mean`, `std` (n-1), `min`, `max`, the four shares, `cosine` (mean) and `corr_h` (Pearson
        correlation of the head-mean coefficient with the homogeneity, 0 where either hardly varies).
    """
    values = beta.detach().float().flatten(1)
    numbers = {
        "mean": values.mean(1),
        "std": values.std(1) if values.shape[1] > 1 else torch.zeros_like(values[:, 0]),
        "min": values.amin(1),
        "max": values.amax(1),
    }
    masks = (values <= -0.5, (values > -0.5) & (values < 0.5), (values >= 0.5) & (values <= 1.5), values > 1.5)
    numbers |= {name: mask.float().mean(1) for name, mask in zip(REGIMES, masks, strict=True)}
    numbers["cosine"] = cosine.detach().float().flatten(1).mean(1)
    numbers["corr_h"] = _pearson(beta.detach().float().mean(1), homogeneity.detach().float())
    return numbers


def summarise_gates(records: Iterable[GateRecord], epoch: int) -> list[dict[str, int | float]]:
    """Average the records of a pass: every slide counts once, `min` and `max` are those over all slides.

    Args:
        records: Records of any number of slides and processes.
        epoch: Number written into every row.

    Returns:
        One row per block with the keys `GATE_COLUMNS`.
    """
    blocks: dict[int, list[tuple[float, ...]]] = {}
    for record in records:
        blocks.setdefault(record.block, []).append(record.values)
    rows = []
    for block, slides in sorted(blocks.items()):
        columns = dict(zip(_STATISTICS, zip(*slides, strict=True), strict=True))
        row = {"epoch": epoch, "block": block} | {name: sum(each) / len(each) for name, each in columns.items()}
        rows.append(row | {"min": min(columns["min"]), "max": max(columns["max"])})
    return rows


class GateRecorder:
    """Record every `RedundancyGate` of a model while the context is open.

    ```python
    with GateRecorder(model) as recorder:
        for slide in validation:
            model(slide.features[None], slide.coords[None], slide.stride)
    rows = recorder.rows(epoch)
    ```

    Nothing is kept of the tensors but a dozen numbers per slide and block. A model without gates gives no rows.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._open: AbstractContextManager[None] = nullcontext()
        self._seen: list[tuple[int, Tensor]] = []

    def __enter__(self) -> "GateRecorder":
        self._open = observed_gates(self._model, self._see)
        self._open.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.__exit__(kind, error, trace)

    @property
    def records(self) -> list[GateRecord]:
        """What was seen so far: plain numbers, so that several processes can send them to one."""
        return [GateRecord(block, tuple(slide)) for block, seen in self._seen for slide in seen.tolist()]

    def rows(self, epoch: int, records: Sequence[GateRecord] | None = None) -> list[dict[str, int | float]]:
        """Return one row of `gates.csv` per active block; `records` (default: our own) may come from many processes."""
        return summarise_gates(self.records if records is None else records, epoch)

    def clear(self) -> None:
        """Forget what was recorded."""
        self._seen.clear()

    @torch.no_grad()
    def _see(self, block: int, given: Mapping[str, Any], beta: Tensor) -> None:
        y, r_hat = given["y"].detach().float(), given["r_hat"].detach().float()
        cosine = (y * r_hat).sum(-1) / (y.norm(dim=-1) + 1e-12)
        numbers = gate_statistics(beta, cosine, given["homogeneity"])
        self._seen.append((block, torch.stack([numbers[name] for name in _STATISTICS], dim=-1)))


@contextmanager
def observed_gates(model: nn.Module, see: Callable[[int, Mapping[str, Any], Tensor], None]) -> Iterator[None]:
    """Show every answer of every `RedundancyGate` of a model while the context is open.

    Args:
        model: With any number of gates.
        see: Gets the block, the gate's arguments by name, and beta (B, H, N).
    """
    handles = []
    gates = [(name, gate) for name, gate in model.named_modules() if isinstance(gate, RedundancyGate)]
    try:
        for place, (name, gate) in enumerate(gates):
            handles.append(gate.register_forward_hook(_hook(block_of(name, place), see), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hook(block: int, see: Callable[[int, Mapping[str, Any], Tensor], None]) -> Callable[..., None]:
    def hook(gate: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], beta: Tensor) -> None:
        names = ("homogeneity", "count", "y", "r_hat")
        see(block, dict(zip(names, args, strict=False)) | kwargs, beta)

    return hook


def block_of(name: str, place: int) -> int:
    """Return the block of a gate: from its name (`blocks.2.attention.gate`), else its place among the gates."""
    number = re.search(r"(?:^|\.)blocks\.(\d+)\.", name)
    return int(number[1]) if number else place


def _pearson(a: Float[Tensor, "B N"], b: Float[Tensor, "B N"]) -> Float[Tensor, " B"]:
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    spread_a, spread_b = a.square().mean(1).sqrt(), b.square().mean(1).sqrt()
    flat = (spread_a <= _FLAT) | (spread_b <= _FLAT)
    return ((a * b).mean(1) / (spread_a * spread_b).clamp_min(_FLAT**2)).masked_fill(flat, 0.0)
