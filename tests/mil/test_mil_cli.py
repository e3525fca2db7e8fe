"""The command `nnunet-gdla-mil`: help without heavy imports, exit codes, and its subcommands on small runs."""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from nnunet_gdla import __version__
from nnunet_gdla.errors import TrainingStopped, UserError
from nnunet_gdla.mil import cli
from nnunet_gdla.mil.config import preset_names
from nnunet_gdla.mil.files import read_csv
from tests.mil.small_cohorts import make_cohort, write_slide

pytestmark = pytest.mark.usefixtures("no_figures")

SMALL = """\
data: {{table: cohort.csv, features: h5, task: {task}}}
split: {{val_share: 0.2, test_share: 0.25}}
model: {{width: 24, depth: 2, num_heads: 2, num_landmarks: 8, gate_hidden: 8}}
train: {{epochs: 1, accumulate: 4, workers: 0, bootstrap: 20, accelerator: cpu}}
"""


def settings(folder: Path, task: str = "classification") -> str:
    path = folder / "mine.yaml"
    path.write_text(SMALL.format(task=task), encoding="utf-8")
    return str(path)


def stub(monkeypatch: pytest.MonkeyPatch, run: Callable[[argparse.Namespace], int], *argv: str) -> int:
    monkeypatch.setitem(sys.modules, "nnunet_gdla.mil.commands.init", SimpleNamespace(run=run))
    return cli.main(["init", *argv])


def raising(error: BaseException) -> Callable[[argparse.Namespace], int]:
    def run(args: argparse.Namespace) -> int:
        raise error

    return run


@pytest.mark.parametrize("argv", [["--help"], ["--version"], *([name, "--help"] for name in cli.COMMANDS)])
def test_help_and_version_end_well(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(argv)
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert __version__ in out if argv == ["--version"] else "examples:" in out


def test_help_answers_within_a_second_without_torch() -> None:
    code = "import sys; from nnunet_gdla.mil import cli\ntry: cli.main(['fit', '--help'])\nexcept SystemExit: pass\n"
    code += "print(sorted({'torch', 'numpy', 'pandas', 'h5py', 'lightning', 'yaml'}.intersection(sys.modules)))"
    seconds = []
    for _ in range(3):  # the best of three, because other tests run at the same time
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
        seconds.append(time.perf_counter() - start)
    assert done.stdout.splitlines()[-1] == "[]"
    assert min(seconds) < 1


def test_every_command_has_its_module() -> None:
    commands = Path(cli.__file__).parent / "commands"
    assert {path.stem for path in commands.glob("*.py")} >= set(cli.COMMANDS)


@pytest.mark.parametrize("blocked", ["h5py", "lightning", "jsonargparse"])
@pytest.mark.parametrize("command", [["init"], ["fit", "--config", "x.yaml"], ["demo"]])
def test_without_the_extra_there_is_one_line_and_exit_code_2(
    blocked: str, command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, blocked, None)
    assert cli.main(command) == 2
    assert capsys.readouterr().err == "pip install 'nnunet-gdla[mil]'\n"


def test_exit_codes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert stub(monkeypatch, lambda _: 0) == 0
    assert stub(monkeypatch, raising(UserError("no slide x: look there"))) == 1
    assert capsys.readouterr().err == "nnunet-gdla-mil init: no slide x: look there\n"
    assert stub(monkeypatch, raising(TrainingStopped("the loss is NaN"))) == 1
    assert stub(monkeypatch, raising(KeyboardInterrupt())) == 130
    assert stub(monkeypatch, raising(PermissionError(13, "Permission denied", "/x"))) == 1
    with pytest.raises(SystemExit) as end:
        cli.main(["fti"])
    assert end.value.code == 2


def test_init_lists_and_writes_and_never_overwrites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["init"]) == 0
    assert all(name in capsys.readouterr().out for name in ["own_survival"])
    for name in preset_names():
        assert cli.main(["init", name]) == 0
    assert cli.main(["init", "panda"]) == 1
    assert "panda.yaml exists" in capsys.readouterr().err
    assert cli.main(["init", "pandas"]) == 1
    assert "choose one of bracs, cam16" in capsys.readouterr().err


