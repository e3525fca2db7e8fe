"""Commands that docs/trouble.md gives for what nnU-Net refuses (S18, S23) are taken by nnU-Net's own parsers."""

import re
import shlex
import sys
from typing import Any

import nnunetv2.evaluation.find_best_configuration as best
import nnunetv2.postprocessing.remove_connected_components as postprocessing
import pytest

from tests.paths import ROOT

PAGE = " ".join((ROOT / "docs" / "trouble.md").read_text(encoding="utf-8").split())


def _command(name: str) -> list[str]:
    (line,) = re.findall(rf"`({name} [^`]+ -[^`]+)`", PAGE)
    return shlex.split(line.replace(" ID ", " 4 "))


def test_folds_can_be_named_where_five_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(best, "find_best_configuration", lambda dataset, models, **options: asked.update(options))
    monkeypatch.setattr(best, "maybe_convert_to_dataset_name", str)
    monkeypatch.setattr(sys, "argv", _command("nnUNetv2_find_best_configuration"))
    best.find_best_configuration_entry_point()
    assert asked["folds"] == [0, 1]


def test_fold_all_is_refused_by_nnunet_and_its_postprocessing_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["nnUNetv2_find_best_configuration", "4", "-f", "all"])
    with pytest.raises(SystemExit):
        best.find_best_configuration_entry_point()
    refusal = capsys.readouterr().err
    assert "argument -f: invalid int value: 'all'" in refusal
    assert "argument -f: invalid int value: 'all'" in PAGE
    asked: list[Any] = []
    monkeypatch.setattr(postprocessing, "determine_postprocessing", lambda *args, **_: asked.extend(args))
    monkeypatch.setattr(sys, "argv", _command("nnUNetv2_determine_postprocessing"))
    postprocessing.entry_point_determine_postprocessing_folder()
    assert asked[0] == "MODEL/fold_all/validation"
