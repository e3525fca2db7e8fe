"""nnU-Net's own command, on a machine that has no encoder weights and cannot fetch them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainers.nnunet_project import Project

OFFLINE = {"HF_HUB_OFFLINE": "1"}
UNREACHABLE = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"}


@pytest.mark.slow
@pytest.mark.parametrize("network", [OFFLINE, UNREACHABLE], ids=["offline", "unreachable"])
def test_the_command_ends_with_one_sentence(network: dict[str, str], project: Project, tmp_path: Path) -> None:
    changes = network | {
        "NNUNET_GDLA_ENCODER_WEIGHTS": "imagenet",
        "HF_HOME": str(tmp_path / "hf"),
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": "1",
    }
    environment = {name: value for name, value in os.environ.items() if name not in ("HF_HUB_CACHE", "HF_ENDPOINT")}
    command = Path(sys.executable).with_name("nnUNetv2_train")
    done = subprocess.run(
        [command, str(project.dataset_id), "2d", "0", "-tr", "nnUNetTrainerGDLA_B0_1epoch", "-device", "cpu"],
        env=environment | changes,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    (sentence,) = [line for line in done.stderr.splitlines() if "ImageNet weights of pvt_v2_b0" in line]
    for part in ("model.safetensors", str(tmp_path / "hf"), "NNUNET_GDLA_ENCODER_WEIGHTS=none"):
        assert part in sentence
    assert done.stderr.strip().endswith(sentence)
    assert not list((tmp_path / "results").rglob("checkpoint_*"))
