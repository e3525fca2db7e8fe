"""The MLP in chunks equals its layers one by one, gradients included."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from nnunet_gdla.ops import token_mlp as module
from nnunet_gdla.ops.token_mlp import MlpWeights, NormWeights, token_mlp
from tests.reference.compare import assert_all_close, gradients


@pytest.fixture(autouse=True)
def few_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several chunks."""
    monkeypatch.setattr(module, "NUMBERS_AT_ONCE", 21)


def _inputs(batch: tuple[int, ...], *, biased: bool, norm: bool) -> list[Tensor]:
    generator = torch.Generator().manual_seed(len(batch))
    shapes = [(*batch, 3), (7, 3), (2, 7), *([(7,), (2,)] if biased else []), *([(3,), (3,)] if norm else [])]
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def _taken_apart(tensors: tuple[Tensor, ...], *, biased: bool, norm: bool) -> tuple[MlpWeights, NormWeights | None]:
    first, second, *rest = tensors
    biases = (rest.pop(0), rest.pop(0)) if biased else (None, None)
    return MlpWeights(first, biases[0], second, biases[1]), NormWeights(rest[0], rest[1], 1e-5) if norm else None


@pytest.mark.parametrize("batch", [(1,), (11,), (2, 5), (3, 0)], ids=str)
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("keep_hidden", [True, False])
def test_equals_the_layers(batch: tuple[int, ...], biased: bool, norm: bool, keep_hidden: bool) -> None:
    def ours(x: Tensor, *some: Tensor) -> Tensor:
        weights, before = _taken_apart(some, biased=biased, norm=norm)
        return token_mlp(x, weights, before, keep_hidden=keep_hidden)

    def naive(x: Tensor, *some: Tensor) -> Tensor:
        weights, before = _taken_apart(some, biased=biased, norm=norm)
        if before is not None:
            x = F.layer_norm(x, (3,), before.weight, before.bias, before.eps)
        hidden = F.linear(x, weights.first, weights.first_bias)
        hidden = 0.5 * hidden * (1 + torch.erf(hidden / 2**0.5))
        return F.linear(hidden, weights.second, weights.second_bias)

    inputs = _inputs(batch, biased=biased, norm=norm)
    if 0 in batch:
        assert ours(*inputs).shape == (*batch, 2)
        return
    assert_all_close(gradients(ours, inputs), gradients(naive, inputs), 1e-10)


def test_without_gradients_no_hidden_value_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters want gradients under `no_grad` too."""
    x, *some = (tensor.requires_grad_() for tensor in _inputs((40,), biased=True, norm=True))
    rows: list[int] = []

    def watched(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
        rows.append(len(out) if out._base is None else len(out._base))
        return linear(x, weight, bias, out)

    linear = module._linear
    monkeypatch.setattr(module, "_linear", watched)
    with torch.no_grad():
        token_mlp(x, *_taken_apart(tuple(some), biased=True, norm=True))
    assert rows[0] == 3
    token_mlp(x, *_taken_apart(tuple(some), biased=True, norm=True))
    assert rows[-2] == 40


def test_gradcheck() -> None:
    inputs = [tensor.requires_grad_() for tensor in _inputs((2, 4), biased=True, norm=True)]

    def ours(x: Tensor, *some: Tensor) -> Tensor:
        return token_mlp(x, *_taken_apart(some, biased=True, norm=True))

    assert torch.autograd.gradcheck(ours, inputs)


@pytest.mark.parametrize("keep_hidden", [True, False])
def test_backward_keeps_the_values_before_gelu_or_nothing(keep_hidden: bool) -> None:
    inputs = [tensor.requires_grad_() for tensor in _inputs((11,), biased=True, norm=True)]
    weights, norm = _taken_apart(tuple(inputs[1:]), biased=True, norm=True)
    sizes: list[tuple[int, ...]] = []

    def pack(tensor: Tensor) -> Tensor:
        if all(tensor.data_ptr() != given.data_ptr() for given in inputs):
            sizes.append(tuple(tensor.shape))
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        token_mlp(inputs[0], weights, norm, keep_hidden=keep_hidden)
    assert sizes == ([(11, 7)] if keep_hidden else [])
