"""Which form of an operator runs: the forms that the user names, in that order, of which the first that fits is taken.

Forms are `plain` (torch's operators only), `cpu` (fused, eager) and `triton` (kernels for CUDA). `plain` fits always
and comes last. `triton` is compared with `plain` before its first use, see `_self_check`.
"""

import os
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.nn import Parameter

from nnunet_gdla.errors import UserError
from nnunet_gdla.ops import _self_check

__all__ = [
    "FORMS",
    "FORMS_VARIABLE",
    "OPERATORS",
    "Form",
    "FormsReport",
    "Operator",
    "are_exact",
    "choose",
    "forms",
    "is_named",
    "use_forms",
]

FORMS_VARIABLE = "NNUNET_GDLA_FORMS"
FORMS = ("plain", "cpu", "triton")
DEFAULT = ("cpu", "plain")
# What was set before there was one variable, and what now says the same.
REPLACED = {
    "NNUNET_GDLA_FUSED": {"0": "plain", "1": "cpu,plain"},
    "NNUNET_GDLA_TRITON": {"0": "cpu,plain", "1": "triton,cpu,plain"},
}

Call = TypeVar("Call")


def _read(environment: Mapping[str, str]) -> tuple[str, ...] | str:
    """Return the named forms up to `plain`, or one sentence that says what is wrong."""
    for old, values in REPLACED.items():
        if environment.get(old):
            now = values.get(environment[old], ",".join(DEFAULT))
            return f"{old} is no longer read: unset it, and export {FORMS_VARIABLE}={now} if you want what it said"
    try:
        return _parse(environment.get(FORMS_VARIABLE, ""))
    except ValueError as error:
        return f"{FORMS_VARIABLE}: {error}"


def _parse(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")] if text.strip() else list(DEFAULT)
    for name in names:
        if name not in FORMS:
            raise ValueError(f"unknown form {name!r} in {text!r}; name some of {', '.join(FORMS)}, with commas")
    names = list(dict.fromkeys([*names, "plain"]))
    return tuple(names[: names.index("plain") + 1])


# A sentence stands here until somebody asks: a wrong value must not end an import.
_named: list[tuple[str, ...] | str] = [_read(os.environ)]


def _order() -> tuple[str, ...]:
    named = _named[0]
    if isinstance(named, str):
        raise UserError(named)
    return named


def is_named(form: str) -> bool:
    """Whether a form may run at all: named by `NNUNET_GDLA_FORMS` or `use_forms`, before `plain`.

    Raises:
        UserError: If the variable names an unknown form, or one of those that it replaced is set.
    """
    return form in _order()


@contextmanager
def use_forms(*names: str) -> Iterator[None]:
    """Name the forms that may run inside a `with` block, for this process; means what `NNUNET_GDLA_FORMS` means.

    Args:
        *names: "plain", "cpu", "triton", in order of preference, also as one text with commas. What comes after "plain"
            never runs; "plain" itself need not be named.

    Raises:
        ValueError: If a name is unknown.
    """
    before = _named[0]
    _named[0] = _parse(",".join(names))
    try:
        yield
    finally:
        _named[0] = before


@dataclass(frozen=True)
class Form(Generic[Call]):
    """One way to compute an operator.

    Args:
        run: From the bound arguments to the result.
        why_not: The reason why the form cannot take these arguments, None where it can. Never looks at values.
    """

    run: Callable[[Call], Any]
    why_not: Callable[[Call], str | None]


@dataclass(frozen=True)
class Operator(Generic[Call]):
    """An operator and its forms.

    Args:
        name: Of the public function.
        call: Makes a named tuple of its arguments, with their defaults.
        forms: By name.
        key: What a kernel is compiled for: device, dtypes, widths, choices. Constants only.
        example: Arguments with the same key, of an odd size, with random values that do not touch the global state.
        differentiable: Arguments that get gradients.
    """

    name: str
    call: Callable[..., Call]
    forms: dict[str, Form[Call]]
    key: Callable[[Call], tuple[Hashable, ...]]
    example: Callable[[Call], Call]
    differentiable: tuple[str, ...]

    def __post_init__(self) -> None:
        OPERATORS[self.name] = cast("Operator[Any]", self)


OPERATORS: dict[str, Operator[Any]] = {}


def choose(operator: Operator[Call], call: Call) -> Any:  # noqa: ANN401 - what the operator returns
    """Run the first named form that fits; what was compared with `plain` and failed never fits."""
    for name in _order():
        form = operator.forms.get(name)
        if form is None or form.why_not(call) is not None:
            continue
        if name != "triton":
            return form.run(call)
        key = operator.key(call)
        if torch.compiler.is_compiling():  # only a form that has passed may stand in a graph
            if _self_check.verdict(operator.name, key) == _self_check.PASSED:
                return form.run(call)
        elif _self_check.passes(operator, call, key):
            return _launched(operator, form, call, key)
    return operator.forms["plain"].run(call)


def _launched(operator: Operator[Call], form: Form[Call], call: Call, key: tuple[Hashable, ...]) -> Any:  # noqa: ANN401
    """Run a form that has passed; one that fails at this size all the same is left out from now on."""
    try:
        return form.run(call)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - a launcher's errors have no common class
        _self_check.leave_out(operator.name, key, _self_check.one_line(error))
        return operator.forms["plain"].run(call)


class FormsReport(NamedTuple):
    """What would run, and why the others would not."""

    runs: str
    why_not: dict[str, str]


def forms(operator: str | Callable[..., Any], *args: Any, **kwargs: Any) -> FormsReport:  # noqa: ANN401
    """Say which form of an operator would run for these arguments, and why the others would not; runs nothing.

    Args:
        operator: A function of `nnunet_gdla.ops` that has several forms, or its name.
        *args: Its arguments.
        **kwargs: Likewise.

    Raises:
        ValueError: If the operator has one form only.
        UserError: If `NNUNET_GDLA_FORMS` cannot be read.
    """
    name = operator if isinstance(operator, str) else getattr(operator, "__name__", repr(operator))
    if name not in OPERATORS:
        raise ValueError(f"{name} has one form only; those with several are {', '.join(sorted(OPERATORS))}")
    found = OPERATORS[name]
    call = found.call(*args, **kwargs)
    order, reasons = _order(), {}
    for form in (*order, *(form for form in FORMS if form not in order)):
        reasons[form] = _why_not(found, form, call, order)
    runs = next(form for form in order if reasons[form] is None)
    return FormsReport(
        runs, {form: reason or f"{runs} comes first" for form, reason in reasons.items() if form != runs}
    )


def _why_not(operator: Operator[Call], name: str, call: Call, order: tuple[str, ...]) -> str | None:
    form = operator.forms.get(name)
    if form is None:
        return "there is none of this operator"
    if name not in order:
        return f"not named before plain in {FORMS_VARIABLE}"
    reason = form.why_not(call)
    if reason is not None or name != "triton":
        return reason
    return _self_check.why_not(operator.name, operator.key(call))


def are_exact(*tensors: Tensor | None) -> bool:
    """Whether these are tensors and parameters themselves: a subclass may do anything with an operator.

    Quantised weights, distributed tensors and the like act where torch's own functions are called with them.
    """
    return all(tensor is None or type(tensor) in (Tensor, Parameter) for tensor in tensors)
