"""Comparisons that say which tensor is off and by how much."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

__all__ = ["assert_all_close", "gradients", "relative_error"]


def relative_error(actual: Tensor, expected: Tensor, *, floor: float = 0.0) -> float:
    """Return the largest absolute difference over the largest expected magnitude (absolute where that is zero).

    Args:
        actual: What was computed.
        expected: What it should be.
        floor: Smallest magnitude to divide by.

    Returns:
        The ratio in float64; infinite where `actual` is not finite.
    """
    assert actual.shape == expected.shape, f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    if not torch.isfinite(actual).all():
        return float("inf")
    if expected.numel() == 0:
        return 0.0
    difference = (actual.double() - expected.double()).abs().max().item()
    magnitude = max(expected.double().abs().max().item(), floor)
    return difference / magnitude if magnitude > 0 else difference


def assert_all_close(
    actual: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    tolerance: float,
    *,
    exceptions: Mapping[str, float] | None = None,
    floor: float = 0.0,
) -> None:
    """Compare tensors by name and list every one that is off with its ratio.

    Args:
        actual: What was computed.
        expected: What it should be; the names must be the same.
        tolerance: Largest allowed relative error.
        exceptions: Other tolerances for single names.
        floor: Smallest magnitude to divide by, for gradients that are zero but for rounding.
    """
    assert sorted(actual) == sorted(expected), f"names differ: {sorted(set(actual) ^ set(expected))}"
    allowed = {name: (exceptions or {}).get(name, tolerance) for name in expected}
    errors = {name: relative_error(actual[name].detach(), expected[name].detach(), floor=floor) for name in expected}
    bad = [
        f"{name} error {errors[name]:.2e} (allowed {allowed[name]:.0e})"
        for name in errors
        if errors[name] > allowed[name]
    ]
    assert not bad, "; ".join(bad)


def gradients(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> dict[str, Tensor]:
    """Run the function and the backward pass of a fixed random weighting of its output.

    The weights are rounded to what float16 and bfloat16 both hold, so that every precision gets the same ones. The
    backward pass runs outside autocast, as training does.

    Args:
        function: Takes the inputs in order, returns one tensor.
        inputs: Tensors; each gets a gradient.

    Returns:
        `output` and `grad.<i>` per input, detached.
    """
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    output = function(*leaves)
    generator = torch.Generator().manual_seed(7)
    cotangent = torch.randn(output.shape, generator=generator).to(torch.bfloat16).to(torch.float16)
    with torch.autocast(output.device.type, enabled=False):
        grads = torch.autograd.grad(output, leaves, cotangent.to(output.device, output.dtype))
    return {"output": output.detach(), **{f"grad.{i}": grad for i, grad in enumerate(grads)}}
