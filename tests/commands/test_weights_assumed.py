"""`nnunet-gdla weights convert` says what it takes for granted."""

from pathlib import Path

import pytest
import torch

from tests.commands.weights_cases import released, run_weights


@pytest.mark.parametrize(
    ("decoder", "options", "said"),
    [
        (
            "self",
            "",
            "heads 1, 2, 5 at strides 4, 8, 16 (else --num-heads H4 H8 H16); rotary positions on (else --rope off)",
        ),
        ("linear", "--num-heads 1 2 5", "rotary positions off (else --rope on)"),
        ("linear", "--rope on", "heads 1, 2, 5 at strides 4, 8, 16 (else --num-heads H4 H8 H16)"),
        ("linear", "--rope on --num-heads 1 2 5", None),
        ("diff", "", "rotary positions on (else --rope off)"),
        ("gdla", "", None),
    ],
)
def test_what_is_assumed_is_said(
    decoder: str, options: str, said: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "best.pth"
    torch.save(released(1, 3, decoder), file)
    chosen = ["--decoder", decoder] if decoder in ("self", "linear") else []
    assert run_weights("convert", file, "--out", tmp_path / "model", *chosen, *options.split()) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("assumed")]
    assert lines == ([] if said is None else [f"assumed:       {said}: the tensors cannot tell, ask who trained it"])
