"""In tests of operators, memory that nobody wrote shows."""

import pytest
import torch


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.complex64])
def test_unwritten_numbers_are_nan(dtype: torch.dtype) -> None:
    like = torch.zeros(2, 3, dtype=dtype)
    for made in (torch.empty(2, 3, dtype=dtype), torch.empty_like(like), like.new_empty(4)):
        assert made.isnan().all()


def test_unwritten_integers_are_huge() -> None:
    assert (torch.empty(3, dtype=torch.int32) == torch.iinfo(torch.int32).max).all()
