"""Linear attention in half precision against a double-precision oracle: sums over keys neither overflow nor vanish.

Kinds of bug: k^T v and the normaliser summed in fp16 (range 65504) or bf16 (8 bits), a normaliser that underflows.
"""

import pytest
import torch
from torch import Tensor

from nnunet_gdla.ops import differential_linear_attention, linear_attention
from tests.reference.linear import elu_plus_one_naive, linear_attention_by_chunks

CASES = [(n, scale) for n in (1, 49, 1024, 16384, 65536) for scale in (1e-3, 1.0, 8.0, 60.0)]
CASES = [(n, scale) for n, scale in CASES if n <= 20000 or scale in (1.0, 8.0)]
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 2e-2}


def _safe(q: Tensor, k: Tensor) -> Tensor:
    """Where the normaliser is well away from zero, in other words where the result is a number and no accident."""
    return (elu_plus_one_naive(q) * elu_plus_one_naive(k).sum(-2, keepdim=True)).sum(-1, keepdim=True) > 1e-2


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("tokens", "scale"), CASES)
def test_linear_attention_is_finite_and_right(tokens: int, scale: float, dtype: torch.dtype) -> None:
    q, k, v = (scale * torch.randn(1, 2, tokens, 16) for _ in range(3))
    expected = linear_attention_by_chunks(q.double(), k.double(), v.double())
    safe = _safe(q.double(), k.double())
    leaves = [tensor.to(dtype).requires_grad_() for tensor in (q, k, v)]
    y = linear_attention(*leaves)
    y.float().square().mean().backward()
    assert torch.isfinite(y).all()
    assert all(leaf.grad is not None and torch.isfinite(leaf.grad).all() for leaf in leaves)
    error = ((y.detach().double() - expected).abs() * safe).max() / ((expected.abs() * safe).max() + 1e-12)
    assert error <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("tokens", "scale"), [case for case in CASES if case[0] in (49, 16384)])
def test_differential_linear_attention_is_finite_and_right(tokens: int, scale: float, dtype: torch.dtype) -> None:
    q, k, v = (scale * torch.randn(1, 2, tokens, 16) for _ in range(3))
    lam = 0.5 * torch.randn(2, 16)
    branches = [(q[..., half].double(), k[..., half].double()) for half in (slice(0, 8), slice(8, 16))]
    first, second = (linear_attention_by_chunks(q_i, k_i, v.double()) for q_i, k_i in branches)
    expected = first - lam.double()[:, None] * second
    safe = _safe(*branches[0]) & _safe(*branches[1])
    leaves = [tensor.to(dtype).requires_grad_() for tensor in (q, k, v, lam)]
    y = differential_linear_attention(*leaves)
    y.float().square().mean().backward()
    assert torch.isfinite(y).all()
    assert all(leaf.grad is not None and torch.isfinite(leaf.grad).all() for leaf in leaves)
    error = ((y.detach().double() - expected).abs() * safe).max() / ((expected.abs() * safe).max() + 1e-12)
    assert error <= TOLERANCE[dtype]
