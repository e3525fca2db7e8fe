"""What keeps a training from writing, where rights and links are concerned."""

import os
from pathlib import Path

import pytest

from nnunet_gdla.commands import checks
from nnunet_gdla.commands.doctor.places import check_places
from nnunet_gdla.commands.findings import Level


@pytest.mark.parametrize("closed", ["results", "model", "fold_0", "fold_0/progress.png", "prepared"])
def test_a_place_that_cannot_be_written_fails(closed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, prepared = tmp_path / "results" / "Dataset801_Made" / "model", tmp_path / "prepared"
    prepared.mkdir()
    path = {"results": tmp_path / "results", "prepared": prepared, "model": model}.get(closed, model / closed)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch() if path.suffix else path.mkdir(exist_ok=True)
    assert not list(check_places(model, 0, prepared))
    monkeypatch.setattr(os, "access", lambda asked, _: Path(asked) != path)  # root may write everywhere
    (finding,) = check_places(model, 0, prepared)
    assert (finding.level, finding.detail) == (Level.FAIL, f"{path} cannot be written; a training writes there")


def test_a_link_that_leads_nowhere_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results"
    results.symlink_to(tmp_path / "gone")
    (finding,) = check_places(results / "Dataset801_Made" / "model", 0, tmp_path)
    assert finding.detail == f"{results} is no folder; a training needs one there"
    monkeypatch.setenv("nnUNet_results", str(results))
    levels = {finding.title: finding.level for finding in checks.check_folders()}
    assert levels["nnUNet_results"] is Level.FAIL
