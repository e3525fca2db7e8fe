"""The Triton kernels as NVIDIA's GPUs get them: compiled for Ampere, Ada and Hopper, without a GPU."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed here")

# What one program may take of a multiprocessor's shared memory, in bytes.
SHARED = {80: 163 * 1024, 86: 99 * 1024, 89: 99 * 1024, 90: 227 * 1024}
SLABS = ("slab", "out", "of_slab", "grad", "y", "v", "z", "of_y")
FULL_PRECISION = ("partial", "state", "sums", "lam", "weight", "beta", "dot", "norm", "axis", "of_beta")
POINTERS = dict.fromkeys(FULL_PRECISION, "*fp32") | {"key_mask": "*i1", "mask": "*i1", "index": "*i64"}
ALIGNED = re.compile(r".*_[bnh]|tokens|count|length")
STEPS_OF_ONE = re.compile(r".*_[cd]|graph_k")
EPS = {"NORM_EPS": 1e-5, "EPS": 1e-6}
# Kernel by name: the kernel's file, its tiles, what it is compiled for beside the sizes.
DIFFERENTIAL: dict[str, tuple[str, str, dict[str, Any]]] = {
    "state_kernel": ("forward", "STATE_TILES", {"MASKED": True}),
    "output_kernel": ("forward", "OUTPUT_TILES", {"DIFFERENTIAL": True, "GATE": "silu", **EPS}),
    "query_gradient_kernel": ("backward", "QUERY_TILES", {"DIFFERENTIAL": True, "GATE": "silu", **EPS}),
    "key_gradient_kernel": ("backward", "KEY_TILES", {"DIFFERENTIAL": True, "MASKED": True}),
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def compiled(kernel: Any, capability: int, dtype: str, options: dict[str, int], **constants: Any) -> Any:  # noqa: ANN401
    """Compile for contiguous channels and sizes that are multiples of 16, which is what networks have."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    # A step of 1 is a constant to Triton.
    ones = {name for name in kernel.arg_names if name not in POINTERS and STEPS_OF_ONE.fullmatch(name)}
    constants = dict.fromkeys(ones, 1) | constants
    types = POINTERS | dict.fromkeys(SLABS, f"*{dtype}") | dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, "i32") for name in kernel.arg_names}
    attributes = {
        (place,): [["tt.divisibility", 16]]
        for place, (name, kind) in enumerate(signature.items())
        if kind.startswith("*") or (kind == "i32" and ALIGNED.fullmatch(name))
    }
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=places, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def check_differential(name: str, capability: int, dtype: str, width: int, **more: int) -> str:
    """Compile as the launcher does, look at memory and instructions, and return the PTX."""
    from triton import language as tl

    from nnunet_gdla.ops import _triton_differential as launcher

    file, tiles, constants = DIFFERENTIAL[name]
    module = importlib.import_module(f"nnunet_gdla.ops._triton_differential_{file}")
    half, full = launcher.padded_widths(width)
    tile = getattr(launcher, tiles)[full]
    sizes = {"WIDTH": width, "ROWS": tile.rows, "D": half, "V": full, "PRECISION": launcher.PRECISION}
    options = {"num_warps": tile.warps, "num_stages": tile.stages}
    result = compiled(getattr(module, name), capability, dtype, options, ACC=tl.float32, **sizes, **constants, **more)
    assert result.metadata.shared <= SHARED[capability]
    ptx = result.asm["ptx"]
    assert f".target sm_{capability}" in ptx
    assert "mma.sync" in ptx or "wgmma.mma_async" in ptx, "no tensor cores"
    return ptx


@pytest.mark.parametrize("capability", SHARED)
@pytest.mark.parametrize("name", DIFFERENTIAL)
def test_differential_kernels_use_tensor_cores_and_fit(name: str, capability: int) -> None:
    ptx = check_differential(name, capability, "fp16", 32)
    assert re.search(r"ld\.global\.v4|cp\.async\.cg", ptx), "no loads of 16 bytes"


@pytest.mark.slow
@pytest.mark.parametrize("name", DIFFERENTIAL)
@pytest.mark.parametrize(
    ("capability", "width", "dtype"), [(86, 128, "fp32"), (90, 128, "fp32"), (89, 64, "bf16"), (90, 24, "fp16")]
)
def test_other_widths_and_dtypes_fit_too(name: str, capability: int, width: int, dtype: str) -> None:
    check_differential(name, capability, dtype, width)


@pytest.mark.slow
@pytest.mark.parametrize("name", DIFFERENTIAL)
def test_sizes_and_steps_of_one_compile(name: str) -> None:
    # Triton takes a number that is 1 as a constant: one head, one token, one block; channels before tokens
    names = {"state_kernel": {"blocks"}, "query_gradient_kernel": {"blocks"}}.get(name, set())
    ones = dict.fromkeys({"heads", "tokens", "slab_n", *names}, 1)
    check_differential(name, 80, "fp32", 16, **ones)


def compiled_redundancy(name: str, capability: int, dtype: str, heads: int, width: int) -> Any:  # noqa: ANN401
    """Compile as the launcher does for 8 slots."""
    from triton import language as tl

    from nnunet_gdla.ops import _triton_redundancy as launcher
    from nnunet_gdla.ops import _triton_redundancy_kernels as kernels

    padded = launcher._padded(heads), launcher._padded(width)
    rows = max(1, launcher.TILE // (padded[0] * padded[1]))
    sizes = {"WIDTH": width, "ROWS": rows, "H": padded[0], "D": padded[1], "SLOTS": 8, "ACC": tl.float32}
    more = {"WITH_AXIS": False} if name == "alignment_kernel" else {}
    result = compiled(getattr(kernels, name), capability, dtype, {"num_warps": 4}, **sizes, **more)
    assert result.metadata.shared <= SHARED[capability]
    return result


@pytest.mark.parametrize("capability", SHARED)
@pytest.mark.parametrize("name", ["alignment_kernel", "correction_kernel", "correction_gradient_kernel"])
def test_redundancy_kernels_fit(name: str, capability: int) -> None:
    result = compiled_redundancy(name, capability, "fp16", 6, 64)
    assert re.search(r"ld\.global\.v[24]\.b32", result.asm["ptx"]), "no wide loads"


@pytest.mark.slow
def test_the_widest_row_of_a_correction_fits() -> None:
    compiled_redundancy("correction_gradient_kernel", 86, "fp32", 32, 256)
