"""When the Triton kernels are chosen, and that nobody pays for them who does not use them."""

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from nnunet_gdla.ops import _triton_switch
from nnunet_gdla.ops._triton_differential import gated_differential_triton, triton_fits
from nnunet_gdla.ops._triton_redundancy import correction_triton, redundancy_fits
from nnunet_gdla.ops._triton_switch import triton_wanted, use_triton
from nnunet_gdla.ops.neighbours import NeighbourGraph
from tests.paths import ROOT


@pytest.fixture
def _ampere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with Triton and a GPU that may run the kernels."""
    monkeypatch.setattr(_triton_switch, "_capable", lambda _: True)
    monkeypatch.setattr(_triton_switch, "_installed", True)
    monkeypatch.setattr(_triton_switch, "_enabled", True)


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


@pytest.mark.parametrize(("value", "expected"), [("0", "False"), ("1", "True")])
def test_the_variable_switches_the_kernels_off(value: str, expected: str) -> None:
    program = "from nnunet_gdla.ops import _triton_switch; print(_triton_switch._enabled)"
    assert python(program, NNUNET_GDLA_TRITON=value) == expected


def test_a_cpu_never_uses_them() -> None:
    assert not triton_wanted(torch.zeros(2, 3))


@pytest.fixture
def on_gpu() -> Tensor:
    """A tensor that says that it lies on a GPU."""
    with FakeTensorMode():
        return torch.zeros(1, 5, 4 * 64, device="cuda", dtype=torch.float16)


@pytest.mark.usefixtures("_ampere")
def test_the_switch_and_the_dtype_decide_on_a_gpu(on_gpu: Tensor) -> None:
    assert triton_wanted(on_gpu)
    assert not triton_wanted(on_gpu.double())
    use_triton(False)
    assert not triton_wanted(on_gpu)
    use_triton(True)
    assert triton_wanted(on_gpu)


@pytest.mark.usefixtures("_ampere")
def test_what_the_kernels_cannot_hold_is_left_to_plain_operations(on_gpu: Tensor) -> None:
    assert triton_fits(on_gpu, 2, "silu")
    assert not triton_fits(on_gpu[:0], 2, "silu")
    assert not triton_fits(on_gpu.new_zeros(1, 5, 4 * 256), 1, "silu"), "wider than a program holds"
    heads = on_gpu.new_zeros(1, 6, 5, 64)
    assert redundancy_fits(heads, heads)
    assert not redundancy_fits(heads, heads.float())


@pytest.mark.usefixtures("_ampere")
def test_who_counts_operations_sees_plain_ones(on_gpu: Tensor) -> None:
    with FlopCounterMode(display=False):
        assert not triton_wanted(on_gpu)


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
        return x + 1 if triton_wanted(x) or not _triton_switch._capable(0) else x + 2

    compiled = torch.compile(chosen, fullgraph=True, backend="eager")
    assert float(compiled(torch.zeros(()))) == 2


@pytest.mark.usefixtures("_ampere")
def test_exports_take_plain_operations(on_gpu: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    assert not triton_wanted(on_gpu)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_the_benchmark_says_what_it_needs() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 2, finished.stderr
    assert finished.stderr.count("\n") == 1
    assert "NVIDIA GPU" in finished.stderr
