import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import timm
import torch

from nnunet_gdla.commands import plans_check
from nnunet_gdla.commands.checks import check_weights
from nnunet_gdla.commands.findings import Finding, Level
from nnunet_gdla.networks import PVTGDLA
from nnunet_gdla.networks.decoder import DECODERS, DecoderKind
from nnunet_gdla.networks.pvt_gdla import PLAN_STRIDES
from nnunet_gdla.plans.nnunet_gdla_memory import GIB, Device, training_memory
from nnunet_gdla.plans.nnunet_gdla_sizes import NetworkSize, count_parameters

DATASET = "Dataset801_Made"
STOCK = {
    "network_class_name": "dynamic_network_architectures.architectures.unet.PlainConvUNet",
    "arch_kwargs": {"strides": [[1, 1], [2, 2]]},
    "_kw_requires_import": [],
}


def ours(encoder: str = "pvt_v2_b0", decoder: str = "gdla") -> dict[str, Any]:
    return {
        "network_class_name": "nnunet_gdla.networks.PVTGDLA",
        "arch_kwargs": {"encoder": encoder, "decoder": decoder, "strides": PLAN_STRIDES},
        "_kw_requires_import": [],
    }


@pytest.fixture
def preprocessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("nnUNet_preprocessed", str(tmp_path))
    (tmp_path / DATASET).mkdir()
    return tmp_path


def write_plans(preprocessed: Path, architecture: dict[str, Any], batch_size: int = 2) -> None:
    flat = {"patch_size": [64, 64], "batch_size": batch_size, "architecture": architecture}
    deep = flat | {"patch_size": [16, 64, 64]}
    plans = {
        "dataset_name": DATASET,
        "plans_name": "nnUNetPlans",
        "label_manager": "LabelManager",
        "configurations": {"2d": flat, "3d_fullres": deep, "2d_again": {"inherits_from": "2d"}},
    }
    labels = {"background": 0, "object": 1}
    folder = preprocessed / DATASET
    (folder / "nnUNetPlans.json").write_text(json.dumps(plans))
    (folder / "dataset.json").write_text(json.dumps({"channel_names": {"0": "US"}, "labels": labels}))


def check(configuration: str = "2d", trainer: str = "nnUNetTrainerGDLA", plans: str = "nnUNetPlans") -> list[Finding]:
    return list(plans_check.check_plans(DATASET, plans, configuration, trainer, "cpu"))


@pytest.mark.parametrize("architecture", [STOCK, ours()])
def test_a_plan_that_fits_passes(preprocessed: Path, architecture: dict[str, Any]) -> None:
    write_plans(preprocessed, architecture)
    plans, memory, *_ = check()
    assert plans.level is Level.PASS
    assert plans.detail == "2d: patch [64, 64], batch 2, PVTGDLA; 3d_fullres in there is not supported"
    assert (memory.title, memory.level) == ("memory", Level.PASS)
    assert check("2d_again")[0].level is Level.PASS


@pytest.mark.parametrize(
    ("configuration", "state"), [("3d_fullres", "is not supported: this network is 2D"), ("2D", "does not exist")]
)
def test_a_configuration_that_cannot_be_trained_fails(preprocessed: Path, configuration: str, state: str) -> None:
    write_plans(preprocessed, STOCK)
    (problem,) = check(configuration)
    assert (problem.level, problem.detail) == (Level.FAIL, f"configuration {configuration} {state}")
    assert problem.fix == "use -c 2d or -c 2d_again"


@pytest.mark.parametrize(
    ("trainer", "named"), [("nnUNetTrainerPVTSelfAttn", "decoder 'self'"), ("nnUNetTrainerGDLA_B3", "pvt_v2_b3")]
)
def test_a_trainer_whose_name_contradicts_the_plans_fails(preprocessed: Path, trainer: str, named: str) -> None:
    write_plans(preprocessed, ours())
    (problem,) = check(trainer=trainer)
    assert problem.level is Level.FAIL
    assert named in problem.detail


