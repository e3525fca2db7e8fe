"""How much memory a training step takes, as arithmetic on sizes: no network is built.

Activations are what autograd keeps between the forward and the backward pass, added up layer by layer: of the fused
forms in float32 on a CPU, of the plain ones otherwise. In float32 both sums agree with torch's own count within 2 %
(tests/plans/test_memory.py); the float16 of a GPU's autocast is derived from torch's casting rules and was not measured
on a GPU, nor were the margins there; kernels that keep less come on top of it. On a CPU the total lay 0.7 to 0.9 GiB
above the peak of bare training steps (B0, B2 and B4, patches of 128 to 512): room for nnU-Net's process and its data
loaders.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from nnunet_gdla.errors import UserError
from nnunet_gdla.networks.stem import MOST_CHANNELS
from nnunet_gdla.plans.nnunet_gdla_sizes import (
    MLP_RATIO_DECODER,
    NetworkSize,
    Stage,
    count_parameters,
    encoder_stages,
)

__all__ = [
    "GIB",
    "Device",
    "Precision",
    "TrainingMemory",
    "check_target",
    "largest_batch",
    "saved_bytes",
    "training_memory",
]

GIB = 2**30
Precision = Literal["float32", "autocast"]
Device = Literal["cuda", "cpu", "mps"]
# With next to nothing stock planning, which is asked for all but patch and batch, would never end.
_LEAST_GB = 0.001
# Logits, probabilities, their gradients and one-hot targets: 16 bytes for each output value cover our loss, and Dice
# with cross-entropy.
_LOSS_BYTES = 16
# Freed and fitted again, blocks leave gaps between them; convolutions ask for scratch space.
_FRAGMENTATION = 0.1
# What a process holds before the first tensor: CUDA's context and kernels; Python with torch and nnU-Net, and the data.
_OVERHEAD_BYTES: dict[str, int] = {"cuda": 3 * GIB // 4, "cpu": 3 * GIB // 2, "mps": 3 * GIB // 2}


@dataclass(frozen=True)
class _Saved:
    """Numbers of saved elements of one image, by what they are kept in.

    Args:
        low: float16 under autocast.
        high: float32 always: our attention sums, layer normalisation and the residual stream that feeds it.
        cast: float16 copies that only autocast makes.
        table: float32 elements shared by the whole batch.
    """

    low: int = 0
    high: int = 0
    cast: int = 0
    table: int = 0

    def __add__(self, other: "_Saved") -> "_Saved":
        return _Saved(
            self.low + other.low,
            self.high + other.high,
            self.cast + other.cast,
            self.table + other.table,
        )

    def __mul__(self, times: int) -> "_Saved":
        return _Saved(*(times * part for part in (self.low, self.high, self.cast, self.table)))

    def in_bytes(self, batch: int, precision: Precision) -> int:
        if precision == "autocast":
            return batch * (2 * (self.low + self.cast) + 4 * self.high) + 4 * self.table
        return 4 * (batch * (self.low + self.high) + self.table)


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes of one training step.

    Args:
        activations: Kept for the backward pass.
        outputs: Logits, loss and their gradients.
        parameters: Weights, gradients, AdamW's two moments, and under autocast float16 copies of the weights.
        workspace: Temporary tensors of the backward pass, and fragmentation.
        overhead: The process itself.
    """

    activations: int
    outputs: int
    parameters: int
    workspace: int
    overhead: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.activations + self.outputs + self.parameters + self.workspace + self.overhead


def check_target(memory_gb: float | int) -> None:
    """Refuse what is no amount of memory.

    Raises:
        UserError: If it is no number of at least 0.001 GB.
    """
    if not _LEAST_GB <= memory_gb < math.inf:
        raise UserError(f"{memory_gb:g} GB of memory train nothing: give at least {_LEAST_GB}.")


def saved_bytes(
    size: NetworkSize, patch_size: Sequence[int], batch_size: int, precision: Precision, *, fused: bool = False
) -> int:
    """Bytes that the network keeps for the backward pass, deep supervision on, parameters left out.

    Args:
        size: The network.
        patch_size: Height and width, at least 1.
        batch_size: Images per step.
        precision: "float32", or "autocast" to float16.
        fused: Layers run their fused forms, which keep less, as they do in float32 on a CPU.
    """
    return _saved(size, patch_size, fused=fused).in_bytes(batch_size, precision)


def training_memory(size: NetworkSize, patch_size: Sequence[int], batch_size: int, device: Device) -> TrainingMemory:
    """Memory of a training step: on CUDA with float16 autocast, else in float32, on a CPU with the fused forms.

    Args:
        size: The network.
        patch_size: Height and width, at least 1.
        batch_size: Images per step.
        device: "cuda", "cpu" or "mps".
    """
    precision: Precision = "autocast" if device == "cuda" else "float32"
    activations = saved_bytes(size, patch_size, batch_size, precision, fused=device == "cpu")
    parameters = count_parameters(size)
    outputs = sum(_output_pixels(patch_size)) * size.num_classes * batch_size * _LOSS_BYTES
    # The gradients at full resolution, of the stem's sum and of its two branches. In fused forms, which have none, what
    # the finest feed-forward layer computes again is about as large.
    finest = encoder_stages(size.encoder)[0].dim
    gradients = 3 * finest * math.prod(patch_size) * batch_size * (2 if device == "cuda" else 4)
    return TrainingMemory(
        activations=activations,
        outputs=outputs,
        parameters=parameters * (18 if device == "cuda" else 16),
        workspace=round(gradients + _FRAGMENTATION * (activations + outputs)),
        overhead=_OVERHEAD_BYTES[device],
    )


