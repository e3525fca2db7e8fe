"""Check and time the Triton kernels on the GPU of this machine, in under ten minutes.

    python -m benchmarks.gpu --out gpu.md

First correctness: output and gradients against the plain operations in float64, in every dtype. Then times (medians,
with the GPU's cache emptied before every run) against the plain operations and against what torch.compile makes of
them; the share of the memory bandwidth, which a copy measures, that the bytes which have to be moved account for; and
peak memory. The exit status is 1 where a check fails and 2 without a GPU that the kernels support.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from nnunet_gdla.layers import GatedDifferentialLinearAttention
from nnunet_gdla.ops import NeighbourGraph, grid_neighbours, use_forms
from nnunet_gdla.ops._triton_differential import gated_differential_triton
from nnunet_gdla.ops._triton_redundancy import alignment_triton, correction_triton
from nnunet_gdla.ops._triton_switch import why_no_kernel
from nnunet_gdla.ops.gated_differential import gated_differential_attention
from nnunet_gdla.ops.redundancy import alignment, correction

DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
# Largest relative error that passes where the plain operations are not worse still.
ALLOWED = {torch.float32: 2e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
SLOTS = 8
Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Subject:
    """One computation in two forms.

    Args:
        name: For the table.
        ours: The kernels.
        plain: The same from torch's operations.
        inputs: What both take and get gradients for.
        forward_bytes: What forward has to move, every pass over a tensor counted once.
        both_bytes: Likewise forward and backward.
    """

    name: str
    ours: Function
    plain: Function
    inputs: list[Tensor]
    forward_bytes: int
    both_bytes: int


def main() -> None:
    """Check, time, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the Markdown there too")
    parser.add_argument("--minutes", type=float, default=9, help="start no new row after that (default: %(default)s)")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out, which takes longest")
    arguments = parser.parse_args()
    if not torch.cuda.is_available() or why_no_kernel(torch.zeros(1, device="cuda")):
        print("benchmarks.gpu needs an NVIDIA GPU, Ampere or newer, with Triton installed.", file=sys.stderr)
        raise SystemExit(2)
    torch.manual_seed(0)
    deadline = time.monotonic() + 60 * arguments.minutes
    lines, passed = check_all()
    lines += ["", *time_all(deadline, with_compiled=not arguments.no_compile)]
    text = "\n".join([f"Measured on {machine()}.", "", *lines, ""])
    if arguments.out is not None:
        arguments.out.write_text(text, encoding="utf-8")
    if not passed:
        print("A check has failed, see the first table.", file=sys.stderr)
        raise SystemExit(1)


def machine() -> str:
    """Name the card and the versions."""
    from triton import __version__ as triton_version

    card = torch.cuda.get_device_name()
    return f"{card}, torch {torch.__version__}, CUDA {torch.version.cuda}, Triton {triton_version}"


def differential(
    batch: int, tokens: int, heads: int, width: int, dtype: torch.dtype, *, differential: bool = True
) -> Subject:
    """The gated differential attention of one layer, on the projections that the layer makes."""
    channels = heads * width
    projected = torch.randn(batch, tokens, 4 * channels, device="cuda").to(dtype)
    lam, weight = 0.1 * torch.randn(heads, width, device="cuda"), 1 + 0.1 * torch.randn(width, device="cuda")
    options = {"num_heads": heads, "gate": "silu", "norm_eps": 1e-5}

    def call(form: Function, projected: Tensor, weight: Tensor, lam: Tensor | None = None) -> Tensor:
        return form(projected, lam, weight, **options)

    one = batch * tokens * channels * projected.element_size()
    name = f"attention{'' if differential else ' without the difference'}, {batch} x {tokens} tokens, {heads} x {width}"
    return Subject(
        f"{name}, {DTYPES[dtype]}",
        partial(call, gated_differential_triton),
        partial(call, gated_differential_attention),
        [projected, weight, lam] if differential else [projected, weight],
        5 * one,  # k, v; q, g and the result
        14 * one,  # and q, g, their gradients and the result's; k, v and their gradients
    )


