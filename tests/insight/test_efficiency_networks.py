"""The networks of the table: all can be made, and nnU-Net's are those that its planners plan."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from nnunetv2.experiment_planning.experiment_planners.default_experiment_planner import ExperimentPlanner
from nnunetv2.experiment_planning.experiment_planners.residual_unets.residual_encoder_unet_planners import (
    ResEncUNetPlanner,
)

from nnunet_gdla.commands.arguments_efficiency import DEFAULT_NETWORKS, NETWORKS, RIVAL
from nnunet_gdla.commands.efficiency_networks import build_candidate, nnunet_architecture
from nnunet_gdla.errors import UserError
from nnunet_gdla.insight import count_parameters, count_products
from nnunet_gdla.networks.decoder import DECODERS
from nnunet_gdla.networks.encoder import ENCODERS


def test_the_names_cover_what_the_network_offers() -> None:
    ours = {f"{decoder}-{encoder.removeprefix('pvt_v2_')}" for decoder in DECODERS for encoder in ENCODERS}
    assert set(NETWORKS) - ours == {RIVAL, "nnunet-resenc"}
    assert ours < set(NETWORKS)
    assert set(DEFAULT_NETWORKS) < set(NETWORKS)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_can_be_made(name: str) -> None:
    with torch.device("meta"):
        candidate = build_candidate(name, 64, channels=3, classes=2)
    assert candidate.input_size == 64
    assert not candidate.network.training
    assert count_parameters(candidate.network) > 3_000_000


@pytest.mark.parametrize("name", ["gdla-b1", "linear-b0", "self-b0", "diff-b0", "nnunet", "nnunet-resenc"])
def test_networks_can_be_counted(name: str) -> None:
    with torch.device("meta"):
        candidate = build_candidate(name, 64, channels=3, classes=2)
    products = count_products(candidate.network, (1, 3, 64, 64))
    assert products.total > 50_000_000
    assert (products.attention == 0) == name.startswith("nnunet")


def test_nnunet_pads_the_image_to_its_patch_and_ours_do_not() -> None:
    with torch.device("meta"):
        assert build_candidate("nnunet", 100, channels=1, classes=2).input_size == 112
        assert build_candidate("gdla-b0", 100, channels=1, classes=2).input_size == 100


def test_an_unknown_network_is_refused_with_the_list() -> None:
    with pytest.raises(UserError, match=r"unknown network 'unet': choose from gdla-b0, .*nnunet, nnunet-resenc"):
        build_candidate("unet", 64, channels=1, classes=2)


@pytest.mark.parametrize("size", [100, 224, 512])
@pytest.mark.parametrize("residual", [False, True])
def test_nnunets_planner_plans_the_same(
    size: int, residual: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = plan(ResEncUNetPlanner if residual else ExperimentPlanner, size, tmp_path, monkeypatch)
    architecture, patch = nnunet_architecture(size, residual=residual)
    assert [int(edge) for edge in planned["patch_size"]] == [patch, patch]
    assert plain(architecture) == plain(planned["architecture"])


def plan(planner: type[Any], size: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What nnU-Net plans for a dataset of grey images of one size."""
    name = "Dataset777_Squares"
    for variable in ("nnUNet_raw", "nnUNet_preprocessed"):
        monkeypatch.setenv(variable, str(folder / variable))
        (folder / variable / name).mkdir(parents=True)
    for images in ("imagesTr", "labelsTr"):
        (folder / "nnUNet_raw" / name / images).mkdir()
    description = {
        "channel_names": {"0": "grey"},
        "labels": {"background": 0, "square": 1},
        "numTraining": 100,
        "file_ending": ".png",
    }
    (folder / "nnUNet_raw" / name / "dataset.json").write_text(json.dumps(description))
    fingerprint = {
        "spacings": [[999.0, 1.0, 1.0]] * 3,
        "shapes_after_crop": [[1, size, size]] * 3,
        "median_relative_size_after_cropping": 1.0,
    }
    (folder / "nnUNet_preprocessed" / name / "dataset_fingerprint.json").write_text(json.dumps(fingerprint))
    return planner(name).get_plans_for_configuration([1.0, 1.0], [size, size], "nnUNetPlans_2d", 100.0 * size**2, {})


def plain(architecture: object) -> object:
    return json.loads(json.dumps(architecture))
