"""Names and shapes of the parameters: stored, and the same set that released checkpoints hold."""

import json
from pathlib import Path

import torch

from nnunet_gdla.networks import PVTGDLA
from nnunet_gdla.networks.weights import convert_released_state_dict
from tests.golden_files import golden_json
from tests.networks.builders import small_network

# Checkpoints of users hold these names: a change here breaks them.
STORED = Path(__file__).with_name("state_dict_pvt_v2_b0.json")


def _shapes(network: PVTGDLA) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in network.state_dict().items()}


def test_names_and_shapes_are_the_stored_ones() -> None:
    assert _shapes(small_network(3, 2)) == json.loads(STORED.read_text())


def test_a_released_checkpoint_of_the_whole_network_fits() -> None:
    for path in golden_json("keys_pvtgdla_b2_*.json"):
        listed = json.loads(path.read_text())
        dtypes = {"float32": torch.float32, "int64": torch.int64}
        released = {
            name: torch.empty(entry["shape"], dtype=dtypes[entry["dtype"]], device="meta")
            for name, entry in listed.items()
        }
        channels, classes = listed["resblk.conv1.weight"]["shape"][1], listed["head1.weight"]["shape"][0]
        with torch.device("meta"):
            network = PVTGDLA(channels, classes, gate="sigmoid", deep_supervision=True)
        own, converted = network.state_dict(), convert_released_state_dict(released)
        assert converted.keys() == own.keys()
        assert {n: (t.shape, t.dtype) for n, t in converted.items()} == {n: (t.shape, t.dtype) for n, t in own.items()}


def test_encoder_names_are_timms() -> None:
    (path,) = golden_json("encoder_key_map_timm_features_only.json")
    names: dict[str, str] = json.loads(path.read_text())
    for theirs, timms in names.items():
        (ours,) = convert_released_state_dict({f"backbone.{theirs}": torch.zeros(1)})
        assert ours == f"encoder.{timms}"
    with torch.device("meta"):
        encoder = PVTGDLA(3, 2).encoder
    assert set(encoder.state_dict()) == set(names.values())
