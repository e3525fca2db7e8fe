"""Constant, huge and tiny images: finite output and gradients. NaN and Inf in one image leave the others alone.

Kinds of bug: division by a zero deviation, attention of a blank image, statistics shared by the batch.
"""

import pytest
import torch
from torch import Tensor

from tests.networks.builders import DECODERS, small_network

SIZE = (64, 64)


def _hot_pixel() -> Tensor:
    image = torch.zeros(1, 2, *SIZE)
    image[0, 0, 5, 5] = 3e4
    return image


def _one_constant_channel() -> Tensor:
    image = torch.randn(1, 2, *SIZE)
    image[:, 0] = 0
    return image


LEGAL = {
    "zeros": lambda: torch.zeros(1, 2, *SIZE),
    "constant": lambda: torch.full((1, 2, *SIZE), 77.0),
    "one constant channel": _one_constant_channel,
    "huge": lambda: 1e4 * torch.randn(1, 2, *SIZE),
    "tiny": lambda: 1e-6 * torch.randn(1, 2, *SIZE),
    "one hot pixel": _hot_pixel,
}


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("kind", LEGAL)
def test_a_legal_image_gives_finite_outputs_and_gradients(decoder: str, kind: str) -> None:
    network = small_network(2, 3, decoder=decoder).train()
    y = network(LEGAL[kind]())
    y.square().mean().backward()
    assert torch.isfinite(y).all()
    grads = {name: parameter.grad for name, parameter in network.named_parameters() if parameter.grad is not None}
    bad = [name for name, grad in grads.items() if not bool(torch.isfinite(grad).all())]
    assert not bad


@pytest.mark.parametrize("encoder", ["pvt_v2_b0", "pvt_v2_b2"])
def test_blank_images_do_not_drown_the_gradients_of_the_others(encoder: str) -> None:
    # a network without biases keeps an image of zeros at zero, where a layer norm multiplies gradients by 300 to 1000
    network = small_network(2, 3, encoder=encoder).train()

    def largest_gradient(x: Tensor) -> float:
        network.zero_grad()
        network(x).square().mean().backward()
        return max(p.grad.abs().max().item() for p in network.parameters() if p.grad is not None)

    ordinary = torch.randn(2, 2, *SIZE)
    half_blank = ordinary.clone()
    half_blank[1] = 0
    assert largest_gradient(half_blank) < 100 * largest_gradient(ordinary)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("kind", ["zeros", "constant", "one hot pixel"])
def test_a_legal_image_is_finite_under_autocast(decoder: str, kind: str) -> None:
    network = small_network(2, 3, decoder=decoder).eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        y = network(LEGAL[kind]())
    assert torch.isfinite(y).all()


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_an_illegal_image_leaves_the_others_of_the_batch_alone(decoder: str, value: float) -> None:
    network = small_network(2, 3, decoder=decoder).eval()
    clean = torch.randn(1, 2, *SIZE)
    batch = torch.cat([clean, clean])
    batch[1, 0, 3, 3] = value
    with torch.no_grad():
        alone, together = network(clean), network(batch)
    torch.testing.assert_close(together[:1], alone, rtol=1e-4, atol=1e-5)
    # and it shows: a network that answers numbers to NaN would hide it
    assert not torch.isfinite(together[1]).all()
