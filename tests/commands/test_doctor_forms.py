"""What doctor says of the forms of operators and of the matrix library."""

import pytest

from nnunet_gdla.commands import doctor
from nnunet_gdla.commands.doctor import forms
from nnunet_gdla.commands.findings import Level
from nnunet_gdla.ops import _dispatch, _products, use_forms


def test_forms_are_named_or_their_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(_dispatch.FORMS_VARIABLE, raising=False)
    with use_forms("cpu"):
        (finding,) = forms.check_forms()
    assert finding.detail == "operators may run as cpu, plain (by default)"
    with use_forms("triton"):
        (finding,) = forms.check_forms()
    assert "doctor --gpu" in finding.fix
    monkeypatch.setattr(_dispatch, "_named", [_dispatch._read({"NNUNET_GDLA_FORMS": "fast"})])
    (finding,) = forms.check_forms()
    assert finding.level is Level.FAIL
    assert "unknown form 'fast'" in finding.detail
    assert not list(doctor._training_step("cpu")), "one failure is enough"


@pytest.mark.parametrize(
    ("wish", "share", "hint"),
    [("", 0.5, "export NNUNET_GDLA_ONEDNN=1"), ("", 0.9, ""), ("1", 0.5, ""), ("1", 1.2, "unset NNUNET_GDLA_ONEDNN")],
)
def test_the_faster_matrix_library_is_a_hint(
    wish: str, share: float, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forms, "_share_of_onednn", lambda: share)
    monkeypatch.setattr(_products, "has_onednn", lambda: True)
    monkeypatch.setenv(_products.PRODUCTS_VARIABLE, wish)
    (finding,) = forms.check_products("cpu")
    assert (finding.level, finding.fix) == (Level.PASS, hint)
    assert f"oneDNN takes {share:.2f} of the time" in finding.detail
    assert not list(forms.check_products("cuda"))


def test_a_wrong_choice_of_library_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_products.PRODUCTS_VARIABLE, "yes")
    (finding,) = forms.check_products("cpu")
    assert finding.level is Level.FAIL


@pytest.mark.skipif(not _products.has_onednn(), reason="this PyTorch has no oneDNN")
def test_both_libraries_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "SIZES", ((64, 32, 32),))
    assert 0 < forms._share_of_onednn() < 100
