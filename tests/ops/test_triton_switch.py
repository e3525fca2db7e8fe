"""When the Triton kernels can be chosen, and that nobody pays for them who does not use them."""

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from nnunet_gdla.ops import _triton_redundancy, _triton_switch
from nnunet_gdla.ops._dispatch import are_exact
from nnunet_gdla.ops._triton_differential import gated_differential_triton, why_not_triton
from nnunet_gdla.ops._triton_redundancy import correction_triton
from nnunet_gdla.ops._triton_switch import why_no_kernel
from nnunet_gdla.ops.neighbours import NeighbourGraph
from tests.paths import ROOT


@pytest.fixture
def _ampere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with Triton and a GPU that may run the kernels."""
    monkeypatch.setattr(_triton_switch, "_capable", lambda _: True)
    monkeypatch.setattr(_triton_switch, "_installed", True)
    # a fake tensor, which stands for one on a GPU here, is no exact one
    monkeypatch.setattr(_triton_switch, "are_exact", lambda *_: True)


def python(program: str, **variables: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | variables, capture_output=True, text=True, check=True
    )
    return finished.stdout.strip()


def test_importing_the_operators_does_not_import_triton() -> None:
    program = (
        "import sys, nnunet_gdla.layers, nnunet_gdla.ops._triton_differential, nnunet_gdla.ops._triton_redundancy; "
        "print('triton' in sys.modules)"
    )
    assert python(program) == "False"


def test_a_cpu_never_uses_them() -> None:
    assert why_no_kernel(torch.zeros(2, 3)) == "it needs CUDA tensors"


@pytest.fixture
def on_gpu() -> Tensor:
    """A tensor that says that it lies on a GPU."""
    with FakeTensorMode():
        return torch.zeros(1, 5, 4 * 64, device="cuda", dtype=torch.float16)


@pytest.mark.usefixtures("_ampere")
def test_the_dtype_decides_on_a_gpu(on_gpu: Tensor) -> None:
    assert why_no_kernel(on_gpu) is None
    assert why_no_kernel(on_gpu.double()) == "it needs float16, bfloat16 or float32"


@pytest.mark.usefixtures("_ampere")
def test_subclasses_of_tensors_are_left_to_plain_operations(on_gpu: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_triton_switch, "are_exact", are_exact)
    assert why_no_kernel(on_gpu) == "an input is a subclass of Tensor"


@pytest.mark.usefixtures("_ampere")
def test_what_the_kernels_cannot_hold_is_left_to_plain_operations(on_gpu: Tensor) -> None:
    def refused(projected: Tensor, heads: int) -> str | None:
        return why_not_triton(projected, None, on_gpu.new_ones(projected.shape[-1] // (4 * heads)), heads, "silu")

    assert refused(on_gpu, 2) is None
    assert refused(on_gpu[:0], 2) == "there are no tokens, or too many"
    assert refused(on_gpu.new_zeros(1, 5, 4 * 256), 1) == "heads are wider than 128 channels"
    heads = on_gpu.new_zeros(1, 6, 5, 64)
    graph = NeighbourGraph(*(torch.zeros(8, 3, dtype=d) for d in (torch.int64, torch.bool, torch.float)))
    assert _triton_redundancy.why_not_triton(heads, heads, graph) is None
    assert _triton_redundancy.why_not_triton(heads, heads.float(), graph) is not None


@pytest.mark.usefixtures("_ampere")
def test_who_counts_operations_or_takes_forward_derivatives_sees_plain_ones(on_gpu: Tensor) -> None:
    with FlopCounterMode(display=False):
        assert why_no_kernel(on_gpu) is not None
    with forward_ad.dual_level():
        assert why_no_kernel(on_gpu) is not None
    assert why_no_kernel(on_gpu) is None


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_fake_kernels_know_shapes_dtypes_and_strides(device: str) -> None:
    with FakeTensorMode(), torch.device(device):
        projected = torch.zeros(2, 4 * 12, 7, dtype=torch.float16).transpose(1, 2).requires_grad_()
        lam, weight = torch.zeros(3, 4, requires_grad=True), torch.ones(4)
        out = gated_differential_triton(projected, lam, weight, num_heads=3, gate="silu", norm_eps=1e-5)
        assert (out.shape, out.dtype, out.device.type) == ((2, 7, 12), torch.float16, device)
        y = torch.zeros(1, 9, 2, 4, dtype=torch.float16).transpose(1, 2).requires_grad_()
        graph = NeighbourGraph(*(torch.zeros(8, 3, dtype=d) for d in (torch.int64, torch.bool, torch.float)))
        beta = torch.zeros(1, 2, 8, requires_grad=True)
        z = correction_triton(y, beta, beta, y, graph, first=1)
        assert (z.shape, z.dtype, z.stride()) == (y.shape, y.dtype, y.stride())
        if device == "cuda":
            return  # autograd wants a real one
        for result, inputs in ((out, [projected, lam]), (z, [y, beta])):
            gradients = torch.autograd.grad(result.sum(), inputs)
            assert [(g.shape, g.dtype) for g in gradients] == [(tensor.shape, tensor.dtype) for tensor in inputs]


@pytest.mark.compile
def test_the_choice_can_be_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "12.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 6))

    def chosen(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if why_no_kernel(x) is None or not _triton_switch._capable(0) else x + 2

    compiled = torch.compile(chosen, fullgraph=True, backend="eager")
    assert float(compiled(torch.zeros(()))) == 2


@pytest.mark.usefixtures("_ampere")
def test_exports_take_plain_operations(on_gpu: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    assert why_no_kernel(on_gpu) is not None


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_the_benchmark_says_what_it_needs() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 2, finished.stderr
    assert finished.stderr.count("\n") == 1
    assert "NVIDIA GPU" in finished.stderr
