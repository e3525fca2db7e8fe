from pathlib import Path
from typing import Any

import pytest

from nnunet_gdla.commands.dataset_check import check_dataset
from nnunet_gdla.commands.findings import Finding, Level
from tests.commands.damaged import PNG
from tests.commands.made_datasets import make_dataset, write_description


def findings_on(folder: Path) -> list[Finding]:
    return list(check_dataset(folder, num_threads=2))


@pytest.mark.parametrize(
    ("changes", "title", "detail"),
    [
        ({"channel_names": None}, "channel_names", "does not name the input channels"),
        ({"channel_names": ["US"]}, "channel_names", "does not name the input channels"),
        ({"channel_names": {"1": "US"}}, "channel_names", "numbered 1"),
        ({"file_ending": None}, "file_ending", "no file_ending"),
        ({"file_ending": ".jpg"}, "file_ending", ".jpg is lossy"),
        ({"file_ending": "png"}, "file_ending", "must begin with a dot"),
        ({"numTraining": None}, "dataset.json", "numTraining is missing"),
        ({"numTraining": "6"}, "numTraining", "it is '6'"),
        ({"numTraining": 6.5}, "numTraining", "it is 6.5"),
        ({"labels": None}, "labels", "no labels object"),
        ({"labels": {"0": "background", "1": "object"}}, "labels", "the wrong way round"),
        ({"labels": {"object": 1}}, "labels", "background is missing"),
        ({"labels": {"background": 1, "object": 0}}, "labels", "background is 1"),
        ({"labels": {"background": 0}}, "labels", "no class besides background"),
        ({"labels": {"background": 0, "object": "1"}}, "labels", "'object' is '1'"),
        ({"labels": {"background": 0, "object": 255}}, "labels", "0, 255 are not consecutive"),
        ({"labels": {"background": 0, "object": 1, "ignore": 3}}, "labels", "ignore is 3, the highest class is 1"),
        ({"labels": {"background": 0, "all": [1, 2], "core": 2}}, "regions_class_order", "it is None"),
        (
            {"labels": {"background": 0, "all": [1, 2], "core": 2}, "regions_class_order": [1]},
            "regions_class_order",
            "1 entry for 2 regions (all, core)",
        ),
        (
            {"labels": {"background": 0, "all": [1, 2], "core": 2}, "regions_class_order": [1, 5]},
            "regions_class_order",
            "[5] are no label values",
        ),
    ],
)
def test_a_wrong_dataset_json_is_named(tmp_path: Path, changes: dict[str, Any], title: str, detail: str) -> None:
    folder = make_dataset(tmp_path, *PNG)
    write_description(folder, **changes)
    problems = [finding for finding in findings_on(folder) if finding.level is not Level.PASS]
    assert [problem.title for problem in problems] == [title]
    assert problems[0].level is Level.FAIL
    assert detail in problems[0].detail


@pytest.mark.parametrize("text", [None, "{", "[1, 2]"])
def test_a_dataset_json_that_cannot_be_read_is_named(tmp_path: Path, text: str | None) -> None:
    folder = make_dataset(tmp_path, *PNG)
    path = folder / "dataset.json"
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    (problem,) = findings_on(folder)
    assert problem.level is Level.FAIL
    assert str(path) in problem.detail
