"""Every command line that help and documentation show is one that the parser takes, in the way the reader means it."""

import argparse
from pathlib import Path

import numpy as np
import pytest

from nnunet_gdla.mil import cli
from nnunet_gdla.mil.files import read_csv
from tests.mil.small_cohorts import write_slide
from tests.shown_commands import help_texts, pages, shown_lines

LINES = shown_lines("nnunet-gdla-mil", [*help_texts(cli._parser()), *pages()])


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_a_shown_line_can_be_parsed(words: list[str]) -> None:
    if words == ["--help"]:
        with pytest.raises(SystemExit):
            cli._parser().parse_args(words)
        return
    args = cli._parser().parse_args(words)
    assert args.command in cli.COMMANDS
    if args.command == "predict":  # a folder behind --model is told from the models by the command
        assert len([*args.model, *filter(None, [args.features])]) >= 2


@pytest.mark.parametrize(
    "order",
    [
        "--model {model} {h5} --out {out}",
        "--model {model} {model} {h5} --out {out}",
        "{h5} --model {model} --out {out}",
    ],
)
def test_predict_takes_the_folder_before_and_behind_the_models(classified: Path, tmp_path: Path, order: str) -> None:
    out = tmp_path / "predictions.csv"
    words = order.format(model=classified / "run", h5=classified / "h5", out=out).split()
    assert cli.main(["predict", *words]) == 0
    assert len(read_csv(out)) == 32


def test_predict_takes_one_file(classified: Path, tmp_path: Path) -> None:
    out = tmp_path / "predictions.csv"
    model, slide = str(classified / "run"), str(classified / "h5" / "s03.h5")
    assert cli.main(["predict", "--model", model, slide, "--out", str(out)]) == 0
    assert read_csv(out)["slide_id"].tolist() == ["s03"]


def test_predict_without_slides_says_what_is_missing(classified: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["predict", "--model", str(classified / "run")]) == 1
    assert "Name the folder of H5 files" in capsys.readouterr().err


def test_test_looks_beside_the_table_where_no_folder_is_named(
    classified: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nnunet_gdla.mil.commands.test.write_figures", lambda run: [])
    words = ["test", "--model", str(classified / "run"), "--cohort", str(classified / "cohort.csv")]
    assert cli.main([*words, "--bootstrap", "20"]) == 0
    assert len(read_csv(tmp_path / "cohort_test" / "predictions_test.csv")) == 32


def test_check_measures_redundancy_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    rows = ["slide_id,label"]
    for number in range(12):
        write_slide(tmp_path / "h5" / f"s{number:02d}.h5", rng.standard_normal((30, 8)).astype(np.float32))
        rows.append(f"s{number:02d},{'ab'[number % 2]}")
    (tmp_path / "cohort.csv").write_text("\n".join(rows), encoding="utf-8")
    config = tmp_path / "mine.yaml"
    config.write_text("data: {table: cohort.csv, features: h5, task: classification}\n", encoding="utf-8")
    out = tmp_path / "redundancy"
    assert cli.main(["check", "--config", str(config), "--statistics", str(out)]) == 0
    table = read_csv(out / "redundancy.csv")
    assert len(table) == 12
    assert table["neighbours"].astype(float).between(4, 8).all()
    assert (out / "redundancy.png").stat().st_size > 1000
    assert str(out / "redundancy.csv") in capsys.readouterr().out


def test_the_parser_keeps_no_secret_commands() -> None:
    (action,) = [a for a in cli._parser()._actions if isinstance(a, argparse._SubParsersAction)]
    assert set(action.choices) == {"init", "check", "fit", "validate", "test", "predict", "sweep", "heatmap", "demo"}


def test_a_run_that_is_not_there_cannot_be_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fit", "--resume", str(tmp_path / "nope")]) == 1
    assert f"there is no run in {tmp_path / 'nope'}" in capsys.readouterr().err
