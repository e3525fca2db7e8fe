"""Every form of data: sizes, channels, labels, single slices, memory from too little to plenty."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from nnunetv2.utilities.get_network_from_plans import get_network_from_plans

from nnunet_gdla.plans.nnunet_gdla_memory import GIB, Device, largest_batch
from nnunet_gdla.plans.nnunet_gdla_patch import choose_batch, choose_patch
from nnunet_gdla.plans.nnunet_gdla_sizes import NetworkSize
from nnunet_gdla.plans.nnunet_planner_gdla import nnUNetPlannerGDLA
from nnunet_gdla.plans.nnunet_planner_gdla_variants import planner_of
from tests.bugs.sizes import SIZES
from tests.plans.fingerprints import Shape, plan_of, write_fingerprint
from tests.trainers.nnunet_project import threads_for_pools

# Labels, and the number of outputs they mean.
LABELS: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "ignore": ({"background": 0, "a": 1, "b": 2, "ignore": 3}, {}, 3),
    "regions": (
        {"background": 0, "whole": [1, 2, 3], "core": [2, 3], "enhancing": 3},
        {"regions_class_order": [1, 2, 3]},
        3,
    ),
    "regions and ignore": (
        {"background": 0, "whole": [1, 2], "core": 2, "ignore": 3},
        {"regions_class_order": [1, 2]},
        2,
    ),
    "120 classes": ({"background": 0} | {f"class {i}": i for i in range(1, 120)}, {}, 120),
}


@pytest.fixture(autouse=True)
def _no_new_processes() -> Iterator[None]:
    with threads_for_pools():
        yield


def rebuilt_output(plan: dict[str, Any], channels: int, outputs: int) -> torch.Tensor:
    architecture = plan["architecture"]
    network = get_network_from_plans(
        architecture["network_class_name"],
        architecture["arch_kwargs"],
        architecture["_kw_requires_import"],
        channels,
        outputs,
        deep_supervision=False,
    )
    with torch.no_grad():
        result: torch.Tensor = network.eval()(torch.zeros(1, channels, *plan["patch_size"]))
    return result


@pytest.mark.parametrize("size", SIZES)
def test_every_image_size(size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = write_fingerprint(tmp_path, monkeypatch, [(1, *size)] * 6)
    plan = plan_of(planner_of("pvt_v2_b0")(name))
    assert plan["patch_size"] == [math.ceil(edge / 32) * 32 for edge in size]
    assert plan["batch_size"] == 2  # 5 % of six images


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 13])
def test_every_number_of_channels(channels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = write_fingerprint(tmp_path, monkeypatch, [(1, 64, 80)] * 3, channels=channels)
    plan = plan_of(planner_of("pvt_v2_b0")(name))
    assert len(plan["normalization_schemes"]) == channels
    assert rebuilt_output(plan, channels, 2).shape == (1, 2, 64, 96)


@pytest.mark.parametrize("kind", LABELS)
def test_every_kind_of_labels(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels, more, outputs = LABELS[kind]
    name = write_fingerprint(tmp_path, monkeypatch, [(1, 96, 64)] * 3, labels=labels, **more)
    planner = planner_of("pvt_v2_b0")(name)
    plan = plan_of(planner)
    assert planner._network_size().num_classes == outputs
    assert rebuilt_output(plan, 1, outputs).shape == (1, outputs, 96, 64)


def test_many_classes_make_smaller_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = []
    for labels in ({"background": 0, "a": 1}, LABELS["120 classes"][0]):
        name = write_fingerprint(tmp_path, monkeypatch, [(1, 256, 256)] * 4, labels=labels, num_training=5000)
        batches.append(plan_of(nnUNetPlannerGDLA(name))["batch_size"])
    assert batches[0] > batches[1] >= 2


@pytest.mark.parametrize(
    ("shape", "spacing", "forward"),
    [
        ((1, 90, 70), (1.0, 1.0, 1.0), [0, 1, 2]),
        ((1, 90, 70), (0.5, 2.0, 2.0), [0, 1, 2]),  # a slice thinner than its pixels are wide
        ((90, 70, 1), (1.0, 1.0, 1.0), [2, 0, 1]),
        ((90, 1, 70), (1.0, 1.0, 1.0), [1, 0, 2]),
        ((90, 1, 70), (3.0, 1.0, 1.0), [1, 0, 2]),
        ((1, 1, 70), (1.0, 1.0, 1.0), [0, 1, 2]),  # a line: whichever axis comes first
        ((12, 90, 70), (8.0, 0.5, 0.5), [0, 1, 2]),  # anisotropic
        ((90, 70, 12), (0.5, 0.5, 8.0), [2, 0, 1]),
        ((2, 90, 70), (1.0, 1.0, 1.0), [0, 1, 2]),
    ],
)
def test_slices_and_volumes(
    shape: Shape, spacing: Shape, forward: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = write_fingerprint(tmp_path, monkeypatch, [shape] * 5, spacing=spacing)
    planner = nnUNetPlannerGDLA(name)
    plan = plan_of(planner)
    plans = planner.plans
    assert plans["transpose_forward"] == forward
    assert [forward[axis] for axis in plans["transpose_backward"]] == [0, 1, 2]
    flat = [shape[axis] for axis in forward[1:]]
    assert plan["patch_size"] == [math.ceil(edge / 32) * 32 for edge in flat]
    assert list(plans["configurations"]) == ["2d"]
    assert any("2d configuration only" in note for note in planner.notes) == (shape[forward[0]] > 1)


def test_a_stack_that_must_not_be_transposed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = write_fingerprint(tmp_path, monkeypatch, [(90, 70, 1)] * 5, spacing=(1.0, 1.0, 1.0))
    planner = nnUNetPlannerGDLA(name, suppress_transpose=True)
    assert plan_of(planner)["patch_size"] == [96, 32]
    assert planner.plans["transpose_forward"] == [0, 1, 2]


def test_slices_among_volumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = write_fingerprint(tmp_path, monkeypatch, [(1, 50, 60), (1, 70, 60), (9, 64, 64)], spacing=(3.0, 1.0, 1.0))
    assert plan_of(nnUNetPlannerGDLA(name))["patch_size"] == [64, 64]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("encoder", ["pvt_v2_b0", "pvt_v2_b4"])
def test_patch_and_batch_fit_the_memory(encoder: str, device: Device) -> None:
    size = NetworkSize(encoder, "gdla", 3, 5)
    for gigabytes in (4, 24):
        for shape in ([512.0, 512.0], [1000.0, 300.0], [2000.0, 3000.0]):
            patch = choose_patch(size, shape, gigabytes * GIB, device)
            fits = largest_batch(size, patch, gigabytes * GIB, device)
            batch = choose_batch(size, patch, gigabytes * GIB, device, largest_share=10_000)
            covers = all(edge >= wanted for edge, wanted in zip(patch, shape, strict=True))
            assert all(edge % 32 == 0 for edge in patch)
            assert 2 <= batch <= max(2, fits)
            assert fits >= 2
            if not covers:  # then it is the largest: one step more in either axis and two do not fit
                assert largest_batch(size, [edge + 32 for edge in patch], gigabytes * GIB, device) < 2


def test_a_patch_that_cannot_cover_keeps_the_shape_of_the_image() -> None:
    size = NetworkSize("pvt_v2_b2", "gdla", 1, 2)
    for shape in ([4000.0, 1000.0], [1000.0, 4000.0], [2000.0, 2000.0]):
        height, width = choose_patch(size, shape, 6 * GIB, "cuda")
        assert height < shape[0]
        assert height / width == pytest.approx(shape[0] / shape[1], rel=0.15)


def test_a_cpu_gets_a_small_batch() -> None:
    size = NetworkSize("pvt_v2_b0", "gdla", 1, 2)
    on_cpu, on_gpu = (choose_batch(size, [224, 224], 16 * GIB, device, 10_000) for device in ("cpu", "cuda"))
    assert on_cpu == 2
    assert on_gpu > 10


@pytest.mark.parametrize("gigabytes", [0.001, 1])
def test_too_little_memory_is_said(gigabytes: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = write_fingerprint(tmp_path, monkeypatch, [(1, 512, 512)] * 3)
    planner = planner_of("pvt_v2_b4")(name, gpu_memory_target_in_gb=gigabytes)
    plan = plan_of(planner)
    assert (plan["patch_size"], plan["batch_size"]) == ([32, 32], 2)
    assert any("smaller encoder" in note for note in planner.notes)


def test_more_memory_gives_larger_patches_and_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = write_fingerprint(tmp_path, monkeypatch, [(1, 1024, 1024)] * 4, num_training=5000)
    plans = [plan_of(nnUNetPlannerGDLA(name, gpu_memory_target_in_gb=gb)) for gb in (4, 8, 16, 48, 80)]
    pixels = [plan["batch_size"] * math.prod(plan["patch_size"]) for plan in plans]
    assert pixels == sorted(pixels)
    assert plans[0]["patch_size"] < [1024, 1024]
    assert plans[-1]["patch_size"] == [1024, 1024]
    assert plans[-1]["batch_size"] > 2
