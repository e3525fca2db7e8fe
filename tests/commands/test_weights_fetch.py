"""Fetching: from the hub's cache where it is, one sentence where there is no network."""

import shlex
import socket
from pathlib import Path

import pytest
import safetensors.torch
import torch

from nnunet_gdla.errors import UserError
from nnunet_gdla.networks.weights import WEIGHTS_VARIABLE
from tests.commands.weights_cases import run_weights
from tests.trainers.encoder_files import hub_cache_with, published_tensors, set_hub_cache


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv(WEIGHTS_VARIABLE, "imagenet")
    set_hub_cache(monkeypatch, tmp_path / "hub")
    return tmp_path / "hub"


def test_what_the_cache_holds_is_found_and_said(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = hub_cache_with(cache, "pvt_v2_b0", published_tensors())
    assert run_weights("fetch", "-e", "pvt_v2_b0") == 0
    out = capsys.readouterr().out
    assert f"pvt_v2_b0: {file}\n" in out
    assert f"export HF_HUB_CACHE={shlex.quote(str(cache))}" in out
    assert "unset" not in out


def test_a_variable_that_stands_in_the_way_is_named(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub_cache_with(cache, "pvt_v2_b0", published_tensors())
    monkeypatch.setenv(WEIGHTS_VARIABLE, "none")
    run_weights("fetch", "-e", "pvt_v2_b0")
    assert f"unset {WEIGHTS_VARIABLE}" in capsys.readouterr().out


def test_copies_go_to_a_folder(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = published_tensors()
    hub_cache_with(cache, "pvt_v2_b0", tensors)
    folder = tmp_path / "for the nodes" / "weights"
    for _ in range(2):
        assert run_weights("fetch", "-e", "pvt_v2_b0", "--to", folder) == 0
        assert [path.name for path in folder.iterdir()] == ["pvt_v2_b0.safetensors"]
    copy = folder / "pvt_v2_b0.safetensors"
    assert f"export {WEIGHTS_VARIABLE}={shlex.quote(str(copy))}" in capsys.readouterr().out
    assert all(torch.equal(value, tensors[name]) for name, value in safetensors.torch.load_file(copy).items())


def test_without_network_it_is_one_sentence(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def refuse(host: object, *args: object, **kwargs: object) -> None:
        asked.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "no network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with pytest.raises(UserError) as caught:
        run_weights("fetch", "-e", "pvt_v2_b0", "--to", tmp_path / "to")
    message = str(caught.value)
    assert "\n" not in message
    for part in ("pvt_v2_b0", "no network", "model.safetensors", str(cache), f"{WEIGHTS_VARIABLE}=none"):
        assert part in message
    assert set(asked) <= {"huggingface.co"}
    assert not (tmp_path / "to").exists()


def test_a_damaged_file_in_the_cache_is_named(cache: Path) -> None:
    file = hub_cache_with(cache, "pvt_v2_b0", published_tensors())
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"damaged.*delete .*fetch again"):
        run_weights("fetch", "-e", "pvt_v2_b0")


def test_a_folder_that_cannot_be_written_is_named(cache: Path, tmp_path: Path) -> None:
    hub_cache_with(cache, "pvt_v2_b0", published_tensors())
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be written.*--to"):
        run_weights("fetch", "-e", "pvt_v2_b0", "--to", tmp_path / "file" / "folder")
