"""Multiply-adds and parameters of a network, counted from the operators that it really runs, on shapes alone.

torch's own counter gives nothing for the kernel that `scaled_dot_product_attention` takes on a CPU, and other counters
leave out matrix products that are written `@`; here an operator with products that has no rule is an error.
"""

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["ProductCount", "count_parameters", "count_products"]


class ProductCount(NamedTuple):
    """Multiply-adds by the kind of operator; a product and its addition are one.

    Args:
        convolution: Convolutions of every kind: grouped, depthwise, transposed.
        linear: Matrix products with one matrix for the whole batch: linear layers.
        attention: Matrix products of two batched operands, and both products of softmax attention.
    """

    convolution: int
    linear: int
    attention: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self)


def count_parameters(network: nn.Module) -> int:
    """Count the numbers that a network holds as parameters, frozen ones too, shared ones once."""
    return sum(parameter.numel() for parameter in network.parameters())


def count_products(network: nn.Module, input_shape: Sequence[int]) -> ProductCount:
    """Count the multiply-adds of one forward pass, without computing it and whatever its size.

    Args:
        network: Takes one tensor; its parameters and buffers are left as they are, on any device, meta too.
        input_shape: Shape of that tensor, batch axis included.

    Returns:
        The counts for the whole batch. Elementwise work (normalisation, activations, additions, interpolation) is not
        counted, nor are biases.

    Raises:
        ValueError: If an operator that multiplies has no rule here; the message names it.

    Numerics: padding counts as if it were image: each weight of a convolution meets each output position (of a
    transposed one: each input position) once.
    """
    counter = _Counter()
    with FakeTensorMode(), torch.no_grad():
        # Not on the meta device, which autocast does not know and where softmax attention runs as something else.
        image = torch.empty(tuple(input_shape), device="cpu")
        weightless = _copy_without_data(network)
        with counter:
            weightless(image)
    return ProductCount(**counter.counts)


def _copy_without_data(network: nn.Module) -> nn.Module:
    """Copy a network inside FakeTensorMode: its modules, and tensors that have a shape and nothing in it."""
    # torch.func.functional_call needs no copy, but leaves its tensors in modules that are reached by two names.
    memo: dict[int, Any] = {}
    for tensor in chain(network.parameters(), network.buffers()):
        empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        memo[id(tensor)] = nn.Parameter(empty, requires_grad=False) if isinstance(tensor, nn.Parameter) else empty
    return copy.deepcopy(network, memo)


def _convolution(args: Sequence[Any], out: Tensor) -> int:
    x, weight, transposed = args[0], args[1], args[6]
    positions = x.shape[2:] if transposed else out.shape[2:]
    return x.shape[0] * prod(positions) * weight.numel()  # the weight of a grouped one has its fewer channels already


def _product(first: int) -> Callable[[Sequence[Any], Tensor], int]:
    """Rule for (..., M, K) times (..., K, N), the matrices being the arguments `first` and `first` + 1."""
    return lambda args, out: args[first].numel() * args[first + 1].shape[-1]


def _vector_product(first: int) -> Callable[[Sequence[Any], Tensor], int]:
    """Rule for a matrix or vector times a vector."""
    return lambda args, out: args[first].numel()


def _softmax_attention(args: Sequence[Any], out: object) -> int:
    query, key, value = args[:3]
    return query.shape[:-1].numel() * key.shape[-2] * (query.shape[-1] + value.shape[-1])


_Rule = Callable[[Sequence[Any], Any], int]
_RULES: Mapping[str, tuple[str, _Rule]] = {
    "convolution": ("convolution", _convolution),
    "mm": ("linear", _product(0)),
    "addmm": ("linear", _product(1)),
    "mv": ("linear", _vector_product(0)),
    "addmv": ("linear", _vector_product(1)),
    "dot": ("linear", _vector_product(0)),
    "bmm": ("attention", _product(0)),
    "baddbmm": ("attention", _product(1)),
    "_scaled_dot_product_flash_attention_for_cpu": ("attention", _softmax_attention),
    "_scaled_dot_product_flash_attention": ("attention", _softmax_attention),
    "_scaled_dot_product_efficient_attention": ("attention", _softmax_attention),
    "_scaled_dot_product_cudnn_attention": ("attention", _softmax_attention),
}
# Names that promise products, so that an operator nobody thought of is not taken as free.
_MULTIPLIES = re.compile(r"mm$|conv|attention|linear$|dot$|matmul|einsum|lstm|gru|rnn|cdist|fft|linalg|addbmm|addr$")
_MULTIPLIES_NOT = ("linalg_vector_norm",)


class _Counter(TorchDispatchMode):
    """Adds up the products of the operators that run inside it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts = dict.fromkeys(ProductCount._fields, 0)

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - torch's operators have no public type
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2].removesuffix("_")
        if name in _RULES:
            kind, rule = _RULES[name]
            self.counts[kind] += rule(args, out)
        elif _MULTIPLIES.search(name) and name not in _MULTIPLIES_NOT:
            raise ValueError(f"operator {name} multiplies, and there is no rule to count it")
        return out
