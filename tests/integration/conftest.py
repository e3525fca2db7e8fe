"""Folders that several tests and several workers share."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.stages import prepared, trained
from tests.integration.workspace import Workspace


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for the whole test run."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "integration"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(autouse=True)
def _no_checkpoints_stay(tmp_path: Path) -> Iterator[None]:
    """Checkpoints are large, and pytest keeps the folders of several runs."""
    yield
    for checkpoint in tmp_path.rglob("checkpoint_*.pth"):
        checkpoint.unlink()


@pytest.fixture
def classes(shared_folder: Path, tmp_path: Path) -> tuple[Workspace, str]:
    """A dataset with classes, planned, with a results folder of the test's own; and its name."""
    data, dataset = prepared(shared_folder, "classes")
    return Workspace.below(tmp_path, like=data), dataset


@pytest.fixture
def trained_classes(shared_folder: Path) -> tuple[Workspace, str]:
    """The dataset with classes and a model of ours, for reading only; and its name."""
    return trained(shared_folder)