def redundancy(patches: int, heads: int, width: int, dtype: torch.dtype) -> Subject:
    """The correction along the neighbours' mean values, behind a class token, with given coefficients."""
    edge = int(patches**0.5)
    coords = torch.cartesian_prod(torch.arange(edge), torch.arange(edge))
    graph = grid_neighbours(coords, 1).to("cuda")
    count = len(coords)
    v = torch.randn(1, count + 1, 3, heads, width, device="cuda").to(dtype).permute(2, 0, 3, 1, 4)[2]
    y = torch.randn(1, count + 1, heads, width, device="cuda").to(dtype).transpose(1, 2)
    beta = torch.rand(1, heads, count, device="cuda")

    def ours(v: Tensor, graph: NeighbourGraph, y: Tensor, beta: Tensor) -> Tensor:
        _, dot, _ = alignment_triton(y[:, :, 1:], v[:, :, 1:], graph, with_axis=False)
        return correction_triton(y, dot, beta, v, graph, first=1)

    def plain(v: Tensor, graph: NeighbourGraph, y: Tensor, beta: Tensor) -> Tensor:
        values = v.to(y.dtype)  # float64, when that is asked for
        return correction(y, alignment(y[:, :, 1:], values[:, :, 1:], graph), beta, values, graph, first=1)

    one = y.numel() * y.element_size()
    of_graph, per_head = count * SLOTS * (8 + 1 + 4), 4 * beta.numel()
    return Subject(
        f"correction, {count} patches, {heads} x {width}, {DTYPES[dtype]}",
        partial(ours, v, graph),
        partial(plain, v, graph),
        [y, beta],
        5 * one + 2 * of_graph + 4 * per_head,  # y, v; y, v and the result
        8 * one + 3 * of_graph + 7 * per_head,  # and v and two gradients
    )


def check_all() -> tuple[list[str], bool]:
    """Return a table of errors and whether all pass."""
    print("| checked | largest error | of the plain operations | |\n|---|---|---|---|")
    lines = ["| checked | largest error | of the plain operations | |", "|---|---|---|---|"]
    passed = True
    for subject in checked():
        exact = results(subject.plain, [tensor.double() for tensor in subject.inputs])
        ours, plain = (largest_error(results(form, subject.inputs), exact) for form in (subject.ours, subject.plain))
        again = results(subject.ours, subject.inputs)
        same = all(torch.equal(a, b) for a, b in zip(again, results(subject.ours, subject.inputs), strict=True))
        good = ours <= max(ALLOWED[subject.inputs[0].dtype], 2 * plain) and same
        passed &= good
        verdict = "ok" if good else "**WRONG**" if same else "**DIFFERS FROM RUN TO RUN**"
        lines.append(f"| {subject.name} | {ours:.1e} | {plain:.1e} | {verdict} |")
        print(lines[-1], flush=True)
    lines += ["", layer_line()]
    print(lines[-1], flush=True)
    return lines, passed


def checked() -> Iterator[Subject]:
    """Odd sizes, all widths, all dtypes."""
    for dtype in DTYPES:
        for batch, tokens, heads, width in ((2, 3136, 2, 32), (1, 3, 1, 16), (3, 777, 3, 24), (1, 5000, 2, 64)):
            yield differential(batch, tokens, heads, width, dtype)
        yield differential(2, 1001, 2, 8, dtype)
        yield differential(1, 1300, 1, 128, dtype)
        yield differential(2, 1000, 2, 40, dtype, differential=False)
        yield redundancy(2500, 6, 64, dtype)
        yield redundancy(900, 1, 200, dtype)
    yield differential(1, 200_000, 1, 32, torch.float16)


