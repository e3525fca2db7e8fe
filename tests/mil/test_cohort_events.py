"""Event columns: which value is the event, and columns that may mean the opposite."""

import dataclasses
import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pandas as pd
import pytest
import yaml

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil import cli
from nnunet_gdla.mil.bundle import save_bundle
from nnunet_gdla.mil.bundle_info import BundleInfo, info_from_dict
from nnunet_gdla.mil.cohort import Cohort, Columns, read_cohort
from nnunet_gdla.mil.cohort_events import many_events, read_events, says_censored
from nnunet_gdla.mil.cohort_targets import read_labels
from nnunet_gdla.mil.commands.test import _event_reading
from nnunet_gdla.mil.models import build_model
from nnunet_gdla.mil.prepare import learned_from_data, load_cohort, prepare
from nnunet_gdla.mil.remarks import Remarks
from tests.mil.cohort_files import write_slides, write_table
from tests.mil.small_cohorts import make_cohort, small_config

CENSORED = [
    *("c", "C", "censor", "Censored", "CENSORSHIP", "censoring", "is_censored", "isCensored", "cens", "cens_os"),
    *("os_censor", "right-censored", "was_censored", "PFS.censorship", "Zensiert", "zensierung", "censuré", "censura"),
    *("cenzurováno", "gecensureerd", "删失", "打ち切り", "alive", "Alive_Flag", "living", "survived"),
    *("vital_status", "VitalStatus", "dead_or_alive", "Vitalstatus", "Überlebt", "vivant", "vivo", "生存状态"),
    *("CNSR", "surv_status", "vitstat", "in_remission", "NED"),
    *("event_free", "survival_status", "relapse-free", "no_event", "not_dead", "lost_to_followup"),
    *(
        "withdrawn",
        "Withdrew",
        "dropout",
        "dropped_out",
        "drop-out",
        "cured",
        "is_cured",
        "recovered",
        "lebt",
        "geheilt",
    ),
]
EVENTS = [
    *("event", "Event", "status", "OS", "os_event", "OS_STATUS", "DFS", "death", "dead", "Deceased", "died", "delta"),
    *("uncensored", "is_uncensored", "not_censored", "survival_event", "overall_survival_event", "relapse"),
    *("progression", "event_at_last_followup", "cause_of_death", "obscured"),
]


def column(name: str, *cells: str) -> pd.Series:
    return pd.Series(cells, index=range(2, 2 + len(cells)), name=name)


@pytest.mark.parametrize("name", CENSORED)
def test_m11_a_name_that_says_censored_or_alive_is_refused(name: str) -> None:
    assert says_censored(name)
    with pytest.raises(UserError, match="1 may mean censored or alive"):
        read_events(column(name, "0", "1"), None, remarks=Remarks())


@pytest.mark.parametrize("name", EVENTS)
def test_m11_a_name_of_an_event_is_taken(name: str) -> None:
    assert not says_censored(name)
    assert read_events(column(name, "0", "1"), None, remarks=Remarks()).tolist() == [0, 1]


@pytest.mark.parametrize("cells", [("0", "1"), ("0.0", "1.0"), ("FALSE", "True"), ("no", "Yes")])
@pytest.mark.parametrize(("said", "expected"), [(True, [1, 0]), (False, [0, 1])])
def test_m11_what_is_said_about_a_column_counts(cells: tuple[str, str], said: bool, expected: list[int]) -> None:
    remarks = Remarks()
    events = read_events(column("censorship", *cells), None, censoring=said, remarks=remarks)
    assert events.tolist() == expected
    assert any("1 means censored" in note for note in remarks.notes) is said


@pytest.mark.parametrize(
    ("cells", "hint"),
    [
        (("Alive", "Dead"), "{Alive: 0, Dead: 1}"),
        (("0:LIVING", "1:DECEASED"), "{0:LIVING: 0, 1:DECEASED: 1}"),
        (("1:LIVING", "0:DECEASED"), "{0:DECEASED: 1, 1:LIVING: 0}"),
        (("censored", "uncensored"), "{censored: 0, uncensored: 1}"),
        (("verstorben", "lebt"), "{lebt: 0, verstorben: 1}"),
    ],
)
@pytest.mark.parametrize("said", [None, True, False])
def test_m11_words_are_refused_with_the_map_that_is_right(cells: tuple[str, str], hint: str, said: bool | None) -> None:
    with pytest.raises(UserError) as refused:
        read_events(column("vital_status", *cells), None, censoring=said, remarks=Remarks())
    assert f"event_map, such as {hint}" in str(refused.value)


