"""The mixers on blank, constant, lonely, huge and tiny tokens, with large lambdas and with no weights: always finite.

Kinds of bug: 0 / 0 in the normaliser, the norm of a difference that is exactly zero, exp of a large dot product.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nnunet_gdla.layers import (
    DifferentialAttention,
    GatedDifferentialLinearAttention,
    LinearAttention,
    SoftmaxAttention,
)

DIM, HEADS, GRID = 32, 4, (5, 10)
TOKENS = GRID[0] * GRID[1]


class _OnGrid(nn.Module):
    """The mixer with the grid of the tokens that it is given."""

    def __init__(self, mixer: GatedDifferentialLinearAttention) -> None:
        super().__init__()
        self.mixer = mixer

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.mixer(x, GRID if x.shape[1] == TOKENS else (1, x.shape[1]))
        return y


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "gdla": lambda: _OnGrid(GatedDifferentialLinearAttention(DIM, HEADS)),
    "gdla sigmoid separate": lambda: _OnGrid(
        GatedDifferentialLinearAttention(DIM, HEADS, gate="sigmoid", local_mixing="separate")
    ),
    "gdla bare": lambda: _OnGrid(
        GatedDifferentialLinearAttention(DIM, HEADS, gate=None, differential=False, local_mixing=None)
    ),
    "diff": lambda: DifferentialAttention(DIM, HEADS, depth=1),
    "linear": lambda: LinearAttention(DIM, HEADS),
    "linear rotated": lambda: LinearAttention(DIM, HEADS, rope=True),
    "self": lambda: SoftmaxAttention(DIM, HEADS, rope=True),
}
INPUTS: dict[str, Callable[[], Tensor]] = {
    "random": lambda: torch.randn(2, TOKENS, DIM),
    "zeros": lambda: torch.zeros(2, TOKENS, DIM),
    "all tokens equal": lambda: torch.randn(2, 1, DIM).expand(2, TOKENS, DIM),
    "one token": lambda: torch.randn(2, 1, DIM),
    "one huge token": lambda: torch.cat([1e4 * torch.randn(2, 1, DIM), torch.randn(2, TOKENS - 1, DIM)], 1),
    "tiny": lambda: 1e-8 * torch.randn(2, TOKENS, DIM),
}
blocks = pytest.mark.parametrize("name", BLOCKS)
precisions = pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16], ids=str)


def _assert_finite(block: nn.Module, x: Tensor, autocast: torch.dtype | None, *, gradients: bool = True) -> None:
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
        y = block(x)
    assert _is_finite(y)
    if not gradients:
        return
    y.float().square().mean().backward()
    assert x.grad is not None
    assert _is_finite(x.grad)
    bad = [name for name, p in block.named_parameters() if p.grad is None or not _is_finite(p.grad)]
    assert not bad


def _is_finite(x: Tensor) -> bool:
    return bool(torch.isfinite(x).all())


@blocks
@precisions
@pytest.mark.parametrize("kind", INPUTS)
def test_any_tokens(name: str, kind: str, autocast: torch.dtype | None) -> None:
    # a gradient of more than 65504 has no place in float16: that is what a gradient scaler skips steps for
    gradients = not (kind == "one huge token" and autocast == torch.float16)
    _assert_finite(BLOCKS[name](), INPUTS[kind](), autocast, gradients=gradients)


@blocks
@precisions
def test_large_lambdas(name: str, autocast: torch.dtype | None) -> None:
    block = BLOCKS[name]()
    # Nothing is clamped. GDLA's lambda is a factor; softmax differential attention takes the exponential of the dot
    # product of two vectors: of 8 threes that is exp(72), of 8 sixes it would be exp(288), more than float32 holds.
    large = 3.0 if name == "diff" else 6.0
    with torch.no_grad():
        for parameter_name, parameter in block.named_parameters():
            if "lambda" in parameter_name:
                parameter.fill_(large)
    _assert_finite(block, torch.randn(2, TOKENS, DIM), autocast)


@blocks
@precisions
def test_all_weights_zero(name: str, autocast: torch.dtype | None) -> None:
    # both branches are equal then: their difference, which is normalised next, is exactly zero
    block = BLOCKS[name]()
    with torch.no_grad():
        for parameter in block.parameters():
            if parameter.ndim > 1:
                parameter.zero_()
    _assert_finite(block, torch.randn(2, TOKENS, DIM), autocast)
