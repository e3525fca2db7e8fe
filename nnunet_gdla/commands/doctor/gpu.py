"""`nnunet-gdla doctor --gpu`: do the Triton kernels agree with the plain forms on this card, and are they faster?"""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nnunet_gdla.commands.findings import Finding, Level, failed, passed, warned
from nnunet_gdla.ops import _self_check, grid_neighbours
from nnunet_gdla.ops._dispatch import FORMS_VARIABLE, OPERATORS, Operator
from nnunet_gdla.ops._triton_switch import why_no_kernel

__all__ = ["Card", "check_card", "run"]

DTYPES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32"}
# Batch, tokens, heads of 32 channels: the decoder's blocks at 224 and 512 pixels.
IMAGES = ((2, 3136, 2), (2, 196, 10), (2, 16384, 2))
# Patches of slides, 6 heads of 64 channels.
SLIDES = (4096, 16384)
HEADS, WIDTH = 6, 64
ROUNDS = 20
# Less gain than that is within the noise of such a measurement.
GAIN = 0.95

Run = Callable[[Any], Any]


def _median_seconds(run: Callable[[], object]) -> float:
    """Median time on the card, after three runs that do not count."""
    for _ in range(3):
        run()
    marks = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(ROUNDS)]
    for began, ended in marks:
        began.record()
        run()
        ended.record()
    torch.cuda.synchronize()
    return statistics.median(began.elapsed_time(ended) for began, ended in marks) / 1000


def _compiled(run: Run) -> Run:
    return torch.compile(run, dynamic=False)


@dataclass(frozen=True)
class Card:
    """What is checked: a device, how time is taken on it, and what compiles for it."""

    name: str
    device: torch.device
    seconds: Callable[[Callable[[], object]], float] = _median_seconds
    compiled: Callable[[Run], Run] = _compiled


def run() -> int:
    """Check and time every kernel on this machine's GPU; return 1 if there is none or a kernel is wrong."""
    reason: str | None = "PyTorch sees no GPU"
    if torch.cuda.is_available():
        reason = why_no_kernel(torch.ones(1, device="cuda"))
    if reason is not None:
        fix = f"run it on the machine that trains; without a GPU {FORMS_VARIABLE} can stay unset (cpu,plain)"
        print(failed("GPU", f"nothing to check on this machine: {reason}", fix))
        return 1
    bad = False
    for finding in check_card(Card(torch.cuda.get_device_name(), torch.device("cuda"))):
        print(finding, flush=True)
        bad |= finding.level is Level.FAIL
    return int(bad)


def check_card(card: Card) -> Iterator[Finding]:
    """Yield a finding an operator and dtype, with times, and at the end what to set."""
    yield passed("GPU", f"{card.name}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    total, wrong = dict.fromkeys(("plain", "compiled", "triton"), 0.0), False
    for dtype, dtype_name in DTYPES.items():
        for operator, calls in _calls(card.device, dtype):
            title = f"{operator.name}, {dtype_name}"
            compared = [_self_check.compare(operator, call) for call in _choices(calls[0][1])]
            reasons = [each.wrong for each in compared if each.wrong != _self_check.PASSED]
            if reasons:
                wrong = True
                fix = f"leave triton out of {FORMS_VARIABLE}, and open an issue with this line"
                yield failed(title, reasons[0], fix)
                continue
            error = max(each.error for each in compared)
            rows = [f"{size}, {_row(card, operator, call, total)}" for size, call in calls]
            yield passed(title, "; ".join([f"error against float64 {error:.1e}", *rows]))
    yield _advice(total, wrong)


def _choices(call: Any) -> Iterator[Any]:  # noqa: ANN401
    """The call, and what else its kernels are compiled for: the gate of the released checkpoints, no difference."""
    yield call
    if hasattr(call, "gate"):
        yield call._replace(gate="sigmoid")
        yield call._replace(lam=None)


def _calls(device: torch.device, dtype: torch.dtype) -> Iterator[tuple[Operator[Any], list[tuple[str, Any]]]]:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    gated = OPERATORS["gated_differential_attention"]
    calls = []
    for batch, tokens, heads in IMAGES:
        lam, weight = 0.1 * random(heads, 32).float(), torch.ones(32, device=device)
        call = gated.call(random(batch, tokens, 4 * heads * 32), lam, weight, heads)
        calls.append((f"{batch} x {tokens} tokens, {heads} x 32 channels", call))
    yield gated, calls

    alignments, corrections = [], []
    for patches in SLIDES:
        edge = int(patches**0.5)
        graph = grid_neighbours(torch.cartesian_prod(torch.arange(edge), torch.arange(edge)), 1).to(device)
        y, v = random(1, HEADS, edge * edge, WIDTH), random(1, HEADS, edge * edge, WIDTH)
        alignments.append((f"{patches} patches", OPERATORS["alignment"].call(y, v, graph)))
        found = OPERATORS["alignment"].forms["plain"].run(alignments[-1][1])
        beta = random(1, HEADS, edge * edge).float()
        corrections.append((f"{patches} patches", OPERATORS["correction"].call(y, found, beta, v, graph)))
    yield OPERATORS["alignment"], alignments
    yield OPERATORS["correction"], corrections


def _row(card: Card, operator: Operator[Any], call: Any, total: dict[str, float]) -> str:  # noqa: ANN401
    """Time the three ways; add the longer pass to the total."""
    plain = operator.forms["plain"].run
    ways = {"plain": plain, "compiled": card.compiled(plain), "triton": operator.forms["triton"].run}
    parts = []
    for backward in (False, True) if operator.differentiable else (False,):
        found = {name: _seconds(card, operator, run, call, backward) for name, run in ways.items()}
        times = ", ".join(f"{name} {shown}" for name, (_, shown) in found.items())
        parts.append(f"{'with backward' if backward else 'forward'}: {times}")
    for name, (seconds, _) in found.items():
        total[name] += seconds
    return ", ".join(parts)


def _seconds(card: Card, operator: Operator[Any], run: Run, call: Any, backward: bool) -> tuple[float, str]:  # noqa: ANN401
    """Time one way: seconds, infinite where it cannot be timed, and what to show."""
    try:
        if not backward:
            with torch.no_grad():
                found = card.seconds(lambda: run(call))
        else:
            own = {name: getattr(call, name).detach().requires_grad_() for name in operator.differentiable}
            grown = call._replace(**own)
            weights = torch.ones_like(run(grown))
            found = card.seconds(lambda: torch.autograd.grad(run(grown), list(own.values()), weights))
    except torch.OutOfMemoryError:
        return float("inf"), "out of memory"
    except Exception as error:  # noqa: BLE001 - a compiler's errors have no common class
        return float("inf"), f"failed ({_self_check.one_line(error)})"
    return found, f"{1e6 * found:.0f} us"


def _advice(total: dict[str, float], wrong: bool) -> Finding:
    title, unset = "what to set", f"leave {FORMS_VARIABLE} unset (cpu,plain)"
    if wrong:
        return warned(title, "a kernel does not work on this card, see above", unset)
    rival = min(("plain", "compiled"), key=lambda name: total[name])
    if not total["triton"] < float("inf"):
        return warned(title, "the kernels passed the check, but could not be timed at every size", unset)
    share = total["triton"] / total[rival]
    if share > GAIN:
        return passed(title, f"the kernels agree, but take {share:.2f} of the time of the {rival} form", unset)
    detail = f"the kernels agree and take {share:.2f} of the time of the {rival} form"
    return passed(title, detail, f"export {FORMS_VARIABLE}=triton,cpu,plain")