def test_m11_a_map_says_what_entries_mean_but_alive_is_no_event() -> None:
    events = read_events(column("vital_status", "Alive", "Dead"), {"alive": 0, "dead": 1}, remarks=Remarks())
    assert events.tolist() == [0, 1]
    assert read_events(column("censorship", "0", "1"), {"0": 1, "1": 0}, remarks=Remarks()).tolist() == [1, 0]
    with pytest.raises(UserError, match="event_map gives alive 1"):
        read_events(column("status", "Alive", "Dead"), {"Alive": 1, "Dead": 0}, remarks=Remarks())
    with pytest.raises(UserError, match="leave out event_is_censoring"):
        read_events(column("status", "0", "1"), {"0": 0, "1": 1}, censoring=True, remarks=Remarks())


def test_m11_nine_events_in_ten_are_pointed_out() -> None:
    assert many_events([1] * 9 + [0] * 11, "event", None) is None
    assert "set event_is_censoring: true" in (many_events([1] * 18 + [0] * 2, "event", None) or "")
    assert "set event_is_censoring: false" in (many_events([1] * 18 + [0] * 2, "censored", True) or "")
    assert many_events([1] * 18 + [0] * 2, "event", False) is None


def survival(tmp_path: Path, name: str, events: list[int], **options: Any) -> Cohort:  # noqa: ANN401
    ids = [f"s{i:02d}" for i in range(len(events))]
    write_slides(tmp_path / "h5", ids)
    times = [10 + i for i in range(len(events))]
    table = write_table(tmp_path / "t.csv", **{"slide_id": ids, "patient_id": ids, "time": times, name: events})
    return read_cohort(table, tmp_path / "h5", task="survival", columns=Columns(event=name), **options)


def test_m11_a_cohort_states_what_was_reversed_and_warns_by_share(tmp_path: Path) -> None:
    events = [1] * 9 + [0]
    cohort = survival(tmp_path, "censorship", events, event_is_censoring=True)
    assert cohort.table.event.tolist() == [0] * 9 + [1]
    assert "PASS column censorship: 1 means censored (event_is_censoring), so 0 is read as the event" in (
        cohort.remarks.lines
    )
    cohort = survival(tmp_path, "event", events)
    assert any(line.startswith("WARN 90% of 10 patients have an event") for line in cohort.remarks.lines)


def test_m11_settings_reverse_and_the_bundle_says_so(tmp_path: Path) -> None:
    make_cohort(tmp_path, "survival")
    table = pd.read_csv(tmp_path / "cohort.csv")
    truth = table.event.tolist()
    table.assign(censored=1 - table.event).drop(columns="event").to_csv(tmp_path / "cohort.csv", index=False)
    config = small_config(tmp_path, "survival")
    config.data.event = "censored"
    with pytest.raises(UserError, match="column censored: its name says"):
        load_cohort(config.data)
    config.data.event_is_censoring = True
    cohort = load_cohort(config.data)
    assert cohort.table.event.tolist() == truth
    info = learned_from_data(config, cohort, cohort.table, 16)
    assert (info.event_column, info.event_is_censoring) == ("censored", True)
    config.data.task = "classification"
    with pytest.raises(UserError, match="event_is_censoring is for survival"):
        prepare(config)


def args_of(column: str, said: str | None = None, event_map: list[str] | None = None, models: int = 1) -> Namespace:
    model = [f"run{number}" for number in range(models)]
    return Namespace(event_column=column, event_is_censoring=said, event_map=event_map or [], model=model)


def info_of(column: str | None, censoring: bool | None = None, event_map: dict[str, int] | None = None) -> BundleInfo:
    more: dict[str, Any] = {"event_column": column, "event_is_censoring": censoring, "event_map": event_map}
    return BundleInfo("survival", "abmil", {}, 8, 4, **more)


def test_m11_a_test_takes_over_what_was_said_about_the_same_column() -> None:
    infos = [info_of("censored", True)]
    assert _event_reading(args_of("censored"), infos) == (None, True)
    assert _event_reading(args_of("event", "false"), infos) == (None, False)
    assert _event_reading(args_of("censored", event_map=["0=1", "1=0"]), infos) == ({"0": 1, "1": 0}, None)
    with pytest.raises(UserError, match="say by --event-is-censoring"):
        _event_reading(args_of("event"), infos)


