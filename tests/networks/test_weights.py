"""Encoder weights: every layout loads completely, every bad file is refused with one sentence, nothing is fetched."""

import os
import subprocess
import sys
import time
from pathlib import Path

import huggingface_hub
import pytest
import torch
from torch import Tensor

from nnunet_gdla.networks import PVTGDLA
from nnunet_gdla.networks.weights import load_encoder_weights
from tests.networks.builders import small_network
from tests.networks.encoder_files import BAD_FILES, GOOD_FILES, encoder_state, features_name, write_hub_cache

STEM = "patch_embed.proj.weight"


@pytest.fixture
def state() -> dict[str, Tensor]:
    return dict(encoder_state())


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache of this test's own."""
    cache = tmp_path / "hub"
    cache.mkdir()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    return cache


def _assert_loaded(network: PVTGDLA, state: dict[str, Tensor], stem: Tensor | None = None) -> None:
    own = network.encoder.state_dict()
    expected = {features_name(name): tensor for name, tensor in state.items() if not name.startswith("head")}
    expected[STEM] = expected[STEM] if stem is None else stem
    assert own.keys() == expected.keys()
    for name, tensor in own.items():
        torch.testing.assert_close(tensor, expected[name].to(tensor.dtype), rtol=1e-6, atol=1e-7)


def _snapshot(network: PVTGDLA) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}


def _assert_unchanged(network: PVTGDLA, before: dict[str, Tensor]) -> None:
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def _assert_one_sentence(error: BaseException, *parts: str) -> None:
    message = str(error)
    assert "\n" not in message
    assert len(message) < 700
    for part in parts:
        assert part in message, message


@pytest.mark.parametrize("layout", GOOD_FILES)
def test_every_layout_loads_completely(layout: str, state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "encoder.pth"
    torch.save(GOOD_FILES[layout](state), path)
    network = small_network(3)
    decoder = {name: tensor.clone() for name, tensor in network.decoder.state_dict().items()}
    message = load_encoder_weights(network, path if layout == "timm" else str(path))
    _assert_loaded(network, state)
    assert all(torch.equal(tensor, decoder[name]) for name, tensor in network.decoder.state_dict().items())
    count = sum(not name.startswith("head") for name in state)
    assert str(count) in message
    assert str(path) in message


def test_a_file_in_half_precision_fills_a_network_in_full_precision(state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "half.pth"
    half = {name: tensor.half() for name, tensor in state.items()}
    torch.save(half, path)
    network = small_network(3)
    load_encoder_weights(network, path)
    assert all(parameter.dtype == torch.float32 for parameter in network.parameters())
    _assert_loaded(network, half)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 13])
def test_the_stem_is_fitted_to_any_number_of_channels_and_the_rest_is_loaded(
    channels: int, state: dict[str, Tensor], tmp_path: Path
) -> None:
    path = tmp_path / "encoder.pth"
    torch.save(state, path)
    network = small_network(channels)
    message = load_encoder_weights(network, path)
    weight = state[STEM]
    if channels == 1:
        stem = weight[:, 0:1] + weight[:, 1:2] + weight[:, 2:3]
    else:  # timm's rule: the filters repeated, scaled so that a constant image gives what it gave
        stem = torch.stack([weight[:, c % 3] for c in range(channels)], 1) * (3 / channels)
    _assert_loaded(network, state, stem)
    assert ("channels" in message) == (channels != 3)


