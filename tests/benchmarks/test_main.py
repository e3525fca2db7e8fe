"""`python -m benchmarks`: a whole page or none, and a failure has a name."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from tests.paths import ROOT

SECTION = "## A\n\n| what | target | reached |\n| --- | --- | --- |\n| it | at least 2x | **missed** |\n"


@pytest.fixture
def arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What the command line holds; `docs/benchmarks.md` is elsewhere."""
    given = ["benchmarks"]
    monkeypatch.setattr(sys, "argv", given)
    monkeypatch.setattr(command, "PAGE", tmp_path / "docs" / "benchmarks.md")
    return given


def test_help_names_every_benchmark_and_loads_nothing_heavy() -> None:
    code = (
        "import sys, runpy\nsys.argv[1:] = ['--help']\ntry:\n    runpy.run_module('benchmarks', run_name='__main__')\n"
    )
    code += "except SystemExit as stop:\n    assert not stop.code and 'torch' not in sys.modules\n"
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert all(name in shown for name in command.BENCHMARKS)


def test_every_benchmark_is_a_module_with_a_table() -> None:
    for name in command.BENCHMARKS:
        source = (ROOT / "benchmarks" / f"{name}.py").read_text()
        assert "\ndef table(quick: bool" in source
        assert f"python -m benchmarks.{name}" in source


def test_the_page_holds_all_sections_and_the_machine(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "run_one", lambda name, **_: SECTION.replace("A", name))
    assert command.main() == 0
    page = command.PAGE.read_text()
    assert all(f"## {name}\n" in page for name in command.BENCHMARKS)
    assert "torch" in page
    assert f"Targets missed: {len(command.BENCHMARKS)}." in page
    assert list(command.PAGE.parent.iterdir()) == [command.PAGE]
    assert "missed targets" in capsys.readouterr().err


def test_a_failure_is_named_the_others_go_on_and_the_old_page_stays(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command.PAGE.parent.mkdir()
    command.PAGE.write_text("old")
    monkeypatch.setattr(command, "run_one", lambda name, **_: None if name == "growth" else SECTION)
    assert command.main() == 1
    assert command.PAGE.read_text() == "old"
    shown = capsys.readouterr()
    assert "failed: growth" in shown.err
    assert shown.out.count("## A") == len(command.BENCHMARKS) - 1


def test_some_benchmarks_do_not_replace_the_page_of_all(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran = []
    monkeypatch.setattr(command, "run_one", lambda name, **_: ran.append(name) or SECTION)
    arguments += ["--only", "growth"]
    assert command.main() == 0
    assert ran == ["growth"]
    assert not command.PAGE.exists()
    arguments += ["--out", str(tmp_path / "some.md")]
    assert command.main() == 0
    assert (tmp_path / "some.md").read_text().count("## A") == 1


def test_a_benchmark_that_cannot_run_has_no_section(capfd: pytest.CaptureFixture[str]) -> None:
    assert command.run_one("no_such_benchmark", full=False, threads=1) is None
    assert "no_such_benchmark failed with exit status 1" in capfd.readouterr().err
