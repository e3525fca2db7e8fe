"""Event columns: which value is the event, and columns that may mean the opposite."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.bundle_info import BundleInfo
from nnunet_gdla.mil.cohort import Cohort, Columns, read_cohort
from nnunet_gdla.mil.cohort_events import many_events, read_events, says_censored
from nnunet_gdla.mil.commands.test import _event_is_censoring
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
]
EVENTS = [
    *("event", "Event", "status", "OS", "os_event", "OS_STATUS", "DFS", "death", "dead", "Deceased", "died", "delta"),
    *("uncensored", "is_uncensored", "not_censored", "survival_event", "overall_survival_event", "relapse"),
    *("progression", "event_at_last_followup", "cause_of_death"),
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


def test_m11_a_test_takes_over_what_was_said_about_the_same_column() -> None:
    info = BundleInfo("survival", "abmil", {}, 8, 4, event_column="censored", event_is_censoring=True)

    def asked(name: str, said: str | None = None, event_map: list[str] | None = None) -> bool | None:
        args = Namespace(event_column=name, event_is_censoring=said, event_map=event_map or [])
        return _event_is_censoring(args, info)

    assert asked("censored") is True
    assert asked("event", "false") is False
    assert asked("censored", event_map=["0=1", "1=0"]) is None
    with pytest.raises(UserError, match="say by --event-is-censoring"):
        asked("event")
