"""A kernel is compared with the plain form before its first use: on this card, in this dtype, at this width.

What does not compile, launch or agree is left out for the process, with one warning an operator.
"""

import threading
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from nnunet_gdla.ops._dispatch import Operator

__all__ = ["PASSED", "Compared", "as_it_was", "compare", "leave_out", "one_line", "passes", "verdict", "why_not"]

PASSED = ""
# Largest error over the largest magnitude that passes where the plain form in that dtype is not worse still.
ALLOWED = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}

Key = tuple[Hashable, ...]

_verdicts: dict[tuple[str, Key], str] = {}
_warned: set[str] = set()


def verdict(operator: str, key: Key) -> str | None:
    """Return `PASSED`, what was wrong, or None while nobody has compared."""
    return _verdicts.get((operator, key))


# What torch.compiler.assume_constant_result sets; to call that would import the whole compiler.
verdict._dynamo_marked_constant = True  # type: ignore[attr-defined]


def why_not(operator: str, key: Key) -> str | None:
    """Return the reason why a kernel does not take part."""
    found = verdict(operator, key)
    if found is None:
        return "not yet compared with the plain form, which its first eager use does"
    return found or None


def passes(operator: "Operator[Any]", call: Any, key: Key) -> bool:  # noqa: ANN401 - as the operator's
    """Whether the kernel may compute this; compares first where nobody has."""
    found = verdict(operator.name, key)
    if found is None:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return False  # nothing may be launched beside what is captured
        found = compare(operator, call).wrong
        if found == PASSED:
            _verdicts[operator.name, key] = PASSED
        else:
            leave_out(operator.name, key, found)
    return found == PASSED


def leave_out(operator: str, key: Key, reason: str) -> None:
    """Leave a kernel out for the rest of the process, and say so once an operator."""
    _verdicts[operator, key] = reason
    if operator not in _warned:
        _warned.add(operator)
        warnings.warn(
            f"the Triton form of {operator} is left out in this process and the plain form runs: {reason} "
            f"(on {key[0]}:{key[1]}, for {', '.join(map(str, key[2:]))}); `nnunet-gdla doctor --gpu` shows more",
            RuntimeWarning,
            stacklevel=2,
        )


class Compared:
    """What a comparison found.

    Args:
        wrong: `PASSED`, or what was wrong.
        error: Largest error of all outputs and gradients, NaN where there is none.
    """

    def __init__(self, wrong: str, error: float = float("nan")) -> None:
        self.wrong, self.error = wrong, error


def compare(operator: "Operator[Any]", call: Any) -> Compared:  # noqa: ANN401
    """Run kernel and plain form on a small example like this call, outputs and gradients, against float64.

    In a thread of its own: autocast, gradient mode, hooks on saved tensors, and whoever watches the operators belong to
    the caller's thread.
    """
    found: list[Compared] = []
    device = next(part.device for part in call if isinstance(part, Tensor))

    def run() -> None:
        try:
            with as_it_was(device):
                found.append(_compared(operator, call))
        except torch.OutOfMemoryError:
            found.append(Compared("memory ran out while it was compared with the plain form"))
        except Exception as error:  # noqa: BLE001 - a compiler's and a driver's errors have no common class
            found.append(Compared(one_line(error)))

    thread = threading.Thread(target=run, name=f"compare {operator.name}")
    thread.start()
    thread.join()
    return found[0]


def one_line(error: BaseException) -> str:
    """Return the first line of an error with its class."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no text'])[0]}"


@contextmanager
def as_it_was(device: torch.device) -> Iterator[None]:
    """Leave random state and the most memory that was ever taken as they were."""
    if device.type != "cuda":
        with torch.random.fork_rng(devices=[]):
            yield
        return
    most = torch.cuda.max_memory_allocated(device)
    try:
        with torch.cuda.device(device), torch.random.fork_rng(devices=[device]):
            yield
            torch.cuda.synchronize(device)  # what a kernel did wrong shows here
    finally:
        if torch.cuda.max_memory_allocated(device) > most:
            torch.cuda.reset_peak_memory_stats(device)  # to what is taken now; what is missing is taken for a moment
            missing = most - torch.cuda.memory_allocated(device)
            if missing > 0:
                torch.empty(missing, dtype=torch.uint8, device=device)


def _compared(operator: "Operator[Any]", call: Any) -> Compared:  # noqa: ANN401
    example = operator.example(call)
    exact = _results(operator, "plain", _to_double(example))
    plain, ours = (_results(operator, name, example) for name in ("plain", "triton"))
    worst = 0.0
    for name, truth in exact.items():
        found, expected = ours.get(name), plain[name]
        if found is None or found.shape != expected.shape or found.dtype != expected.dtype:
            what = "none" if found is None else f"{tuple(found.shape)} {found.dtype}"
            return Compared(f"its {name} is {what}, that of the plain form {tuple(expected.shape)} {expected.dtype}")
        error, others = _error(found, truth), _error(expected, truth)
        allowed = max(ALLOWED[min((found.dtype, *_dtypes(example)), key=lambda dtype: dtype.itemsize)], 2 * others)
        worst = max(worst, error)
        if not error <= allowed:
            return Compared(f"its {name} is off by {error:.1e} of the largest value, {allowed:.1e} are allowed", error)
    return Compared(PASSED, worst)


def _error(found: Tensor, truth: Tensor) -> float:
    """Largest difference over the largest magnitude; NaN and infinity count as infinite."""
    difference = float((found.double() - truth).abs().max() / truth.abs().max().clamp(min=1e-9))
    return difference if difference < float("inf") else float("inf")


def _results(operator: "Operator[Any]", name: str, call: Any) -> dict[str, Tensor]:  # noqa: ANN401
    """Outputs of a form, and gradients of a fixed weighting of the first."""
    own = {
        field: getattr(call, field).detach().requires_grad_()
        for field in operator.differentiable
        if getattr(call, field) is not None
    }
    run: Callable[[Any], Any] = operator.forms[name].run
    found = run(call._replace(**own))
    outputs = (found,) if isinstance(found, Tensor) else tuple(part for part in found if isinstance(part, Tensor))
    results = {"output" if i == 0 else f"output {i + 1}": part.detach() for i, part in enumerate(outputs)}
    if own:
        # values that every dtype holds
        weights = (torch.arange(outputs[0].numel(), device=outputs[0].device) * 37 % 17 - 8).view(outputs[0].shape) / 8
        grads = torch.autograd.grad(outputs[0], list(own.values()), weights.to(outputs[0].dtype))
        results |= {f"gradient of {field}": grad for field, grad in zip(own, grads, strict=True)}
    return results


def _to_double(value: Any) -> Any:  # noqa: ANN401 - tensors in tuples in tuples
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, tuple) and hasattr(value, "_replace"):
        return type(value)(*map(_to_double, value))
    return value


def _dtypes(value: Any) -> Iterator[torch.dtype]:  # noqa: ANN401
    for part in value:
        if isinstance(part, Tensor) and part.is_floating_point():
            yield part.dtype
