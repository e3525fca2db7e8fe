"""Encoder weights without internet, from every layout, and from files that are none: see also networks/test_weights.py.

Kinds of bug: downloads at construction or prediction, loaders that report success and load nothing, unpickled objects.
"""

from pathlib import Path

import pytest
import torch

from nnunet_gdla.networks.weights import load_encoder_weights
from tests.networks.builders import small_network
from tests.networks.encoder_files import BAD_FILES, GOOD_FILES, encoder_state, features_name


@pytest.mark.parametrize("channels", [1, 3, 4, 13])
def test_random_weights_and_prediction_need_no_network(channels: int) -> None:
    # the tests' own guard refuses every connection that leaves this machine
    network = small_network(channels).eval()
    with torch.no_grad():
        assert torch.isfinite(network(torch.zeros(1, channels, 32, 32))).all()


@pytest.mark.parametrize(
    ("layout", "channels"), [*((layout, 3) for layout in GOOD_FILES), ("timm", 1), ("original", 4), ("no head", 13)]
)
def test_all_but_the_stem_equals_the_file_tensor_by_tensor(layout: str, channels: int, tmp_path: Path) -> None:
    state = encoder_state()
    path = tmp_path / "encoder.pth"
    torch.save(GOOD_FILES[layout](state), path)
    network = small_network(channels)
    load_encoder_weights(network, path)
    own = network.encoder.state_dict()
    kept = {features_name(name): tensor for name, tensor in state.items() if not name.startswith("head")}
    equal = {
        name for name, tensor in kept.items() if own[name].shape == tensor.shape and torch.equal(own[name], tensor)
    }
    assert equal == set(own) - (set() if channels == 3 else {"patch_embed.proj.weight"})


@pytest.mark.parametrize(
    "kind", ["one tensor missing", "other size", "NaN inside", "html", "truncated", "pickled trap"]
)
def test_a_bad_file_does_not_pass_silently_for_other_channel_counts_either(kind: str, tmp_path: Path) -> None:
    write, _ = BAD_FILES[kind]
    path = tmp_path / "encoder.pth"
    write(path)
    with pytest.raises((ValueError, OSError)):
        load_encoder_weights(small_network(1), path)
    assert not path.with_suffix(".trap").exists()
