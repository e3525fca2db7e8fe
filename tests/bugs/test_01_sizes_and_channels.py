"""Logits have the input's size and are finite: odd, tiny, strip-shaped inputs, 1 to 13 channels, 1 to 130 outputs.

Kinds of bug: skips one element apart, outputs rounded to multiples, sizes fixed at construction, stems for 3 channels.
"""

import pytest
import torch

from nnunet_gdla.networks import PVTGDLA
from tests.bugs.sizes import SIZES
from tests.networks.builders import DECODERS, small_network

FEW_SIZES = [(64, 96), (97, 131), (20, 30)]


def _assert_right(network: PVTGDLA, channels: int, classes: int, size: tuple[int, int], batch: int = 1) -> None:
    with torch.no_grad():
        y = network(torch.randn(batch, channels, *size))
    assert y.shape == (batch, classes, *size)
    assert torch.isfinite(y).all()


@pytest.mark.parametrize(("channels", "classes"), [(1, 2), (2, 3), (3, 1), (4, 5), (13, 2), (3, 130)])
def test_every_size(channels: int, classes: int) -> None:
    network = small_network(channels, classes).eval()
    for size in SIZES if channels in (1, 3) and classes < 100 else FEW_SIZES:
        _assert_right(network, channels, classes, size)
    _assert_right(network, channels, classes, (64, 64), batch=3)


@pytest.mark.parametrize("decoder", DECODERS[1:])
def test_every_size_with_the_comparators(decoder: str) -> None:
    network = small_network(1, 2, decoder=decoder).eval()
    for size in [*FEW_SIZES, (1, 1), (8, 300), (300, 8)]:
        _assert_right(network, 1, 2, size)


@pytest.mark.slow
def test_very_long_and_very_large_images() -> None:
    network = small_network(1, 2).eval()
    for size in [(1000, 130), (1, 1000), (720, 960), (800, 275), (630, 630)]:
        _assert_right(network, 1, 2, size)


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ["pvt_v2_b2"])
def test_the_default_network(encoder: str) -> None:
    network = small_network(1, 2, encoder=encoder).eval()
    for size in SIZES:
        _assert_right(network, 1, 2, size)


def test_one_image_does_not_change_when_another_joins_the_batch() -> None:
    network = small_network(3, 2).eval()
    a, b = torch.randn(1, 3, 64, 96), 50 * torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        assert (network(a) - network(torch.cat([a, b]))[:1]).abs().max() < 1e-3
