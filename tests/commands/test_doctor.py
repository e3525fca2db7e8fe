import argparse
import json
import re
import sys
from pathlib import Path

import pytest

from nnunet_gdla import _register, cli
from nnunet_gdla.commands import checks, doctor
from nnunet_gdla.commands.findings import Finding, Level, failed, passed, run_check, warned
from nnunet_gdla.trainers import EXAMPLES
from tests.commands.damaged import DAMAGED, PNG
from tests.commands.made_datasets import make_dataset

FOLDERS = ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results")


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in FOLDERS:
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    for name in ("nnUNet_n_proc_DA", "nnUNet_def_n_proc", "nnUNet_compile"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("nnUNet_extTrainer", _register.shim_folder())
    return tmp_path / "nnUNet_raw"


def arguments(dataset: str | None) -> argparse.Namespace:
    return argparse.Namespace(
        dataset=dataset,
        plans=None,
        configuration="2d",
        fold=None,
        trainer="nnUNetTrainerGDLA",
        device="cpu",
        resume=False,
        full=False,
        json=False,
    )


def test_a_sound_environment_and_dataset_pass(raw: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_dataset(raw, *PNG)
    assert doctor.run(arguments("801")) == 0
    lines = capsys.readouterr().out.splitlines()
    findings = [line for line in lines if not line.startswith("      ")]
    assert all(re.match(r"(PASS|WARN)  \S.*: \S", line) for line in findings[:-2]), "\n".join(lines)
    for index, line in enumerate(lines):
        if line.startswith("WARN"):
            assert lines[index + 1].startswith("      fix: ")
    count = sum(line.startswith("PASS") for line in lines)
    missing = "the raw data are in order, plans and preprocessed data are missing; next, when nothing fails: "
    assert re.fullmatch(rf"{count} passed, \d+ warnings?, 0 failed: {missing}nnUNetv2_\w+ -d 801 -c 2d", lines[-1])
    text = "\n".join(lines)
    for name in (*EXAMPLES, "nnUNetPlannerGDLA"):
        assert f" {name}: found, from nnunet_gdla." in text
    for title in ("Python", "nnunetv2", "torch", "timm", *FOLDERS, "registration", "hooks of nnUNetTrainer"):
        assert f"\nPASS  {title}: " in f"\n{text}"
    for title in ("hooks of ExperimentPlanner", "encoder weights", "torch.compile", "training step", "plans"):
        assert f"\nPASS  {title}: " in text


@pytest.fixture
def _only_the_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_environment", lambda trainer, device: [])


@pytest.mark.usefixtures("_only_the_dataset")
def test_a_damaged_dataset_gives_exit_code_1(raw: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, spoil, *_ = DAMAGED["0/255 mask"]
    spoil(make_dataset(raw, *PNG))
    assert doctor.run(arguments("Dataset801_MadePng")) == 1
    output = capsys.readouterr().out
    assert re.search(r"^FAIL  label values: case_0\.png holds 255 .*\n {6}fix: divide the masks by 255", output, re.M)
    assert re.search(r"[1-9] failed: fix the FAIL items first", output)


@pytest.mark.usefixtures("_only_the_dataset")
def test_the_command_hands_its_options_over(raw: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_dataset(raw, *PNG)
    command = ["doctor", "-d", "801", "-p", "MyPlans", "-c", "2d", "-tr", "nnUNetTrainerGDLA_B0", "-device", "cpu"]
    assert cli.main(command) == 1
    assert "FAIL  plans: Dataset801_MadePng has no plans MyPlans, nor any others" in capsys.readouterr().out


@pytest.mark.usefixtures("_only_the_dataset")
def test_a_missing_dataset_gives_exit_code_1(raw: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.run(arguments("77")) == 1
    assert f"FAIL  dataset: 77 is not in {raw}" in capsys.readouterr().out


def test_a_check_that_breaks_is_a_finding_and_keeps_what_it_had_found() -> None:
    def check() -> list[Finding]:
        yield passed("torch", "is here")
        raise OSError("disk on fire")

    first, second = run_check("torch", check)
    assert first.level is Level.PASS
    assert second.level is Level.FAIL
    assert "OSError: disk on fire" in second.detail


def test_ctrl_c_is_no_finding() -> None:
    def check() -> list[Finding]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(run_check("torch", check))


@pytest.mark.parametrize("level", [Level.WARN, Level.FAIL])
def test_a_bad_finding_needs_a_fix(level: Level) -> None:
    with pytest.raises(ValueError, match="needs a fix"):
        Finding(level, "title", "detail")


def test_findings_print_their_fix_below() -> None:
    assert str(passed("a", "b")) == "PASS  a: b"
    assert str(passed("a", "b", "c")) == "PASS  a: b\n      hint: c"
    assert str(warned("a", "b", "c")) == "WARN  a: b\n      fix: c"
    assert str(failed("a", "b", "c")) == "FAIL  a: b\n      fix: c"


def only(findings: list[Finding], level: Level) -> list[str]:
    return [f"{finding.title}: {finding.detail}" for finding in findings if finding.level is level]


def test_folders_that_are_unset_missing_or_read_only(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert only(list(checks.check_folders()), Level.PASS) == [f"{name}: {raw.parent / name}" for name in FOLDERS]
    monkeypatch.delenv("nnUNet_results")
    monkeypatch.setenv("nnUNet_raw", str(raw / "typo"))
    monkeypatch.setattr(checks.os, "access", lambda path, mode: False)
    findings = list(checks.check_folders())
    assert only(findings, Level.WARN) == ["nnUNet_results: not set (trained models)"]
    assert findings[2].fix == "export nnUNet_results=/path/to/nnUNet_results"
    assert [line.split(":")[0] for line in only(findings, Level.FAIL)] == ["nnUNet_raw", "nnUNet_preprocessed"]
    monkeypatch.setenv("nnUNet_raw", str(raw))
    assert only(list(checks.check_folders()), Level.PASS) == [f"nnUNet_raw: {raw} (read-only, which is enough)"]


@pytest.mark.parametrize(
    ("name", "value", "level"),
    [
        ("nnUNet_n_proc_DA", "0", Level.WARN),
        ("nnUNet_n_proc_DA", "two", Level.FAIL),
        ("nnUNet_def_n_proc", "0", Level.FAIL),
        ("nnUNet_def_n_proc", "", Level.FAIL),
    ],
)
def test_numbers_of_processes(raw: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, level: Level) -> None:
    assert {finding.level for finding in checks.check_processes("cpu")} == {Level.PASS}
    monkeypatch.setenv(name, value)
    (problem,) = [finding for finding in checks.check_processes("cpu") if finding.level is not Level.PASS]
    assert (problem.title, problem.level) == (name, level)
    assert f"export {name}=" in problem.fix


def test_small_machines_are_told_what_to_set(raw: Path) -> None:
    (finding,) = checks.check_processes("cpu")
    for setting in ("nnUNet_def_n_proc=1", "nnUNet_n_proc_DA=1", "nnUNet_compile=f", "-npfp 1 -np 1", "-npp 0 -nps 0"):
        assert setting in finding.fix


def test_compiling_is_explained(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (off,) = checks.check_compile("cpu")
    assert off.detail == "off in training: nnU-Net never compiles on a CPU"
    monkeypatch.setattr(checks.shutil, "which", lambda name: None)
    (broken,) = checks.check_compile("cuda")
    assert broken.level is Level.FAIL
    assert "no C compiler" in broken.detail
    assert "export nnUNet_compile=f" in broken.fix
    monkeypatch.setenv("nnUNet_compile", "f")
    (switched_off,) = checks.check_compile("cuda")
    assert (switched_off.level, switched_off.detail) == (Level.PASS, "off in training: nnUNet_compile=f")


@pytest.mark.parametrize(
    ("package", "version", "good"),
    [
        ("nnunetv2", "2.8.0", True),
        ("nnunetv2", "2.7.9", False),
        ("nnunetv2", "3.0", False),
        ("nnunetv2", "3.0.0a1", False),
        ("torch", "2.14.1+cu130", True),
        ("torch", "2.9.1", False),
        ("torch", "2.7.1", False),
        ("timm", "1.0.15", False),
        ("timm", "1.1.0.dev0", True),
    ],
)
def test_versions(monkeypatch: pytest.MonkeyPatch, package: str, version: str, good: bool) -> None:
    monkeypatch.setattr(checks.importlib.metadata, "version", lambda name: version)
    check = {"nnunetv2": checks.check_nnunet, "torch": lambda: checks.check_torch("cpu"), "timm": checks.check_timm}
    levels = [finding.level for finding in check[package]()]
    assert (Level.FAIL not in levels) == good


def test_the_device_is_found_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert doctor._best_device() == "cuda"
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert doctor._best_device() == "cpu"
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    assert doctor._best_device() == "cpu"


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.importlib.util, "find_spec", lambda name: None)
    (problem,) = checks.check_timm()
    assert (problem.title, problem.level, problem.fix) == ("timm", Level.FAIL, 'pip install "timm>=1.0.16"')
    (problem,) = checks.check_torch("cpu")
    assert (problem.title, problem.level, problem.fix) == ("torch", Level.FAIL, 'pip install "torch>=2.8,!=2.9.*"')


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_a_device_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    (problem,) = [finding for finding in checks.check_torch(device) if finding.level is Level.FAIL]
    assert problem.detail == f"{device} is not available to torch"
    assert "-device cpu" in problem.fix


def test_a_training_step_that_is_not_finite_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch, "randn", lambda *shape, device: torch.full(shape, torch.nan, device=device))
    (problem,) = checks.check_training_step("cpu")
    assert problem.level is Level.FAIL
    assert problem.detail.startswith("loss nan")


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_a_device_that_is_not_there_gives_one_failure(raw: Path, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """S18: what needs the device is left out, it would only break."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    environment = dict(doctor._environment("nnUNetTrainerGDLA", device))
    checked = ("torch", "torch.compile", "training step")
    findings = [finding for title in checked for finding in run_check(title, environment[title])]
    (problem,) = [finding for finding in findings if finding.level is Level.FAIL]
    assert problem.detail == f"{device} is not available to torch"
    assert not {"torch.compile", "training step"} & {finding.title for finding in findings}


@pytest.mark.parametrize("name", ["nnUNetTrainerGDLA_WRONG", "Wrong"])
def test_a_wrong_trainer_is_named_once(raw: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """S18: our sentence with the rule of names was printed for each look-up."""
    environment = dict(doctor._environment(name, "cpu"))
    checked = ("trainers", "encoder weights")
    findings = [finding for title in checked for finding in run_check(title, environment[title])]
    (problem,) = [finding for finding in findings if finding.level is Level.FAIL]
    assert problem.title == f"trainer {name}"
    assert (f"has no trainer '{name}'" in problem.detail) == (name != "Wrong")
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("_only_the_dataset")
def test_findings_as_json(raw: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_dataset(raw, *PNG)
    assert cli.main(["doctor", "-d", "801", "-device", "cpu", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {finding["level"] for finding in report["findings"]} == {"PASS"}
    assert report["findings"][-1] == {
        "level": "PASS",
        "title": "plans",
        "text": "plans: no nnUNetPlans for Dataset801_MadePng yet",
        "advice": "next, when nothing fails: nnUNetv2_plan_and_preprocess -d 801 -c 2d",
    }
    assert (report["passed"], report["warnings"], report["failed"]) == (len(report["findings"]), 0, 0)
    assert report["ready_to_train"] is False
    assert "plans and preprocessed data are missing" in report["verdict"]
    (raw / "Dataset801_MadePng" / "labelsTr" / "case_1.png").unlink()
    assert cli.main(["doctor", "-d", "801", "-device", "cpu", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["failed"] == 1
    assert [finding["text"] for finding in report["findings"] if finding["level"] == "FAIL"] == [
        "missing label: case_1.png"
    ]


@pytest.mark.parametrize("fold", ["-1", "first", "0.5"])
def test_folds_are_numbers_or_all(fold: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["doctor", "-d", "801", "-f", fold])
    assert "argument -f/--fold" in capsys.readouterr().err
