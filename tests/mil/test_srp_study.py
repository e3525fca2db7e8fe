"""The study's machinery, on sizes that say nothing about the methods."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import srp_study


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(srp_study, "SEEDS", (0, 1))
    monkeypatch.setattr(srp_study, "STRENGTHS", {0.5: 3.0})
    monkeypatch.setattr(srp_study, "SIZES", {"train": 16, "val": 8, "test": 12})
    monkeypatch.setitem(srp_study.SETTINGS, "epochs", 1)


def test_a_seed_has_its_own_slides_and_all_methods_share_them() -> None:
    first, again, other = (srp_study.make_parts(0.5, 3.0, seed)[0]["train"] for seed in (0, 0, 1))
    assert first.features.equal(again.features)
    assert not first.features.equal(other.features)
    assert first.labels.float().mean() == 0.5
    assert first.graph.index.shape == (16, 60, 8)


def test_training_is_the_same_again_and_starts_from_the_same_weights() -> None:
    parts, _ = srp_study.make_parts(0.5, 3.0, 0)
    runs = [srp_study.train("base", parts, 0) for _ in range(2)]
    assert {name: runs[0][name] for name in runs[0] if name != "seconds"} == {
        name: runs[1][name] for name in runs[1] if name != "seconds"
    }
    assert runs[0]["gates"] == []
    assert len(srp_study.train("srp", parts, 0)["gates"]) == 2


def test_results_are_read_back_and_foreign_ones_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "study.jsonl"
    tasks = [(seed, 0.5, [*srp_study.METHODS, "readers"], float("inf")) for seed in srp_study.SEEDS]
    for task in tasks:
        with path.open("a") as file:
            file.writelines(json.dumps(result) + "\n" for result in srp_study.run_methods(task))
    before = path.read_bytes()
    srp_study.run_missing(path, 1, 0.0)
    assert path.read_bytes() == before
    results = srp_study.finished(path)
    assert len(results) == 10
    srp_study.print_tables(results)
    assert "SRP - base" in capsys.readouterr().out
    srp_study.draw(results, tmp_path / "study.png")
    assert (tmp_path / "study.png").is_file()
    monkeypatch.setitem(srp_study.SETTINGS, "lr", 1.0)
    with pytest.raises(SystemExit, match="other settings"):
        srp_study.finished(path)


def test_nothing_is_started_once_the_time_is_over() -> None:
    assert srp_study.run_methods((0, 0.5, ["base"], 0.0)) == []


def test_intervals_are_those_of_student() -> None:
    values = np.array([0.1, 0.2, 0.3, 0.4])
    mean, low, high = srp_study.interval(values)
    assert mean == pytest.approx(0.25)
    assert high - mean == pytest.approx(mean - low)
    assert high - mean == pytest.approx(3.182446 * values.std(ddof=1) / 2)