def test_no_plans_is_no_problem(preprocessed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (none,) = check()
    assert (none.level, none.fix) == (Level.PASS, "next, when nothing fails: nnUNetv2_plan_and_preprocess -d 801 -c 2d")
    write_plans(preprocessed, STOCK)
    (other,) = check(plans="nnUNetGDLAPlans")
    assert (other.level, other.fix, other.pending) == (Level.PASS, "there is -p nnUNetPlans", True)
    monkeypatch.delenv("nnUNet_preprocessed")
    assert [finding.level for finding in check()] == [Level.PASS]


def test_plans_that_were_asked_for_must_be_there_and_all_others_are_offered_nearest_first(preprocessed: Path) -> None:
    """S3: whatever their names are."""
    write_plans(preprocessed, STOCK)
    folder = preprocessed / DATASET
    (folder / "dataset_fingerprint.json").write_text("{}")
    for name in ("ResEncM", "mine_fp32", "nnUNetGDLAPlans"):
        (folder / f"{name}.json").write_text((folder / "nnUNetPlans.json").read_text())
    for typo, first in (("nnUNetPlan", "nnUNetPlans"), ("nnunetgdlaplans", "nnUNetGDLAPlans"), ("ResEncL", "ResEncM")):
        (problem,) = plans_check.check_plans(DATASET, typo, "2d", "nnUNetTrainerGDLA", "cpu", asked=True)
        assert (problem.level, problem.detail) == (Level.FAIL, f"{DATASET} has no plans {typo}")
        assert problem.fix.startswith(f"there is -p {first}, -p ")
        offered = problem.fix.removeprefix("there is -p ").split(", -p ")
        assert sorted(offered) == ["ResEncM", "mine_fp32", "nnUNetGDLAPlans", "nnUNetPlans"]


def test_plans_that_cannot_be_read_are_named(preprocessed: Path) -> None:
    write_plans(preprocessed, STOCK)
    (preprocessed / DATASET / "nnUNetPlans.json").write_text("{")
    (problem,) = check()
    assert problem.level is Level.FAIL
    assert "nnUNetPlans.json cannot be read" in problem.detail


@pytest.mark.parametrize(
    ("free", "total", "level"), [(64, 64, Level.PASS), (0.01, 64, Level.WARN), (0.01, 0.02, Level.FAIL)]
)
def test_memory_is_compared_with_what_there_is(
    preprocessed: Path, monkeypatch: pytest.MonkeyPatch, free: float, total: float, level: Level
) -> None:
    write_plans(preprocessed, ours(), batch_size=12)
    monkeypatch.setattr(plans_check, "_memory_gib", lambda device: (free, total))
    (memory,) = [finding for finding in check() if finding.title == "memory"]
    assert memory.level is level
    assert f"{free:.1f} of {total:.1f} GiB" in memory.detail


def test_the_memory_of_this_machine_is_plausible() -> None:
    memory = plans_check._memory_gib("cpu")
    assert memory is not None
    assert 0 < memory[0] <= memory[1] < 100_000


def test_the_estimate_is_that_of_the_planner(preprocessed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_plans(preprocessed, ours("pvt_v2_b1"), batch_size=12)
    size = NetworkSize("pvt_v2_b1", "gdla", 1, 2)
    devices: tuple[tuple[Device, str], ...] = (("cuda", "float16"), ("cpu", "float32"), ("mps", "float32"))
    for device, precision in devices:
        needed = training_memory(size, (64, 64), 12, device).total
        free = training_memory(size, (64, 64), 7, device).total + 2**20
        monkeypatch.setattr(plans_check, "_memory_gib", lambda device, free=free: (free / GIB, 64.0))
        findings = plans_check.check_plans(DATASET, "nnUNetPlans", "2d", "nnUNetTrainerGDLA", device)
        (memory,) = [finding for finding in findings if finding.title == "memory"]
        assert memory.level is Level.WARN
        assert memory.detail.startswith(f"a training step needs about {needed / GIB:.1f} GiB in {precision}")
        assert "with batch_size 7, use a smaller encoder" in memory.fix


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_size_of_a_network_is_what_it_was_built_with(decoder: DecoderKind) -> None:
    network = PVTGDLA(4, 3, encoder="pvt_v2_b0", decoder=decoder)
    size = plans_check.network_size(network)
    assert size == NetworkSize("pvt_v2_b0", decoder, 4, 3)
    assert count_parameters(size) == sum(parameter.numel() for parameter in network.parameters())


def test_another_encoder_in_the_plans_has_its_weights_checked(
    preprocessed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NNUNET_GDLA_ENCODER_WEIGHTS", "imagenet")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "empty"))
    write_plans(preprocessed, ours("pvt_v2_b0"))
    (weights,) = [finding for finding in check() if finding.title == "encoder weights"]
    assert weights.level is Level.WARN
    assert "pvt_v2_b0" in weights.detail
    assert "NNUNET_GDLA_ENCODER_WEIGHTS=none" in weights.fix


def test_weights_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    monkeypatch.setenv("NNUNET_GDLA_ENCODER_WEIGHTS", str(path))
    (missing,) = check_weights("pvt_v2_b0")
    assert (missing.level, missing.detail) == (Level.FAIL, f"NNUNET_GDLA_ENCODER_WEIGHTS={path} is no file")
    torch.save(timm.create_model("pvt_v2_b0").state_dict(), path)
    (good,) = check_weights("pvt_v2_b0")
    assert good.level is Level.PASS
    assert "loaded all" in good.detail
    (other,) = check_weights("pvt_v2_b1")
    assert other.level is Level.FAIL
    assert "does not fit pvt_v2_b1" in other.detail
    monkeypatch.setenv("NNUNET_GDLA_ENCODER_WEIGHTS", "none")
    (scratch,) = check_weights("pvt_v2_b0")
    assert (scratch.level, scratch.detail) == (
        Level.PASS,
        "NNUNET_GDLA_ENCODER_WEIGHTS=none: trainings start from scratch",
    )
