"""What the tests of `nnunet-gdla plan` share."""

import argparse
import json
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nnunetv2.experiment_planning.dataset_fingerprint import fingerprint_extractor

from tests.trainers.nnunet_project import Project, QuickFingerprint, threads_for_pools

__all__ = ["dataset", "edit", "identifier", "parse", "quick_fingerprint", "stamps"]


def parse(line: str) -> argparse.Namespace:
    from nnunet_gdla.commands import arguments_plan  # a conftest may not import ours: the shape checks come first

    parser = argparse.ArgumentParser(prog="nnunet-gdla plan")
    arguments_plan.plan(parser)
    return parser.parse_args(shlex.split(line))


@pytest.fixture
def dataset(made_project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """The tiny project, stock plans and stock data included, in a copy that a test may change."""
    copy = Project(tmp_path)
    for part in ("raw", "preprocessed"):
        shutil.copytree(made_project.root / part, tmp_path / part)
    copy.set_folders(monkeypatch, tmp_path / "results")
    monkeypatch.setenv("nnUNet_n_proc_DA", "1")
    with threads_for_pools():
        yield copy


def stamps(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


def identifier(dataset: Project, plans: str = "nnUNetGDLAPlans") -> str:
    named: str = dataset.plans(plans)["configurations"]["2d"]["data_identifier"]
    return named


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.fixture
def quick_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint_extractor, "DatasetFingerprintExtractor", QuickFingerprint)
