"""The rival of the segmentation benchmarks computes what our network computes: values and gradients, in float64."""

from typing import cast

import pytest
import torch
from torch import Tensor

from benchmarks.measure import DifferenceError, Table, compare_outputs
from benchmarks.released_layers import boundary_dou
from benchmarks.released_network import ReleasedPVTGDLA, released_losses
from benchmarks.subjects import (
    Side,
    Versus,
    images,
    labels,
    make_pair,
    our_losses,
    our_stages,
    our_supervised,
    our_tail,
)
from nnunet_gdla.networks import PVTGDLA
from tests.reference.boundary_dou import boundary_dou_naive

pytestmark = pytest.mark.timeout(600)  # many seconds of one core, minutes where others work too

SIZE = 64


@pytest.mark.parametrize(("channels", "gate"), [(1, "silu"), (3, "sigmoid")])
def test_losses_and_all_gradients_equal_ours(channels: int, gate: str) -> None:
    _, ours = make_pair(channels, encoder="pvt_v2_b0", classes=4)
    for block in ours.decoder.blocks:
        block.attention.gate = gate  # type: ignore[union-attr]
    ours = ours.double().train()
    rival = ReleasedPVTGDLA(ours)
    x, truth = images(2, SIZE, channels).double(), labels(2, SIZE, 4)
    losses = {"rival": released_losses(rival.supervised(x), truth), "ours": our_losses(our_supervised(ours, x), truth)}
    compare_outputs(losses["rival"], losses["ours"], rtol=1e-10)

    gradients = [
        dict(zip(dict(network.named_parameters()), torch.autograd.grad(loss, list(network.parameters())), strict=True))
        for network, loss in zip((rival, ours), losses.values(), strict=True)
    ]
    stem = "encoder.patch_embed.proj.weight"
    gradients[0][stem] = gradients[0][stem][:, :channels]  # one channel: three equal slices
    for name, gradient in gradients[1].items():
        compare_outputs({name: gradients[0][name].flatten()}, {name: gradient.flatten()}, rtol=1e-8, atol=1e-11)


def test_predictions_equal_ours_and_ours_is_the_sum_of_its_parts() -> None:
    ours = make_pair(encoder="pvt_v2_b0", classes=4)[1].double().eval()
    rival = ReleasedPVTGDLA(ours)
    x = images(1, SIZE).double()
    with torch.no_grad():
        outputs = our_supervised(ours, x)
        compare_outputs(rival(x), outputs[0], rtol=1e-10)
        maps = our_stages(ours, cast(list[Tensor], ours.encoder(x)))
        compare_outputs(outputs, our_tail(ours, maps, x, auxiliary=True), rtol=1e-12)


def test_the_loss_is_the_one_of_the_formula() -> None:
    logits, truth = torch.randn(2, 4, 19, 23).double(), torch.randint(0, 3, (2, 19, 23))  # no pixel of class 3
    compare_outputs(boundary_dou_naive(logits, truth[:, None]), boundary_dou(logits, truth), rtol=1e-10)


def test_a_network_with_other_switches_is_refused() -> None:
    with pytest.raises((RuntimeError, AttributeError)):
        ReleasedPVTGDLA(PVTGDLA(1, 2, encoder="pvt_v2_b0", local_mixing=None))


def test_nothing_is_timed_where_results_differ() -> None:
    x = torch.randn(3, requires_grad=True)
    table = Table("Title", "Claim.", "command")
    different = Versus("it", Side(lambda: x * 2, {"x": x}, []), Side(lambda: x * 3, {"x": x}, []))
    with pytest.raises(DifferenceError):
        different.add_evaluation(table, 1)
    with pytest.raises(DifferenceError):
        different.add_training(table, 1)
    assert table.rows == []
    equal = Versus("it", Side(lambda: x * 2, {"x": x}, []), Side(lambda: x + x, {"x": x}, []))
    equal.add_evaluation(table, 1)
    equal.add_training(table, 1)
    assert [cells[0] for cells, _, _ in table.rows] == [
        "it, evaluation",
        "it, forward + backward",
        "it, kept for backward",
    ]
