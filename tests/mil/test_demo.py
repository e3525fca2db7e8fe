import argparse
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.cli import main
from nnunet_gdla.mil.commands import demo


def arguments(out: Path, **changes: Any) -> argparse.Namespace:  # noqa: ANN401
    plain = {"out": str(out), "epochs": 1, "slides": 24, "seed": 0, "overwrite": False}
    return argparse.Namespace(**plain | changes)


def contents(folder: Path) -> dict[str, bytes]:
    """Everything that numbers are read from; checkpoints and logs hold times and paths."""
    patterns = ("cohort/**/*.h5", "*.csv", "heatmap/*.csv", "runs/**/*.csv", "runs/**/*.safetensors", "runs/**/*.png")
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for pattern in patterns
        for path in sorted(folder.glob(pattern))
        if path.name != "sweep.csv"  # names the folders
    }


@pytest.mark.slow
def test_demo_runs_and_the_same_seed_gives_the_same_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("first", "again"):
        assert main(["demo", "--out", str(tmp_path / name), "--epochs", "2", "--slides", "32", "--seed", "3"]) == 0
    printed = capsys.readouterr().out
    assert "srp" in printed
    assert "rare patches are at percentiles" in printed
    assert "Done in" in printed
    first, again = contents(tmp_path / "first"), contents(tmp_path / "again")
    assert set(first) == set(again)
    assert [name for name in first if first[name] != again[name]] == []
    runs = tmp_path / "first" / "runs"
    for method in ("none", "srp"):
        assert (runs / method / "seed_3" / "figures" / "roc_pr_test.png").is_file()
    assert (runs / "srp" / "seed_3" / "figures" / "gates.png").is_file()
    assert pd.read_csv(runs / "none" / "seed_3" / "split.csv").equals(
        pd.read_csv(runs / "srp" / "seed_3" / "split.csv")
    )
    assert list((tmp_path / "first" / "heatmap").glob("*.geojson"))
    assert (tmp_path / "first" / "redundancy" / "redundancy.png").is_file()


def test_ctrl_c_says_that_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run_sweep", stop)
    with pytest.raises(KeyboardInterrupt):
        demo.run(arguments(tmp_path / "demo"))
    assert "nothing is left running" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"already holds a demo \(unfinished\)"):
        demo.run(arguments(tmp_path / "demo"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "--epochs 0 trains nothing"),
        ({"slides": 4}, "--slides 4 cannot be split"),
        ({"seed": -1}, "--seed -1 is negative"),
    ],
    ids=["epochs", "slides", "seed"],
)
def test_senseless_arguments_are_refused(tmp_path: Path, changes: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        demo.run(arguments(tmp_path / "demo", **changes))
    assert not (tmp_path / "demo").exists()


def test_folders_of_others_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_demonstrate", lambda *given: None)
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years")
    for overwrite in (False, True):
        with pytest.raises(UserError, match="holds no earlier demo"):
            demo.run(arguments(folder, overwrite=overwrite))
    with pytest.raises(UserError, match="is a file"):
        demo.run(arguments(folder / "thesis.txt"))
    ours = tmp_path / "demo"
    assert demo.run(arguments(ours)) == 0
    (ours / "notes.txt").write_text("kept")
    (ours / "runs").mkdir()
    assert demo.run(arguments(ours, overwrite=True)) == 0
    assert (ours / "notes.txt").read_text() == "kept"
    assert not (ours / "runs").exists()