def largest_batch(size: NetworkSize, patch_size: Sequence[int], budget_bytes: int, device: Device) -> int:
    """Images per step that fit a budget; 0 if not even one does.

    Args:
        size: The network.
        patch_size: Height and width in pixels, at least 1.
        budget_bytes: Memory for the whole step, the process itself included.
        device: "cuda", "cpu" or "mps".
    """
    one = training_memory(size, patch_size, 1, device).total
    each = training_memory(size, patch_size, 2, device).total - one
    return max(0, (budget_bytes - one) // each + 1)


def _output_pixels(patch_size: Sequence[int]) -> list[int]:
    return [math.prod(max(1, round(edge / stride)) for edge in patch_size) for stride in (1, 8, 16, 32)]


def _saved(size: NetworkSize, patch_size: Sequence[int], *, fused: bool) -> _Saved:
    pixels = math.prod(patch_size)
    padded = math.prod(math.ceil(edge / 32) * 32 for edge in patch_size)
    stages = encoder_stages(size.encoder)
    tokens = [padded // stage.stride**2 for stage in stages]
    inputs = [size.input_channels * padded, *(s.dim * n for s, n in zip(stages, tokens, strict=True))]
    total = _stem(size.input_channels, stages[0].dim, pixels, fused=fused)
    for source, stage, count in zip(inputs, stages, tokens, strict=False):
        total += _encoder_stage(source, stage, count, fused=fused)
    for level in (2, 1, 0):
        stage, count = stages[level], tokens[level]
        # The coarser map goes into the upsampling and, by itself, into its head.
        total += _Saved(low=inputs[level + 2], cast=inputs[level + 2])
        total += _decoder_block(size.decoder, stage.dim, count, fused=fused)
    return total + _Saved(low=inputs[1])  # the finest map, into the head


def _stem(input_channels: int, dim: int, pixels: int, *, fused: bool) -> _Saved:
    image, features = input_channels * pixels, dim * pixels
    if fused and input_channels <= MOST_CHANNELS:
        return _Saved(high=21 * image)  # the unfolded image twice, nine and ten values a pixel, and what lies between
    return _Saved(low=3 * image + 3 * features, cast=image)


def _norm(dim: int, tokens: int) -> _Saved:
    """A layer normalisation: its input, a mean and a deviation per token."""
    return _Saved(high=(dim + 2) * tokens)


def _encoder_stage(source: int, stage: Stage, tokens: int, *, fused: bool) -> _Saved:
    map_size, keys = stage.dim * tokens, tokens // stage.reduction**2
    attention = _norm(stage.dim, tokens) + _Saved(low=3 * map_size, high=stage.heads * tokens, cast=map_size)
    attention += _Saved(low=2 * stage.dim * keys)  # keys and values
    if stage.reduction > 1:
        attention += _norm(stage.dim, keys) + _Saved(low=stage.dim * keys)
    if fused:
        mlp = _norm(stage.dim, tokens) + _Saved(low=map_size + stage.hidden * tokens)
    else:
        mlp = _norm(stage.dim, tokens) + _Saved(low=map_size + 3 * stage.hidden * tokens)
    return _Saved(low=source) + _norm(stage.dim, tokens) * 2 + (attention + mlp) * stage.depth


def _decoder_block(decoder: str, dim: int, tokens: int, *, fused: bool) -> _Saved:
    heads, hidden = dim // 32, MLP_RATIO_DECODER * dim * tokens
    if decoder == "gdla":
        attention = _gdla(dim, heads, tokens, fused=fused)
    else:
        attention = {"linear": _linear, "self": _softmax, "diff": _differential}[decoder](dim, heads, tokens)
    # MixFFN keeps both halves before SiLU, before and behind its convolution, fused only before; the others less.
    widths = {"gdla": 2 if fused else 8, "diff": 4}.get(decoder, 2)
    return _norm(dim, tokens) * 2 + attention + _Saved(low=widths * hidden + dim * tokens)


def _gdla(dim: int, heads: int, tokens: int, *, fused: bool) -> _Saved:
    map_size, state = dim * tokens, dim * (dim // heads)
    before = _Saved(low=3 * map_size)  # pre_conv, its SiLU, the first projection
    local = _Saved(low=4 * map_size + 2 * map_size)  # the projection behind the depthwise convolution, both results
    if fused:
        # the projection, and of it queries and keys behind their feature map and the values, heads apart
        return before + _Saved(high=(4 + 3) * map_size + 2 * heads * tokens + state) * 2 + local
    # A head among several is not contiguous: its keys and values are copied for the product.
    copies = _Saved(high=2 * map_size) if heads > 1 else _Saved(high=0)
    branch = copies + _Saved(low=4 * map_size + 2 * map_size, high=5 * map_size + 3 * heads * tokens + 3 * state // 2)
    return before + branch * 2 + local


def _linear(dim: int, heads: int, tokens: int) -> _Saved:
    map_size = dim * tokens
    copies = _Saved(high=4 * map_size) if heads > 1 else _Saved(low=3 * map_size)
    sums = _Saved(high=3 * map_size + heads * tokens + dim * (dim // heads))
    return copies + sums + _Saved(low=2 * map_size)


def _softmax(dim: int, heads: int, tokens: int) -> _Saved:
    map_size = dim * tokens
    out = (2 if heads > 1 else 1) * map_size
    return _Saved(low=map_size + 5 * map_size + out, high=heads * tokens, table=2 * tokens * (dim // heads))


def _differential(dim: int, heads: int, tokens: int) -> _Saved:
    map_size = dim * tokens
    # Queries and keys are padded to the width of the values (on a CPU), which stand there once a branch.
    positions = _Saved(table=2 * tokens * (dim // heads))
    return positions + _Saved(low=2 * map_size, high=10 * map_size + 3 * heads * tokens)