def results(form: Function, inputs: list[Tensor]) -> list[Tensor]:
    """Return the output and all gradients of a fixed weighting of it, in the plain form without any kernel of ours."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    with use_forms("plain"):
        out = form(*leaves)
    generator = torch.Generator("cuda").manual_seed(1)
    weights = torch.randn(out.shape, generator=generator, device="cuda").bfloat16().half()
    grads = torch.autograd.grad(out, leaves, weights.to(out.dtype))
    return [out.detach(), *grads]


def largest_error(found: list[Tensor], exact: list[Tensor]) -> float:
    """Return the largest difference over the largest magnitude, of all tensors; NaN counts as infinite."""
    errors = []
    for tensor, truth in zip(found, exact, strict=True):
        difference = (tensor.double() - truth).abs().max() / truth.abs().max().clamp(min=1e-9)
        errors.append(float(difference) if torch.isfinite(difference) else float("inf"))
    return max(errors)


def layer_line() -> str:
    """Say whether the layer takes the kernels where they are named."""
    layer = GatedDifferentialLinearAttention(64, 2).cuda()
    x = torch.randn(2, 256, 64, device="cuda")
    with use_forms("triton"):
        layer(x, (16, 16))  # compares the kernels with the plain form first
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            layer(x, (16, 16))
            torch.cuda.synchronize()
    used = any("output_kernel" in event.key for event in profile.key_averages())
    return f"The layer `GatedDifferentialLinearAttention` {'takes' if used else 'does NOT take'} the named kernels."


def time_all(deadline: float, *, with_compiled: bool) -> list[str]:
    """Return a table of times, bandwidth and memory."""
    bandwidth = copy_bandwidth()
    lines = [
        f'A copy moves {bandwidth / 1e9:.0f} GB/s; "of it" is the share of that at which the bytes that have to be '
        "moved went by. Times in microseconds; memory beside the inputs in MB, forward with backward.",
        "",
        "| | ours | of it | plain | plain / ours | compiled / ours | memory | of plain |",
        "|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    for number, make in enumerate(timed()):
        if time.monotonic() > deadline:
            lines += ["", f"Out of time: the rows from number {number} on are left out."]
            print(lines[-1])
            break
        subject = make()
        compiled = torch.compile(subject.plain, dynamic=False) if with_compiled else None
        ours, plain = peak(subject.ours, subject.inputs), peak(subject.plain, subject.inputs)
        for what, moved in (("forward", subject.forward_bytes), ("with backward", subject.both_bytes)):
            backward = what != "forward"
            fast, slow = (seconds(form, subject.inputs, backward) for form in (subject.ours, subject.plain))
            other = "" if compiled is None else f"{seconds(compiled, subject.inputs, backward) / fast:.2f}x"
            memory = f"{ours / 1e6:.1f} | {ours / plain:.2f}x" if backward else " | "
            lines.append(
                f"| {subject.name}, {what} | {1e6 * fast:.0f} | {moved / bandwidth / fast:.0%} | {1e6 * slow:.0f} | "
                f"{slow / fast:.2f}x | {other} | {memory} |"
            )
            print(lines[-1], flush=True)
        torch.compiler.reset()
    return lines


def timed() -> Iterator[Callable[[], Subject]]:
    """The sizes of networks, most wanted first."""
    for dtype in (torch.float16, torch.float32, torch.bfloat16):
        yield partial(differential, 8, 3136, 2, 32, dtype)
        yield partial(differential, 2, 16384, 2, 32, dtype)
        yield partial(redundancy, 49152, 6, 64, dtype)
        yield partial(differential, 1, 49152, 6, 64, dtype)
    yield partial(differential, 8, 196, 10, 32, torch.float16)
    yield partial(differential, 1, 49152, 3, 128, torch.float16)
    yield partial(redundancy, 4096, 6, 64, torch.float32)


def copy_bandwidth() -> float:
    """Return bytes read and written a second by a copy of half a gibibyte."""
    source = torch.randn(1 << 27, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() * source.element_size() / bench(lambda: target.copy_(source))


def bench(call: Callable[[], object]) -> float:
    """Return median seconds, the cache emptied before every run."""
    from triton.testing import do_bench

    return 1e-3 * do_bench(call, warmup=20, rep=100, return_mode="median")


def seconds(form: Function, inputs: list[Tensor], backward: bool) -> float:
    """Return median seconds of forward without gradients, or of forward with backward."""
    with use_forms("plain"):  # what is ours is called by name
        if not backward:
            with torch.no_grad():
                return bench(lambda: form(*inputs))
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        weights = torch.randn_like(form(*leaves))
        return bench(lambda: torch.autograd.grad(form(*leaves), leaves, weights))


def peak(form: Function, inputs: list[Tensor]) -> int:
    """Return the most bytes that forward with backward takes beside what is there before."""
    results(form, inputs)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    results(form, inputs)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


if __name__ == "__main__":
    main()
