"""The rules behind the numbers: absent classes, patients with several slides, equal times; said and kept."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.bundle import load_bundles, save_bundle
from nnunet_gdla.mil.bundle_info import BundleInfo, info_from_dict, table_metrics
from nnunet_gdla.mil.config import config_from_dict, load_config, preset_names, preset_text
from nnunet_gdla.mil.evaluate import evaluate, rule_lines, write_evaluation
from nnunet_gdla.mil.models import build_model
from nnunet_gdla.mil.module import epoch_metrics
from nnunet_gdla.mil.prepare import learned_from_data, load_cohort
from tests.mil.small_cohorts import make_cohort, small_config

THREE = BundleInfo("classification", "abmil", {}, 8, 3, classes=("a", "b", "c"))
SURVIVAL = BundleInfo("survival", "abmil", {}, 8, 4, bin_edges=(1.5, 2.5, 3.5))


def _slides() -> pd.DataFrame:
    """Two slides a patient, nobody of class c; half of the slides right."""
    probabilities = [[0.8, 0.1, 0.1], [0.1, 0.1, 0.8], [0.1, 0.8, 0.1], [0.7, 0.2, 0.1]]
    table = pd.DataFrame(probabilities * 3, columns=["prob_a", "prob_b", "prob_c"])
    patients = [f"p{number // 2}" for number in range(12)]
    return table.assign(slide_id=[f"s{n}" for n in range(12)], patient_id=patients, label=list("aabb") * 3)


def test_an_absent_class_counts_by_one_rule_in_every_mean_and_is_named() -> None:
    found = evaluate(_slides(), THREE, bootstrap=50)["slide"]
    for names in (("balanced_accuracy", "macro_recall"),):
        assert found[names[0]] == found[names[1]]
    assert found["macro_recall"]["value"] == pytest.approx(1 / 3)
    assert all(np.isnan([*found[name].values()]).all() for name in ("auc", "auprc"))
    lines = rule_lines({"val": _slides().assign(label=list("abc") * 4), "test": _slides()}, THREE)
    said = next(
        line for line in lines if line.startswith("test, slides: nobody is of class c, which counts 0 in the means")
    )
    assert said.endswith("AUC and average precision are undefined")
    assert not any(line.startswith("val, slides") for line in lines)


def test_the_rule_for_patients_is_said_and_their_rows_are_written(tmp_path: Path) -> None:
    slides = _slides()
    slides.loc[1, "label"] = "b"  # p0 has slides of two classes
    metrics = evaluate(slides, THREE, bootstrap=5)
    write_evaluation(tmp_path, "test", slides, metrics, "classification")
    patients = pd.read_csv(tmp_path / "predictions_test_patient.csv")
    assert list(patients["patient_id"]) == ["p1", "p2", "p3", "p4", "p5"]
    assert patients["prob_a"][0] == pytest.approx((0.1 + 0.7) / 2)
    lines = rule_lines({"test": slides}, THREE)
    assert any("mean of the probabilities of all slides (predictions_PART_patient.csv)" in line for line in lines)
    assert "test: 1 patient with slides of several classes: at slide level only" in lines
    assert rule_lines({"test": _slides().assign(patient_id=slides["slide_id"], label=list("abc") * 4)}, THREE) == []


def _tied() -> pd.DataFrame:
    """An event and a censoring at one time, the risks the wrong way round for those who count the pair."""
    table = pd.DataFrame({"time": [1.0, 1.0, 3.0], "event": [1, 0, 1], "risk": [-2.0, -1.0, -3.0]})
    table = table.assign(slide_id=["s0", "s1", "s2"], patient_id=["p0", "p1", "p2"])
    return table.assign(**{f"hazard_{k}": 0.1 for k in range(4)})


@pytest.mark.parametrize(("ties", "expected"), [("harrell", 0.5), ("strict", 1.0)])
def test_ties_of_the_c_index_are_those_of_the_settings_everywhere(ties: str, expected: float, tmp_path: Path) -> None:
    make_cohort(tmp_path, "survival")
    config = small_config(tmp_path, "survival", c_index_ties=ties)
    cohort = load_cohort(config.data)
    info = learned_from_data(config, cohort, cohort.table, 16)
    assert info.c_index_ties == ties
    kept = info_from_dict(json.loads(json.dumps(dataclasses.asdict(info))))
    for each in (info, kept, dataclasses.replace(SURVIVAL, c_index_ties=info.c_index_ties)):
        assert table_metrics(_tied(), each)["c_index"] == expected  # test, bootstrap, sweep
        assert epoch_metrics(_tied(), each)["c_index"] == expected  # choice of the epoch
    assert evaluate(_tied(), info, bootstrap=5)["patient"]["c_index"]["value"] == expected
    (line,) = rule_lines({"test": _tied()}, info)
    assert ("strict, as published" in line) == (ties == "strict")


def test_published_survival_presets_are_strict_and_older_files_harrell(tmp_path: Path) -> None:
    for name in preset_names():
        path = tmp_path / f"{name}.yaml"
        path.write_text(preset_text(name), encoding="utf-8")
        config = load_config(path)
        published = config.data.task == "survival" and not name.startswith("own_")
        assert config.train.c_index_ties == ("strict" if published else "harrell")
        assert config.train.gate_lr_scale == 1
    old = dataclasses.asdict(SURVIVAL)
    del old["c_index_ties"]
    assert info_from_dict(json.loads(json.dumps(old))).c_index_ties == "harrell"


def test_bundles_that_count_ties_differently_are_no_ensemble(tmp_path: Path) -> None:
    for ties in ("harrell", "strict"):
        save_bundle(tmp_path / ties, build_model("abmil", 8, 4), dataclasses.replace(SURVIVAL, c_index_ties=ties))
    with pytest.raises(UserError, match="c_index_ties is 'harrell' and 'strict'"):
        load_bundles([tmp_path / "harrell", tmp_path / "strict"])


def test_one_draw_is_no_interval(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train\.bootstrap is 1; it must be 2 or more"):
        config_from_dict(
            {"data": {"table": "a", "features": "b", "task": "survival"}, "train": {"bootstrap": 1}}, where="mine"
        )
