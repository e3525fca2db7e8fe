"""How golden files of the slide models are found, and that none of them lies there unused."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import srp_golden
from tests.paths import ROOT
from tests.srp_golden import KINDS, VARIABLE, kind_of, srp_folder, srp_params


@pytest.fixture(autouse=True)
def _forget_folder() -> Iterator[None]:
    srp_golden._by_kind.cache_clear()
    yield
    srp_golden._by_kind.cache_clear()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("attn_srp_signed", "attn_srp_signed"),
        ("attn_srp_signed_streaming", "attn_srp_signed_streaming"),
        ("attn_srp_signed_2", "attn_srp_signed"),
        ("attn_diff_depth2", "attn_diff_depth"),
        ("ppeg_9x3", "ppeg"),
        ("gate_summary", "gate_summary"),
        ("projection_win7", "projection_win5"),
        ("attn_vit4_fixed1", "attn_vit4_fixed2"),
        ("projection_beta_2", "projection_beta_2"),
        ("projection_beta_learn_2", "projection_beta_learn"),
        ("model_srpx", None),
    ],
)
def test_the_kind_is_the_longest_that_the_name_begins_with(name: str, kind: str | None) -> None:
    assert kind_of(Path(f"{name}.npz")) == kind


def test_every_file_has_a_kind() -> None:
    files = sorted(srp_folder().glob("*.npz"))
    if not files:
        pytest.skip(f"no golden files in {srp_folder()}")
    assert [path.name for path in files if kind_of(path) is None] == []


def test_every_kind_is_compared_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[str] = set()

    def note(*kinds: str) -> list[Any]:
        asked.update(kinds)
        return []

    monkeypatch.setattr(srp_golden, "srp_params", note)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if "srp_params(" in path.read_text(encoding="utf-8"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            if name != __name__ and path != Path(__file__):
                importlib.reload(importlib.import_module(name))
    assert set(KINDS) - asked == set()


def test_a_kind_that_the_named_folder_lacks_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setattr(srp_golden, "NAMED", tmp_path / "srp")
    (missing,) = srp_params("ppeg")
    assert not missing.marks
    with pytest.raises(pytest.fail.Exception, match=rf"{VARIABLE}.*'ppeg'"):
        _ = missing.values[0].tensors


def test_without_any_folder_a_kind_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(srp_golden, "NAMED", None)
    monkeypatch.setattr(srp_golden, "SHARED_FOLDER", tmp_path)
    (absent,) = srp_params("ppeg")
    (mark,) = absent.marks
    assert mark.name == "skip"
    assert VARIABLE in mark.kwargs["reason"]