def test_a_test_reads_events_by_the_map_of_the_training() -> None:
    infos = [info_of("event", event_map={"0": 1, "1": 0})]
    assert _event_reading(args_of("event"), infos) == ({"0": 1, "1": 0}, None)
    assert _event_reading(args_of("event", "false"), infos) == (None, False)
    assert _event_reading(args_of("event", event_map=["0=0", "1=1"]), infos) == ({"0": 0, "1": 1}, None)
    with pytest.raises(
        UserError, match=r"column event by an event_map \(0=1, 1=0\); say by --event-map .* column dead"
    ):
        _event_reading(args_of("dead"), infos)


def test_the_bundle_keeps_the_event_map_and_older_ones_load_without(tmp_path: Path) -> None:
    make_cohort(tmp_path, "survival")
    truth = pd.read_csv(tmp_path / "cohort.csv").event
    config = small_config(tmp_path, "survival")
    config.data.event_map = cast(dict[str, int], {0: 1, 1: 0})  # as YAML reads it
    cohort = load_cohort(config.data)
    assert cohort.table.event.tolist() == (1 - truth).tolist()
    info = learned_from_data(config, cohort, cohort.table, 16)
    tree = json.loads(json.dumps(dataclasses.asdict(info)))
    assert info_from_dict(tree).event_map == info.event_map == {"0": 1, "1": 0}
    with pytest.raises(ValueError, match="event_map cannot be"):
        info_from_dict(tree | {"event_map": {"0": "dead"}})
    del tree["event_map"]
    assert info_from_dict(tree).event_map is None


def test_a_test_says_that_it_reads_events_as_in_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("nnunet_gdla.mil.commands.test.write_figures", lambda folder: [])
    make_cohort(tmp_path, "survival", slides=8)
    info = replace(info_of("event", event_map={"0": 1, "1": 0}), in_dim=16, bin_edges=(5.0, 10.0, 41.0))
    save_bundle(tmp_path / "bundle", build_model("abmil", 16, 4), info)
    command = ["test", "--model", str(tmp_path / "bundle"), "--cohort", str(tmp_path / "cohort.csv")]
    command += ["--out", str(tmp_path / "out"), "--workers", "0", "--bootstrap", "2", "--device", "cpu"]
    assert cli.main(command) == 0
    assert "PASS column event: events are read as in the training (0=1, 1=0)" in capsys.readouterr().out
    written = pd.read_csv(tmp_path / "out" / "predictions_test.csv").set_index("slide_id").event
    table = pd.read_csv(tmp_path / "cohort.csv").set_index("slide_id").event
    assert written.to_dict() == (1 - table).to_dict()


@pytest.mark.parametrize(
    "other",
    [info_of("event", True), info_of("event", event_map={"0": 1, "1": 0}), info_of("event", event_map={"dead": 1})],
)
def test_models_that_read_events_differently_are_refused_until_it_is_said(other: BundleInfo) -> None:
    for infos in ([info_of("event"), other], [other, info_of("event", False)]):
        with pytest.raises(UserError, match=r"do not read column event alike .*--event-is-censoring .*--event-map"):
            _event_reading(args_of("event", models=2), infos)
        assert _event_reading(args_of("event", "true", models=2), infos) == (None, True)
        assert _event_reading(args_of("event", event_map=["0=1", "1=0"]), infos) == ({"0": 1, "1": 0}, None)


def test_models_that_read_events_alike_need_nothing_said() -> None:
    assert _event_reading(args_of("event", models=2), [info_of("event"), info_of("event", False)]) == (None, False)
    assert _event_reading(args_of("event", models=2), [info_of(None), info_of("event")]) == (None, None)


@pytest.mark.parametrize("cells", [("no", "yes"), ("NO", "Yes"), ("False", "TRUE"), ("off", "on")])
def test_keys_that_yaml_makes_truth_values_are_understood(cells: tuple[str, str]) -> None:
    events = read_events(column("event", *cells), yaml.safe_load("{yes: 1, no: 0}"), remarks=Remarks())
    assert events.tolist() == [0, 1]
    events = read_events(column("event", *cells), yaml.safe_load("{true: 0, false: 1}"), remarks=Remarks())
    assert events.tolist() == [1, 0]
    assert read_labels(column("label", *cells), yaml.safe_load("{yes: b, no: a}"), []).tolist() == ["a", "b"]