def test_check_prints_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_cohort(tmp_path, "classification")
    assert cli.main(["check", "--config", settings(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "PASS" in out
    assert "ready to fit: 14 train, 4 val, 6 test; features 16 wide; a, b" in out
    assert all(line.startswith(("PASS ", "WARN ")) for line in out.splitlines())
    write_slide(tmp_path / "h5" / "s03.h5", np.full((30, 16), np.nan, dtype=np.float32))
    assert cli.main(["check", "--config", settings(tmp_path)]) == 1
    assert "s03" in capsys.readouterr().err
    (tmp_path / "cohort.csv").write_text("slide_id,lable\ns00,a\n", encoding="utf-8")
    assert cli.main(["check", "--config", settings(tmp_path)]) == 1
    assert "check: FAIL " in capsys.readouterr().err


@pytest.mark.parametrize("command", ["check", "fit"])
def test_times_that_are_left_out_are_named_before_a_training(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_cohort(tmp_path, "survival")
    table = pd.read_csv(tmp_path / "cohort.csv")
    table.loc[[3, 5], "time"] = [-4.0, np.nan]
    table.to_csv(tmp_path / "cohort.csv", index=False)
    argv = ["--out", str(tmp_path / "run")] if command == "fit" else []
    assert cli.main([command, "--config", settings(tmp_path, "survival"), *argv]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "WARN left out 1 slide without a time or event: s05 (line 7, time '', event '0')" in lines
    assert "WARN left out 1 slide with a time of zero or less: s03 (line 5, time '-4.0')" in lines


def test_fit_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_cohort(tmp_path, "survival")
    out = tmp_path / "runs" / "a"
    assert (
        cli.main(["fit", "--config", settings(tmp_path, "survival"), "--out", str(out), "--set", "train.seed=3"]) == 0
    )
    said = capsys.readouterr()
    assert "epoch 1/1  train_loss" in said.out
    assert "c_index" in said.out
    assert said.err == ""
    assert "seed: 3" in (out / "config.yaml").read_text(encoding="utf-8")
    assert cli.main(["fit", "--resume", str(out)]) == 0
    assert "nothing was done" in capsys.readouterr().out
    assert cli.main(["fit", "--resume", str(out), "--set", "train.epochs=9"]) == 1
    assert "leave out --set" in capsys.readouterr().err


def test_a_fast_run_goes_through_everything_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_cohort(tmp_path, "classification")
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.rglob("*"))
    path = settings(tmp_path)
    assert cli.main(["fit", "--config", path, "--fast"]) == 0
    assert "Everything works" in capsys.readouterr().out
    assert set(tmp_path.rglob("*")) - before == {Path(path)}


def test_validate_repeats_the_numbers_of_the_run(classified: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["validate", str(classified / "run"), "--device", "cpu"]) == 0
    metrics = json.loads((classified / "run" / "metrics_val.json").read_text(encoding="utf-8"))
    accuracy = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("accuracy"))
    assert f"{metrics['slide']['accuracy']['value']:.3f}" in accuracy


def test_an_external_test_refits_nothing(classified: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_cohort(tmp_path, "classification", slides=10, seed=5)
    table = (
        pd.read_csv(tmp_path / "cohort.csv").drop(columns="patient_id").replace({"label": {"a": "low", "b": "high"}})
    )
    table[table["label"] == "low"].to_csv(tmp_path / "other.csv", index=False)
    before = {path: path.read_bytes() for path in (classified / "run").rglob("*") if path.is_file()}
    command = ["test", "--model", str(classified / "run"), "--cohort", str(tmp_path / "other.csv")]
    command += ["--features", str(tmp_path / "h5"), "--out", str(tmp_path / "out"), "--workers", "0"]
    assert cli.main([*command, "--bootstrap", "20"]) == 1
    assert "low" in capsys.readouterr().err  # no class of the model
    assert cli.main([*command, "--bootstrap", "20", "--label-map", "low=a", "high=b"]) == 0
    metrics = json.loads((tmp_path / "out" / "metrics_test.json").read_text(encoding="utf-8"))
    assert metrics["slide"]["auc"]["value"] is None  # one class only: undefined, not a number
    assert metrics["slide"]["specificity"]["value"] is not None  # at the threshold of the training
    assert "n/a" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in before} == before
    assert cli.main([*command, "--label-map", "low=a"]) == 1
    assert "is no empty folder" in capsys.readouterr().err


def test_survival_is_tested_elsewhere_with_the_edges_of_the_training(survived: Path, tmp_path: Path) -> None:
    make_cohort(tmp_path, "survival", slides=10, seed=5)
    command = ["test", "--model", str(survived / "run"), "--cohort", str(tmp_path / "cohort.csv")]
    command += ["--features", str(tmp_path / "h5"), "--out", str(tmp_path / "out"), "--workers", "0"]
    assert cli.main([*command, "--bootstrap", "20"]) == 0
    ours, theirs = (
        json.loads((path / "bundle.json").read_text(encoding="utf-8"))
        for path in (tmp_path / "out", survived / "run" / "bundle")
    )
    assert ours["bin_edges"] == theirs["bin_edges"]
    assert (tmp_path / "out" / "figures" / "kaplan_meier_test.png").is_file()


def test_predict_needs_no_labels_and_takes_ensembles(classified: Path, tmp_path: Path) -> None:
    run, features = str(classified / "run"), str(classified / "h5")
    assert cli.main(["predict", features, "--model", run, "--out", str(tmp_path / "one.csv"), "--workers", "0"]) == 0
    assert (
        cli.main(["predict", features, "--model", run, run, "--out", str(tmp_path / "two.csv"), "--workers", "0"]) == 0
    )
    one, two = read_csv(tmp_path / "one.csv"), read_csv(tmp_path / "two.csv")
    pd.testing.assert_frame_equal(one, two)
    assert list(one) == ["slide_id", "predicted", "called_at_threshold", "prob_a", "prob_b"]
    assert len(one) == 32
    written = read_csv(classified / "run" / "predictions_test.csv").set_index("slide_id")
    ours = one.set_index("slide_id").loc[written.index]
    assert np.allclose(ours["prob_b"], written["prob_b"], rtol=1e-6)
    assert cli.main(["predict", features, "--model", run, "--out", str(tmp_path / "one.csv")]) == 1


def test_predict_survival_gives_risk_groups(survived: Path, tmp_path: Path) -> None:
    out = tmp_path / "risks.csv"
    assert cli.main(["predict", str(survived / "h5"), "--model", str(survived / "run"), "--out", str(out)]) == 0
    table = read_csv(out)
    assert list(table)[:3] == ["slide_id", "group", "risk"]
    assert set(table["group"]) == {"high", "low"}


def test_wrong_numbers_and_metrics_are_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = ["sweep", "--out", str(tmp_path / "sweep")]
    classes = [*sweep, "--config", settings(tmp_path)]
    for argv, message in (
        ([*classes, "--seeds", "-1"], "--seeds -1: a seed must lie between 0 and 4294967295"),
        ([*classes, "--metric", "foo"], "no metric 'foo' for classification; choose one of accuracy"),
        ([*classes, "--metric", "c_index"], "no metric 'c_index' for classification"),
        (["predict", "h5", "--model", "m", "--out", str(tmp_path / "p.csv"), "--workers", "-1"], "--workers -1"),
        (["test", "--model", "m", "--cohort", "c.csv", "--out", str(tmp_path / "t"), "--workers", "-1"], "--workers"),
        (
            ["test", "--model", "m", "--cohort", "c.csv", "--out", str(tmp_path / "b"), "--bootstrap", "1"],
            "bootstrap 1: an interval needs 2 draws or more",
        ),
        (
            ["test", "--model", "m", "--cohort", "c.csv", "--out", str(tmp_path / "b"), "--bootstrap", "-3"],
            "bootstrap -3",
        ),
    ):
        assert cli.main(argv) == 1
        assert message in capsys.readouterr().err
    survival = [*sweep, "--config", settings(tmp_path, "survival"), "--metric", "auc_edge4"]
    assert cli.main(survival) == 1
    assert "choose one of c_index, ibs, auc_edges, auc_edge1, auc_edge2, auc_edge3\n" in capsys.readouterr().err
    assert not (tmp_path / "sweep").exists()