def test_one_channel_sees_what_three_equal_channels_see(state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "encoder.pth"
    torch.save(state, path)
    grey, colour = small_network(1).eval(), small_network(3).eval()
    for network in (grey, colour):
        load_encoder_weights(network, path)
    x = torch.randn(1, 1, 64, 96)
    with torch.no_grad():
        for one, three in zip(grey.encoder(x), colour.encoder(x.repeat(1, 3, 1, 1)), strict=True):
            torch.testing.assert_close(one, three, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_file_is_refused_with_one_sentence_and_changes_nothing(kind: str, tmp_path: Path) -> None:
    write, message = BAD_FILES[kind]
    path = tmp_path / "encoder.pth"
    write(path)
    network = small_network(3)
    before = _snapshot(network)
    with pytest.raises((ValueError, OSError), match=message) as error:
        load_encoder_weights(network, path)
    _assert_one_sentence(error.value, str(path))
    _assert_unchanged(network, before)
    assert not path.with_suffix(".trap").exists()


def test_a_refusal_counts_all_and_names_the_first_three(state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "encoder.pth"
    torch.save({name: tensor for name, tensor in state.items() if "norm1" not in name}, path)
    with pytest.raises(ValueError, match="norm1") as error:
        load_encoder_weights(small_network(3), path)
    missing = [features_name(name) for name in state if "norm1" in name]
    _assert_one_sentence(error.value, str(len(missing)))
    assert sum(name in str(error.value) for name in missing) == 3


def test_none_leaves_the_network_as_it_is() -> None:
    network = small_network(3)
    before = _snapshot(network)
    load_encoder_weights(network, None)
    _assert_unchanged(network, before)


@pytest.mark.parametrize("file_name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("channels", [1, 3])
def test_imagenet_comes_from_the_hubs_cache_without_network(
    file_name: str, channels: int, state: dict[str, Tensor], hub_cache: Path
) -> None:
    path = write_hub_cache(hub_cache, "pvt_v2_b0", state, file_name)
    network = small_network(channels)
    message = load_encoder_weights(network, "imagenet")
    _assert_loaded(network, state, state[STEM].sum(1, keepdim=True) if channels == 1 else None)
    assert str(path) in message


def test_the_cache_of_another_encoder_is_not_taken(state: dict[str, Tensor], hub_cache: Path) -> None:
    write_hub_cache(hub_cache, "pvt_v2_b0", state)
    network = small_network(3, encoder="pvt_v2_b1")
    before = _snapshot(network)
    with pytest.raises((ValueError, OSError)) as error:
        load_encoder_weights(network, "imagenet")
    _assert_one_sentence(error.value, "pvt_v2_b1")
    _assert_unchanged(network, before)


@pytest.mark.parametrize("damage", ["truncated", "html"])
def test_a_damaged_cache_is_refused_with_one_sentence(damage: str, state: dict[str, Tensor], hub_cache: Path) -> None:
    path = write_hub_cache(hub_cache, "pvt_v2_b0", state)
    path.write_bytes(path.read_bytes()[:5000] if damage == "truncated" else b"<html>404</html>")
    network = small_network(3)
    before = _snapshot(network)
    with pytest.raises(ValueError, match=r"damaged|download") as error:
        load_encoder_weights(network, "imagenet")
    _assert_one_sentence(error.value, str(path))
    _assert_unchanged(network, before)


def test_without_cache_and_network_one_sentence_names_file_place_and_switch(hub_cache: Path) -> None:
    network = small_network(3)
    before = _snapshot(network)
    start = time.monotonic()
    with pytest.raises((ValueError, OSError)) as error:
        load_encoder_weights(network, "imagenet")
    assert time.monotonic() - start < 10, "the hub's client tries again and again; a training has to stop at once"
    _assert_one_sentence(
        error.value,
        "pvt_v2_b0",
        "model.safetensors",
        str(hub_cache),
        "NNUNET_GDLA_ENCODER_WEIGHTS",
        "none",
        "https://huggingface.co/timm/pvt_v2_b0",
    )
    _assert_unchanged(network, before)


SCRIPT = """
import socket, sys
def blocked(*args, **kwargs):
    raise OSError("blocked by the test")
socket.socket.connect = socket.getaddrinfo = socket.create_connection = blocked
import torch
from nnunet_gdla.networks import PVTGDLA
from nnunet_gdla.networks.weights import load_encoder_weights
network = PVTGDLA(1, 2, encoder="pvt_v2_b0")
with torch.no_grad():
    assert network.eval()(torch.zeros(1, 1, 32, 32)).shape == (1, 2, 32, 32)
print("predicted")
try:
    print(load_encoder_weights(network, "imagenet"))
except (ValueError, OSError) as error:
    print(type(error).__name__, error)
    sys.exit(3)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "offline", "filled"),
    [("HF_HUB_CACHE", "0", True), ("HF_HOME", "1", True), ("HF_HOME", "0", False), ("HF_HUB_CACHE", "1", False)],
)
def test_a_users_cache_is_found_through_the_hubs_own_variables(
    variable: str, offline: str, filled: bool, state: dict[str, Tensor], tmp_path: Path
) -> None:
    cache = tmp_path if variable == "HF_HUB_CACHE" else tmp_path / "hub"
    cache.mkdir(exist_ok=True)
    if filled:
        write_hub_cache(cache, "pvt_v2_b0", state)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGINGFACE"))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**environment, variable: str(tmp_path), "HF_HUB_OFFLINE": offline, "XDG_CACHE_HOME": str(tmp_path / "x")},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "predicted", done.stderr
    assert len(lines) == 2, lines
    assert done.returncode == (0 if filled else 3), done.stderr
    assert str(cache) in lines[1]


@pytest.mark.parametrize("first", ["h", "j", "e", "N", "q", "(", "<", "P"])
def test_any_text_file_is_refused_with_one_sentence(first: str, tmp_path: Path) -> None:
    # torch's reader takes the letters for pickle instructions and fails in as many ways as there are letters.
    path = tmp_path / "weights.pth"
    path.write_text(f"{first}ello, this is a note\n")
    with pytest.raises(ValueError, match=r"is (?:text|a web page), not weights; "):
        load_encoder_weights(PVTGDLA(1, 2, encoder="pvt_v2_b0"), path)
