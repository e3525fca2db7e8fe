"""Finished runs that several tests look at.

The package is imported inside the fixtures: this file is read before the shape checks are put in.
"""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def classified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a cohort, two slides a patient, and a finished `run` of two classes."""
    return _finished(tmp_path_factory.mktemp("classified"), "classification")


@pytest.fixture(scope="session")
def survived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a cohort and a finished `run` of survival."""
    return _finished(tmp_path_factory.mktemp("survived"), "survival")


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of this test draw none: that takes longer than their training."""
    monkeypatch.setattr("nnunet_gdla.mil.finish.write_figures", lambda run: [])


def _finished(folder: Path, task: str) -> Path:
    from nnunet_gdla.mil import finish, report
    from nnunet_gdla.mil.fit import fit
    from tests.mil.small_cohorts import make_cohort, small_config

    make_cohort(folder, task, slides=32, slides_per_patient=2)
    with pytest.MonkeyPatch.context() as patch:  # with figures, whatever the test does that asks first
        patch.setattr(finish, "write_figures", report.write_figures)
        fit(small_config(folder, task), run=folder / "run")
    return folder
