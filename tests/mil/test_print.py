"""Figures that can be printed: lines that differ, legends beside them, whole counts, numbers that tell apart."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nnunet_gdla.mil.figures import distinct, line_style, paper_style
from nnunet_gdla.mil.heatmap import SlideScores
from nnunet_gdla.mil.heatmap_draw import draw_maps, place_patches
from nnunet_gdla.mil.redundancy_stats import _draw as draw_redundancy
from nnunet_gdla.mil.report_classification import class_intervals, draw_reliability, draw_roc_pr, scored
from nnunet_gdla.mil.report_curves import draw_curves, draw_gates
from nnunet_gdla.mil.report_survival import draw_kaplan_meier, draw_risk
from nnunet_gdla.mil.slides import Slide
from tests.mil.fake_run import classification_run


def _legends_lie_outside(figure: Figure) -> bool:
    figure.canvas.draw()
    found = 0
    for axes in figure.axes:
        legend = axes.get_legend()
        if legend is not None:
            found += 1
            box = legend.get_window_extent()
            assert not box.overlaps(axes.get_window_extent()), axes.get_title(loc="left")
            assert not box.overlaps(axes.xaxis.label.get_window_extent())
            assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1 + 1
            assert figure.bbox.y0 - 1 <= box.y0 < box.y1 <= figure.bbox.y1
    return found > 0


def _styles(axes: Axes) -> set[tuple[object, object]]:
    return {(line.get_color(), line.get_linestyle()) for line in axes.get_lines() if len(line.get_xdata())}


def _whole(axes: Axes) -> bool:
    axes.figure.canvas.draw()
    ticks = axes.yaxis.get_major_locator()()
    return bool(len(ticks)) and np.array_equal(ticks, np.round(ticks))


def test_ten_metrics_are_ten_different_lines() -> None:
    history = pd.DataFrame({f"val_metric{n}": [0.1 * n, 0.5] for n in range(10)})
    history = history.assign(epoch=[0, 1], train_loss=1.0, val_loss=1.0, lr=1e-4)
    with paper_style():
        figure = draw_curves(history, 1.0)
        assert _legends_lie_outside(figure)
    metrics = figure.axes[1]
    assert len(_styles(metrics)) == 10 + 1  # and the mark of the kept weights
    assert len({tuple(line_style(place).values()) for place in range(32)}) == 32


def test_the_gates_have_their_legend_outside(tmp_path: Path) -> None:
    gates = pd.read_csv(classification_run(tmp_path / "run") / "gates.csv")
    with paper_style():
        assert _legends_lie_outside(draw_gates(gates))


def _patients(count: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"time": rng.exponential(900, count) + 1, "event": np.arange(count) % 2})
    return table.assign(risk=rng.normal(-2, 0.5, count))


def test_nothing_covers_a_survival_curve_and_groups_differ_without_colour() -> None:
    with paper_style():
        figure = draw_kaplan_meier(_patients(30), -2.0, "0.660 (0.500 to 0.800)")
        assert _legends_lie_outside(figure)
    steps = [line for line in figure.axes[0].get_lines() if line.get_drawstyle() == "steps-post"]
    assert len({line.get_linestyle() for line in steps}) == 2


@pytest.mark.parametrize("count", [2, 3, 40])
def test_there_are_no_half_patients_or_slides(count: int) -> None:
    with paper_style():
        risk = draw_risk(_patients(count), -2.0)
        assert _whole(risk.axes[0])
        assert _legends_lie_outside(risk)
        table = pd.DataFrame({"label": ["a", "b"] * count, "prob_a": 0.6, "prob_b": 0.4})
        assert _whole(draw_reliability(scored(table, "slide"), None).axes[1])
        columns = ("cosine_mean_3x3", "cosine_q25", "cosine_q75", "homogeneity", "homogeneity_random", "isolated")
        slides = pd.DataFrame({name: [0.5] * count for name in columns}).assign(neighbours=6.0)
        assert _whole(draw_redundancy(slides).axes[2])


def test_three_classes_have_intervals_and_patients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nnunet_gdla.mil.report_classification.DRAWS", 50)
    slides = pd.read_csv(classification_run(tmp_path / "run", classes=3) / "predictions_test.csv")
    slides["patient_id"] = [f"p{number % 20}" for number in range(len(slides))]
    patients = slides.drop_duplicates("patient_id")
    tables = {"slide": slides, "patient": patients}
    found = class_intervals(tables)
    assert set(found) == {(unit, f"class {k}") for unit in tables for k in range(3)}
    assert all(" to " in text for entry in found.values() for text in entry.values())
    with paper_style():
        figure = draw_roc_pr([scored(table, unit) for unit, table in tables.items()], {}, found)
        assert _legends_lie_outside(figure)
    legend = figure.axes[0].get_legend()
    assert legend is not None
    labels = [text.get_text() for text in legend.get_texts()]
    assert len(labels) == 6
    assert sum("patients" in label for label in labels) == 3
    assert f"AUC {found['patient', 'class 1']['auc']}" in "\n".join(labels)
    assert class_intervals({"slide": slides.drop(columns="prob_class 2").query("label != 'class 2'")}) == {}


def test_numbers_of_a_heat_map_tell_its_ends_apart() -> None:
    assert distinct([0.0059, 0.00592]) == ["0.0059", "0.00592"]
    assert distinct([0.1, 0.2]) == ["0.1", "0.2"]
    assert distinct([0.5, 0.5]) == ["0.5", "0.5"]
    coords = torch.stack([torch.arange(9) % 3, torch.arange(9) // 3], 1)
    slide = Slide("s", torch.randn(9, 4), coords, 1.0, "cell", Path("s.h5"), "features")
    for spread, title in (
        (2e-5, "Attention: 0.0059 to 0.00592, even is 0.111"),
        (0.0, "Attention: 0.0059 everywhere, even is 0.11"),
    ):
        scores = SlideScores(slide, 0.0059 + np.linspace(0, spread, 9), {}, {"risk": 0.5})
        figure = draw_maps(scores, place_patches(slide, None), None)
        assert title in [axes.get_title(loc="left") or axes.get_title() for axes in figure.axes]
