"""`nnunet-gdla doctor --gpu`, with forms for CPU tensors in the place of the kernels and a clock of our own."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from nnunet_gdla.cli import main
from nnunet_gdla.commands.doctor import gpu
from nnunet_gdla.commands.findings import Finding, Level
from nnunet_gdla.ops._dispatch import OPERATORS, Form
from tests.fake_kernels import right_kernels


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Forms "triton" that are right; names of the operators in whose place they ran."""
    monkeypatch.setattr(gpu, "IMAGES", ((1, 12, 2),))
    monkeypatch.setattr(gpu, "SLIDES", (9,))
    return right_kernels(monkeypatch)


def a_card(launched: list[str], triton: float = 1e-3, compiled: Callable[..., Any] = lambda run: run) -> gpu.Card:
    """Everything takes 2 ms but what runs a kernel."""

    def seconds(run: Callable[[], object]) -> float:
        before = len(launched)
        run()
        return triton if len(launched) > before else 2e-3

    return gpu.Card("a card", torch.device("cpu"), seconds, compiled)


def findings(card: gpu.Card) -> list[Finding]:
    return list(gpu.check_card(card))


def test_kernels_that_agree_and_are_faster_are_recommended(launched: list[str]) -> None:
    found = findings(a_card(launched))
    assert {finding.level for finding in found} == {Level.PASS}
    titles = [finding.title for finding in found]
    assert titles[1:-1] == [f"{name}, {dtype}" for dtype in ("float16", "bfloat16", "float32") for name in OPERATORS]
    assert "1 x 12 tokens, 2 x 32 channels, forward: plain 2000 us, compiled 2000 us, triton 1000 us" in found[1].detail
    assert "with backward: plain 2000 us, compiled 2000 us, triton 1000 us" in found[1].detail
    assert found[-1].detail == "the kernels agree and take 0.50 of the time of the plain form"
    assert found[-1].fix == "export NNUNET_GDLA_FORMS=triton,cpu,plain"


def test_kernels_that_are_no_faster_than_a_compiled_form_are_not(launched: list[str]) -> None:
    found = findings(a_card(launched, 1.95e-3))
    assert "take 0.97 of the time" in found[-1].detail
    assert found[-1].fix.startswith("leave NNUNET_GDLA_FORMS unset")


def test_a_kernel_that_is_wrong_fails_and_is_not_recommended(
    launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    correction = OPERATORS["correction"]
    monkeypatch.setitem(
        correction.forms, "triton", Form(lambda call: 2 * correction.forms["plain"].run(call), lambda _: None)
    )
    found = findings(a_card(launched))
    failed = [finding.title for finding in found if finding.level is Level.FAIL]
    assert failed == ["correction, float16", "correction, bfloat16", "correction, float32"]
    assert found[-1].level is Level.WARN
    assert "does not work on this card" in found[-1].detail


def test_what_cannot_be_compiled_or_does_not_fit_is_said(launched: list[str]) -> None:
    def broken(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def fail(call: Any) -> Any:  # noqa: ANN401
            raise RuntimeError("Failed to find C compiler\nand so on")

        return fail

    found = findings(a_card(launched, compiled=broken))
    assert "compiled failed (RuntimeError: Failed to find C compiler), triton" in found[1].detail
    assert found[-1].fix.startswith("export")

    def too_large(run: Callable[[], object]) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory")

    found = findings(gpu.Card("a card", torch.device("cpu"), too_large, lambda run: run))
    assert "triton out of memory" in found[1].detail
    assert found[-1].level is Level.WARN


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_machine_without_a_gpu_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--gpu"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("FAIL  GPU: nothing to check on this machine: PyTorch sees no GPU\n")
    assert "can stay unset (cpu,plain)" in out
