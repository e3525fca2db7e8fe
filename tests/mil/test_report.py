from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil import figures, report_classification, report_curves
from nnunet_gdla.mil.figures import canvas, number, save
from nnunet_gdla.mil.report import write_figures
from nnunet_gdla.mil.report_classification import draw_confusion, draw_reliability, draw_roc_pr, scored
from nnunet_gdla.mil.report_survival import draw_kaplan_meier, draw_risk
from tests.mil.fake_run import classification_run, survival_run

CLASSIFICATION = ["curves", "gates"] + [
    f"{kind}_{part}" for part in ("val", "test") for kind in ("roc_pr", "confusion", "reliability")
]
SURVIVAL = ["curves", "gates"] + [f"{kind}_{part}" for part in ("val", "test") for kind in ("kaplan_meier", "risk")]


@pytest.fixture(autouse=True)
def _coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "DPI", 30)
    monkeypatch.setattr(report_classification, "DRAWS", 20)


def texts(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(mpl.text.Text))


def _forget_validation(run: Path) -> None:
    for name in ("predictions_val.csv", "metrics_val.json"):
        (run / name).unlink()


def names_of(paths: list[Path]) -> list[str]:
    return [path.stem for path in paths]


@pytest.mark.parametrize("classes", [2, 5])
def test_classification_run_gets_its_figures(tmp_path: Path, classes: int) -> None:
    run = classification_run(tmp_path / "run", classes=classes)
    written = write_figures(run)
    assert names_of(written) == CLASSIFICATION
    assert sorted(path.name for path in (run / "figures").iterdir()) == sorted(path.name for path in written)
    for path in written:
        with Image.open(path) as image:
            assert min(image.size) > 80


def test_survival_run_gets_its_figures(tmp_path: Path) -> None:
    assert names_of(write_figures(survival_run(tmp_path / "run"))) == SURVIVAL


def test_figures_are_the_same_when_drawn_again(tmp_path: Path) -> None:
    run = classification_run(tmp_path / "run")
    first = [path.read_bytes() for path in write_figures(run)]
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        assert first == [path.read_bytes() for path in write_figures(run)]


def test_folder_of_an_external_test_has_no_training_figures(tmp_path: Path) -> None:
    run = classification_run(tmp_path / "run")
    for name in ("logs/metrics.csv", "gates.csv", "predictions_val.csv", "metrics_val.json", "metrics_test.json"):
        (run / name).unlink()
    assert names_of(write_figures(run)) == [name for name in CLASSIFICATION if name.endswith("_test")]
    assert write_figures(tmp_path / "nothing") == []


@pytest.mark.parametrize("change", ["one class", "one slide", "one epoch", "nan", "empty tables"])
def test_degenerate_classification_is_drawn_as_not_available(tmp_path: Path, change: str) -> None:
    run = classification_run(
        tmp_path / "run",
        one_class=change == "one class",
        slides=1 if change == "one slide" else 12,
        epochs=1 if change == "one epoch" else 3,
    )
    if change == "nan":
        for name in ("predictions_test.csv", "predictions_val.csv"):
            table = pd.read_csv(run / name)
            table.loc[0, "prob_class 1"] = np.nan
            table.to_csv(run / name, index=False)
        history = pd.read_csv(run / "logs" / "metrics.csv")
        history[["val_loss", "val_auc", "val_macro_f1"]] = np.nan
        history.to_csv(run / "logs" / "metrics.csv", index=False)
    if change.startswith("empty"):
        for path in [run / "logs" / "metrics.csv", run / "gates.csv", *run.glob("predictions_*.csv")]:
            pd.read_csv(path).iloc[:0].to_csv(path, index=False)
    _forget_validation(run)
    absent = "gates" if change == "empty tables" else "nothing"
    expected = [name for name in CLASSIFICATION if not name.endswith("_val") and name != absent]
    assert names_of(write_figures(run)) == expected


@pytest.mark.parametrize("change", ["no event", "one patient", "no cut", "cut above all", "nan", "one time"])
def test_degenerate_survival_is_drawn_as_not_available(tmp_path: Path, change: str) -> None:
    run = survival_run(
        tmp_path / "run",
        slides=1 if change == "one patient" else 15,
        events=0.0 if change == "no event" else 0.6,
        cut=None if change == "no cut" else 99.0 if change == "cut above all" else -2.0,
    )
    for path in run.glob("predictions_*.csv"):
        table = pd.read_csv(path)
        if change == "nan":
            table.loc[0, "risk"] = np.nan
        if change == "one time":
            table["time"] = 5.0
        table.to_csv(path, index=False)
    _forget_validation(run)
    (run / "gates.csv").unlink()
    assert names_of(write_figures(run)) == ["curves", "kaplan_meier_test", "risk_test"]


