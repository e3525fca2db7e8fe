"""Our trainers compare the kernels that are named before nnU-Net's command compiles anything."""

import pytest

from nnunet_gdla.errors import UserError
from nnunet_gdla.ops import _dispatch, _self_check, use_forms
from nnunet_gdla.trainers import resolve
from tests.fake_kernels import right_kernels
from tests.trainers.nnunet_project import Project, make_trainer


def test_named_kernels_are_compared_when_the_network_is_built(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = right_kernels(monkeypatch)
    make_trainer(resolve("nnUNetTrainerGDLA_B0"), project).initialize()
    assert not launched
    with use_forms("triton"):
        make_trainer(resolve("nnUNetTrainerGDLA_B0"), project).initialize()
    assert {operator for operator, _ in _self_check._verdicts} == {"gated_differential_attention"}
    assert set(_self_check._verdicts.values()) == {_self_check.PASSED}


def test_a_variable_that_cannot_be_read_stops_before_the_first_epoch(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_dispatch, "_named", [_dispatch._read({"NNUNET_GDLA_FUSED": "0"})])
    with pytest.raises(UserError, match="NNUNET_GDLA_FUSED is no longer read"):
        make_trainer(resolve("nnUNetTrainerGDLA_B0"), project).initialize()
