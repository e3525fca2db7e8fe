"""A wrong size is a ValueError that shows the sizes, a wrong choice one that lists the choices."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nnunet_gdla.ops import linear_attention
from tests.ops.operators import OPERATORS, Operator, Sizes
from tests.unchecked import unchecked

SIZES = Sizes(2, 3, 5, 7, 4, 6)

# what is made wrong: index of the tensor, its new shape from the right one
WRONG: dict[str, tuple[int, Callable[[tuple[int, ...]], tuple[int, ...]]]] = {
    "other batch of q": (0, lambda s: (s[0] + 1, *s[1:])),
    "other heads of q": (0, lambda s: (s[0], s[1] + 1, *s[2:])),
    "other width of q": (0, lambda s: (*s[:3], s[3] + 2)),
    "other batch of k": (1, lambda s: (s[0] + 1, *s[1:])),
    "other width of k": (1, lambda s: (*s[:3], s[3] + 2)),
    "other tokens of k": (1, lambda s: (*s[:2], s[2] + 1, s[3])),
    "other heads of v": (2, lambda s: (s[0], s[1] + 1, *s[2:])),
    "other tokens of v": (2, lambda s: (*s[:2], s[2] + 1, s[3])),
    "v without head axis": (2, lambda s: (s[0], *s[2:])),
    "one head of v, which would broadcast": (2, lambda s: (s[0], 1, *s[2:])),
    "one batch element of q, which would broadcast": (0, lambda s: (1, *s[1:])),
}


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_sizes_raise_and_are_shown(operator: Operator, wrong: str) -> None:
    inputs = operator.inputs(SIZES)
    index, change = WRONG[wrong]
    inputs[index] = torch.zeros(change(tuple(inputs[index].shape)))
    with unchecked(), pytest.raises(ValueError, match=r"do not fit|must have four axes") as error:
        operator.fast(*inputs)
    for tensor in inputs[:3]:
        assert str(tuple(tensor.shape)) in str(error.value)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
@pytest.mark.parametrize(
    "mask",
    [
        torch.ones(SIZES.b, SIZES.n, dtype=torch.bool),
        torch.ones(1, SIZES.m, dtype=torch.bool),
        torch.ones(SIZES.m, dtype=torch.bool),
        torch.ones(SIZES.b, 1, 1, SIZES.m, dtype=torch.bool),
        torch.ones(SIZES.b, SIZES.m),
        torch.zeros(SIZES.b, SIZES.m, dtype=torch.uint8),
    ],
    ids=lambda mask: f"{tuple(mask.shape)}-{mask.dtype}",
)
def test_a_mask_that_is_no_bool_per_key_raises_and_is_shown(operator: Operator, mask: Tensor) -> None:
    inputs = operator.inputs(SIZES)
    with unchecked(), pytest.raises(ValueError, match="key_mask") as error:
        operator.fast(*inputs, key_mask=mask)
    assert str(tuple(mask.shape)) in str(error.value)
    assert str((SIZES.b, SIZES.m)) in str(error.value)


@pytest.mark.parametrize("operator", [op for op in OPERATORS if op.lam_shape], ids=lambda operator: operator.name)
def test_a_lambda_of_another_size_raises_and_is_shown(operator: Operator) -> None:
    inputs = operator.inputs(SIZES)
    inputs[3] = torch.zeros(SIZES.h + 1)
    with unchecked(), pytest.raises(ValueError, match=r"lam \(4,\)"):
        operator.fast(*inputs)


@pytest.mark.parametrize("operator", [op for op in OPERATORS if op.lam_shape], ids=lambda operator: operator.name)
def test_an_odd_width_cannot_hold_two_branches(operator: Operator) -> None:
    inputs = operator.inputs(SIZES)
    inputs[0], inputs[1] = inputs[0][..., :7], inputs[1][..., :7]
    with unchecked(), pytest.raises(ValueError, match="even"):
        operator.fast(*inputs)


def test_an_unknown_feature_map_raises_and_the_known_one_is_listed() -> None:
    q = torch.zeros(1, 1, 2, 2)
    with unchecked(), pytest.raises(ValueError, match=r"(?s)'relu'.*elu1"):
        linear_attention(q, q, q, feature_map="relu")  # type: ignore[arg-type]
