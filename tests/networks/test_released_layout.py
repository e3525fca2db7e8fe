"""What the names and shapes of tensors tell of their network."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from nnunet_gdla.networks import PVTGDLA
from nnunet_gdla.networks.released import convert_released_state_dict
from nnunet_gdla.networks.released_layout import Layout, misfits, read_layout, with_choices
from tests.golden_files import golden_json
from tests.networks.builders import VARIANTS, small_network


def rebuilt(layout: Layout, options: dict[str, Any]) -> dict[str, Any]:
    chosen = {name: options.get(name) for name in layout.untold}
    if "gate" in layout.untold:
        chosen["gate"] = options.get("gate", "silu")
    return with_choices(layout, **chosen)


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_the_tensors_tell_the_network(options: dict[str, Any]) -> None:
    network = small_network(2, 5, **options).eval()
    state = network.state_dict()
    layout = read_layout(state)
    assert (layout.input_channels, layout.num_classes) == (2, 5)
    arguments = rebuilt(layout, options)
    assert misfits(state, layout, arguments) == []
    again = PVTGDLA(2, 5, **arguments).eval()
    again.load_state_dict(state)
    x = torch.randn(1, 2, 40, 64)
    with torch.no_grad():
        assert torch.equal(again(x), network(x))
    assert arguments == json.loads(json.dumps(arguments))


@pytest.mark.parametrize("encoder", [f"pvt_v2_b{size}" for size in range(6)])
def test_every_encoder_is_told(encoder: str) -> None:
    with torch.device("meta"):
        state = PVTGDLA(3, 2, encoder=encoder).state_dict()
    assert read_layout(state).arguments["encoder"] == encoder


def test_the_key_listings_are_told() -> None:
    for path in golden_json("keys_pvtgdla_*.json"):
        listing = json.loads(Path(path).read_text())
        state = {name: torch.zeros(entry["shape"]) for name, entry in listing.items()}
        layout = read_layout(convert_released_state_dict(state))
        assert layout.untold == ("gate",)
        assert f"_{layout.arguments['encoder'].rpartition('_')[2]}_" in path.stem
        assert path.stem.endswith(f"_in{layout.input_channels}_c{layout.num_classes}")
        assert misfits(convert_released_state_dict(state), layout, layout.arguments) == []


@pytest.mark.parametrize(
    ("decoder", "choices", "message"),
    [
        ("gdla", {"decoder": "self"}, "decoder 'gdla', not 'self'"),
        ("gdla", {"num_heads": [1, 1, 1]}, r"num_heads \[1, 2, 5\], not \[1, 1, 1\]"),
        ("gdla", {"rope": True}, "no rotary positions"),
        ("diff", {"gate": "silu"}, "decoder 'diff' has no gate"),
        ("self", {}, "alike: say which one"),
        ("linear", {"decoder": "gdla"}, "not 'gdla'"),
    ],
)
def test_a_choice_against_the_tensors_is_refused(decoder: str, choices: dict[str, Any], message: str) -> None:
    layout = read_layout(small_network(decoder=decoder).state_dict())
    with pytest.raises(ValueError, match=message):
        with_choices(layout, **choices)


def test_faults_are_counted_and_named() -> None:
    state = dict(small_network().state_dict())
    layout = read_layout(state)
    del state["stem.norm1.bias"]
    state |= {"extra": torch.zeros(1), "stem.norm2.bias": torch.zeros(3)}
    state["stem.norm3.bias"] = state["stem.norm3.bias"] * torch.nan
    assert misfits(state, layout, layout.arguments) == [
        "1 missing (stem.norm1.bias)",
        "1 unknown (extra)",
        "1 of another shape (stem.norm2.bias)",
        "1 not finite (stem.norm3.bias)",
    ]