def test_one_class_says_so_and_gives_no_number() -> None:
    table = pd.DataFrame({"label": ["a"] * 4, "prob_a": 0.5, "prob_b": 0.5})
    figure = draw_roc_pr([scored(table, "slide")], {})
    assert "n/a: no b here" in texts(figure)
    assert "AUC" not in texts(figure)


def test_roc_names_n_and_interval() -> None:
    table = pd.DataFrame({"label": list("abab"), "prob_a": [0.9, 0.2, 0.6, 0.7], "prob_b": [0.1, 0.8, 0.4, 0.3]})
    shown = {"slide": {"auc": "0.750 (0.500 to 1.000)", "auprc": "0.800 (0.500 to 1.000)"}}
    text = texts(draw_roc_pr([scored(table, "slide")], shown))
    assert "b: 2 of 4 slides" in text
    assert "AUC 0.750 (0.500 to 1.000)" in text
    assert "AUC 0.750\n" not in texts(draw_roc_pr([scored(table, "slide")], shown))
    assert "AUC 0.750" in texts(draw_roc_pr([scored(table, "slide")], {}))


def test_confusion_counts_and_threshold() -> None:
    table = pd.DataFrame({"label": list("aabb"), "prob_a": [0.9, 0.4, 0.4, 0.1], "prob_b": [0.1, 0.6, 0.6, 0.9]})
    figure = draw_confusion(scored(table, "slide"), 0.7)
    assert "b from p = 0.700 on" in texts(figure)
    assert "1\n50%" in texts(figure)
    assert len(figure.axes) == 2
    assert len(draw_confusion(scored(table, "slide"), None).axes) == 1


def test_reliability_says_how_many() -> None:
    table = pd.DataFrame({"label": list("aabb"), "prob_a": [0.9, 0.4, 0.4, 0.1], "prob_b": [0.1, 0.6, 0.6, 0.9]})
    assert "ECE 0.123" in texts(draw_reliability(scored(table, "slide"), "0.123"))
    assert "n/a" in texts(draw_reliability("no slide with a label", None))


def test_kaplan_meier_names_groups_events_and_p() -> None:
    rng = np.random.default_rng(0)
    risk = np.repeat([-3.0, -1.0], 30)
    time = np.where(risk < -2, rng.exponential(1000, 60), rng.exponential(100, 60))
    patients = pd.DataFrame({"time": time, "event": 1, "risk": risk})
    text = texts(draw_kaplan_meier(patients, -2.0, "0.700"))
    assert "low risk: n = 30, 30 events" in text
    assert "log-rank p < 0.001" in text
    assert "at risk" in text
    assert "log-rank p n/a" in texts(draw_kaplan_meier(patients, 5.0, "n/a"))
    assert "no median risk" in texts(draw_kaplan_meier(patients, None, "n/a"))
    assert "event (n = 60)" in texts(draw_risk(patients, -2.0))


def test_gate_figure_shows_every_block_and_the_later_of_repeated_epochs(tmp_path: Path) -> None:
    run = survival_run(tmp_path / "run")
    gates = pd.read_csv(run / "gates.csv")
    figure = report_curves.draw_gates(gates)
    assert all(f"block {block}" in texts(figure) for block in range(3))
    assert "anti (β ≤ -0.5)" in texts(figure)
    many = pd.concat([gates.assign(block=gates["block"] + 3 * place) for place in range(4)])
    assert "Block 11" in texts(report_curves.draw_gates(many))


def test_numbers_are_written_with_their_interval() -> None:
    assert number(0.5) == "0.500"
    assert number(0.5, 0.4, 0.6) == "0.500 (0.400 to 0.600)"
    assert number(0.5, None, 0.6) == "0.500"
    assert number(None) == number(float("nan"), 0.1, 0.2) == "n/a"


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    run = classification_run(tmp_path / "run")
    (run / "metrics_test.json").write_text("{")
    with pytest.raises(UserError, match=r"metrics_test.json is not valid JSON"):
        write_figures(run)


def test_a_name_in_a_script_that_the_font_lacks_is_drawn_without_a_word(tmp_path: Path) -> None:
    figure, (axes,) = canvas(1, 1)
    axes.set_title("日本")
    assert save(figure, tmp_path / "a.png").is_file()
