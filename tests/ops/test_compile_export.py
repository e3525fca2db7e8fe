"""Compiled and exported operators equal the eager ones, also for sizes that the exported program has not seen."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nnunet_gdla.ops import elu_plus_one
from tests.ops.operators import OPERATORS, Operator, Sizes, key_mask
from tests.reference.compare import assert_all_close, gradients

operators = pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
masked = pytest.mark.parametrize("kind", ["none", "random"])
SIZES = Sizes(2, 3, 6, 9, 4, 5)


class _Module(nn.Module):
    """`torch.export` takes modules only."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, tensors: list[Tensor], mask: Tensor | None) -> Tensor:
        return self.function(*tensors, key_mask=mask)


@pytest.mark.compile
@operators
@masked
def test_compiled_equals_eager(operator: Operator, kind: str) -> None:
    inputs = operator.inputs(SIZES, dtype=torch.float32)
    fast, _ = operator.arguments(key_mask=key_mask(kind, SIZES))
    compiled = torch.compile(fast, fullgraph=True, backend="aot_eager")
    assert_all_close(gradients(compiled, inputs), gradients(fast, inputs), 1e-6)


@pytest.mark.compile
def test_compiled_feature_map_equals_eager() -> None:
    compiled = torch.compile(elu_plus_one, fullgraph=True, backend="aot_eager")
    x = 3 * torch.randn(4, 7)
    assert_all_close(gradients(compiled, [x]), gradients(elu_plus_one, [x]), 1e-6)


@pytest.mark.compile
@operators
@masked
def test_exported_equals_eager_for_other_batches_and_lengths(operator: Operator, kind: str) -> None:
    module = _Module(operator.fast)
    auto: dict[int, Any] = {0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC}
    tensors = operator.inputs(SIZES, dtype=torch.float32)
    mask = key_mask(kind, SIZES)
    shapes = (
        [auto if tensor.ndim == 4 else {} for tensor in tensors],
        None if mask is None else {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC},
    )
    program = torch.export.export(module, (tensors, mask), dynamic_shapes=shapes)
    for sizes in (SIZES, Sizes(5, SIZES.h, 11, 4, SIZES.d, SIZES.v)):
        new = operator.inputs(sizes, dtype=torch.float32)
        new_mask = key_mask(kind, sizes)
        assert_all_close({"y": program.module()(new, new_mask)}, {"y": module(new, new_mask)}, 1e-6)
