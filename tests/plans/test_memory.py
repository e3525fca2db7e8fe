"""The memory model against what torch counts: saved tensors and parameters."""

import pytest
import torch

from nnunet_gdla.networks.encoder import ENCODERS
from nnunet_gdla.ops import use_forms
from nnunet_gdla.plans.nnunet_gdla_memory import (
    GIB,
    Device,
    largest_batch,
    saved_bytes,
    training_memory,
)
from nnunet_gdla.plans.nnunet_gdla_sizes import NetworkSize, count_parameters
from tests.plans.counted import build, count_saved_bytes

SHARE = 0.15
DECODERS = ("gdla", "linear", "self", "diff")
# Small, oblong, long and thin, odd, tiny, square and large.
TEN_PATCHES = [
    (32, 32),
    (64, 64),
    (20, 30),
    (96, 160),
    (97, 131),
    (32, 320),
    (224, 224),
    (256, 192),
    (320, 320),
    (8, 300),
]


def relative_error(size: NetworkSize, patch: tuple[int, int], batch: int, *, fused: bool = True) -> float:
    with use_forms("cpu" if fused else "plain"):
        counted = count_saved_bytes(build(size), patch, batch)
    return saved_bytes(size, patch, batch, "float32", fused=fused) / counted - 1


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(("patch", "batch"), [((64, 96), 2), ((33, 70), 1)])
def test_activations_are_those_that_torch_keeps(decoder: str, patch: tuple[int, int], batch: int, fused: bool) -> None:
    assert abs(relative_error(NetworkSize("pvt_v2_b0", decoder, 1, 3), patch, batch, fused=fused)) < SHARE


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("channels", "classes"), [(4, 2), (5, 2), (13, 2), (1, 120)])
def test_channels_and_classes_are_counted(channels: int, classes: int, fused: bool) -> None:
    assert abs(relative_error(NetworkSize("pvt_v2_b0", "gdla", channels, classes), (64, 64), 2, fused=fused)) < SHARE


def test_a_cpu_is_planned_with_the_fused_forms() -> None:
    size = NetworkSize("pvt_v2_b2", "gdla", 1, 2)
    fused, plain = (saved_bytes(size, (224, 224), 2, "float32", fused=fused) for fused in (True, False))
    assert training_memory(size, (224, 224), 2, "cpu").activations == fused < 0.6 * plain


@pytest.mark.slow
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("encoder", ["pvt_v2_b0", "pvt_v2_b2", "pvt_v2_b4"])
def test_ten_patches_of_three_encoders(encoder: str, fused: bool) -> None:
    size = NetworkSize(encoder, "gdla", 1, 3)
    errors = {patch: relative_error(size, patch, 1, fused=fused) for patch in TEN_PATCHES}
    assert {patch: error for patch, error in errors.items() if abs(error) >= SHARE} == {}


@pytest.mark.parametrize("decoder", DECODERS)
def test_parameters_are_counted_exactly(decoder: str) -> None:
    for size in (NetworkSize("pvt_v2_b0", decoder, 4, 7), NetworkSize("pvt_v2_b2", decoder, 1, 2)):
        assert count_parameters(size) == sum(parameter.numel() for parameter in build(size).parameters())


@pytest.mark.parametrize("encoder", ENCODERS)
def test_parameters_of_every_encoder(encoder: str) -> None:
    size = NetworkSize(encoder, "gdla", 1, 2)
    assert count_parameters(size) == sum(parameter.numel() for parameter in build(size).parameters())


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_largest_batch_fits_and_one_more_does_not(device: Device) -> None:
    size = NetworkSize("pvt_v2_b2", "gdla", 3, 5)
    budget = 8 * GIB
    batch = largest_batch(size, (256, 256), budget, device)
    assert batch > 2
    assert training_memory(size, (256, 256), batch, device).total <= budget
    assert training_memory(size, (256, 256), batch + 1, device).total > budget
    assert largest_batch(size, (256, 256), GIB // 4, device) == 0


def test_autocast_keeps_more_than_half_of_float32() -> None:
    size = NetworkSize("pvt_v2_b2", "gdla", 1, 2)
    half, full = (saved_bytes(size, (224, 224), 4, precision, fused=False) for precision in ("autocast", "float32"))
    assert 0.5 * full < half < 0.75 * full


def test_every_part_counts_and_nothing_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a module was built")

    monkeypatch.setattr(torch.nn.Module, "__init__", refuse)
    memory = training_memory(NetworkSize("pvt_v2_b4", "gdla", 1, 120), (512, 512), 2, "cuda")
    parts = (memory.activations, memory.outputs, memory.parameters, memory.workspace, memory.overhead)
    assert min(parts) > 0
    assert memory.total == sum(parts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("pvt_v2_b9", "gdla", 1, 2), "pvt_v2_b0, pvt_v2_b1"),
        (("pvt_v2_b0", "unet", 1, 2), "gdla, linear, self, diff"),
        (("pvt_v2_b0", "gdla", 0, 2), "at least 1"),
    ],
)
def test_unknown_sizes_are_refused(arguments: tuple[str, str, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NetworkSize(*arguments)
