"""nnUNetPlannerGDLA: stock 2D planning, with our network and patches that are multiples of 32."""

import inspect
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nnunetv2.experiment_planning.experiment_planners.default_experiment_planner import ExperimentPlanner
from nnunetv2.experiment_planning.plan_and_preprocess_api import (
    extract_fingerprint_dataset,
    plan_experiment_dataset,
    plan_experiments,
)
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.utilities.get_network_from_plans import get_network_from_plans
from nnunetv2.utilities.plans_handling.plans_handler import PlansManager

from nnunet_gdla import plans as our_plans
from nnunet_gdla.networks import PVTGDLA
from nnunet_gdla.plans.nnunet_planner_gdla import nnUNetPlannerGDLA
from nnunet_gdla.trainers import resolve
from tests.trainers.nnunet_project import Project, QuickFingerprint, threads_for_pools, write_dataset

Plan = Callable[..., dict[str, Any]]
# The smallest, one that grows in one axis only, one that does not grow, and a volume.
SIZES = {"small": (40, 36), "long": (300, 70), "even": (256, 192), "volume": (12, 70, 40)}


class OfAUser(nnUNetPlannerGDLA):
    encoder = "pvt_v2_b0"


def make_dataset(base: Project, dataset_id: int, size: Sequence[int], channels: int = 1) -> Project:
    """A dataset of eight cases, fingerprinted."""
    made = Project(base.root, f"Dataset{dataset_id}_Made", dataset_id)
    rng = np.random.default_rng(dataset_id)
    labels = np.zeros(size, np.uint8)
    labels[..., 3:20, 5:18] = 1
    images = {f"case{i}": [rng.normal(0, 1, size).astype(np.float32) + labels] * channels for i in range(8)}
    write_dataset(
        made.raw,
        images,
        dict.fromkeys(images, labels),
        file_ending=".nii.gz",
        channel_names=[f"channel {i}" for i in range(channels)],
        label_names={"background": 0, "box": 1},
    )
    with threads_for_pools():
        extract_fingerprint_dataset(
            dataset_id, QuickFingerprint, num_processes=1, clean=True, verbose=False, show_progress_bar=False
        )
    return made


@pytest.fixture(scope="session")
def made_datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Project]:
    base = Project(tmp_path_factory.mktemp("planner"))
    with pytest.MonkeyPatch.context() as monkeypatch:
        base.set_folders(monkeypatch, base.root / "results")
        made = {name: make_dataset(base, 701 + i, size) for i, (name, size) in enumerate(SIZES.items())}
        made["four channels"] = make_dataset(base, 710, (64, 64), channels=4)
    return made


@pytest.fixture
def datasets(made_datasets: dict[str, Project], monkeypatch: pytest.MonkeyPatch) -> dict[str, Project]:
    made_datasets["small"].set_folders(monkeypatch, made_datasets["small"].root / "results")
    monkeypatch.setenv("nnUNet_n_proc_DA", "1")
    return made_datasets


@pytest.fixture
def plan(datasets: dict[str, Project]) -> Plan:
    def plan_dataset(
        name: str,
        planner: type[ExperimentPlanner] = nnUNetPlannerGDLA,
        **arguments: Any,  # noqa: ANN401
    ) -> dict[str, Any]:
        with threads_for_pools():
            planned, identifier = plan_experiment_dataset(datasets[name].dataset_id, planner, **arguments)
        written = datasets[name].plans(identifier)
        assert written == json.loads(json.dumps(planned))
        return written

    return plan_dataset


@pytest.mark.parametrize("name", [*SIZES, "four channels"])
def test_it_is_the_stock_plan_but_for_network_patch_and_batch(name: str, plan: Plan) -> None:
    ours, stock = plan(name), plan(name, ExperimentPlanner)
    assert ours.pop("plans_name") == "nnUNetGDLAPlans"
    assert ours.pop("experiment_planner_used") == "nnUNetPlannerGDLA"
    flat, stock_flat = (made.pop("configurations")["2d"] for made in (ours, stock))
    assert ours == {key: stock[key] for key in ours}
    assert set(stock) - set(ours) == {"plans_name", "experiment_planner_used"}

    assert flat.pop("data_identifier") == "nnUNetGDLAPlans_2d"
    median = flat["median_image_size_in_voxels"]
    assert flat.pop("patch_size") == [math.ceil(edge / 32) * 32 for edge in median]
    assert flat.pop("batch_size") >= 2
    architecture = flat.pop("architecture")
    assert architecture["network_class_name"] == "nnunet_gdla.networks.PVTGDLA"
    assert architecture["_kw_requires_import"] == []
    assert flat == {key: stock_flat[key] for key in flat}
    assert set(stock_flat) - set(flat) == {"data_identifier", "architecture", "patch_size", "batch_size"}


@pytest.mark.parametrize("name", ["small", "long", "four channels"])
def test_the_plans_rebuild_their_network(name: str, plan: Plan) -> None:
    manager = PlansManager(plan(name))
    configuration = manager.get_configuration("2d")
    channels = 4 if name == "four channels" else 1
    network = get_network_from_plans(
        configuration.network_arch_class_name,
        configuration.network_arch_init_kwargs,
        configuration.network_arch_init_kwargs_req_import,
        channels,
        2,
        deep_supervision=True,
    )
    assert type(network) is PVTGDLA
    assert network.encoder_name == "pvt_v2_b2"
    with torch.no_grad():
        outputs = network.eval()(torch.zeros(1, channels, *configuration.patch_size))
    height, width = configuration.patch_size
    # Multiples of 32, so that no output is rounded and the stock trainer's targets fit too.
    assert [tuple(output.shape) for output in outputs] == [(1, 2, height // s, width // s) for s in (1, 8, 16, 32)]
    for trainer in (nnUNetTrainer, resolve("nnUNetTrainerGDLA")):
        built = trainer.build_network_architecture(manager, configuration, channels, 2, False)
        assert built.state_dict().keys() == network.state_dict().keys()
    assert len(configuration.pool_op_kernel_sizes) == len(outputs) + 1  # what the stock trainer counts by


def test_a_volume_gets_the_2d_configuration_only(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    stock = plan("volume", ExperimentPlanner)
    assert "3d_fullres" in stock["configurations"]
    capsys.readouterr()
    assert list(plan("volume")["configurations"]) == ["2d"]
    assert "2d configuration only" in capsys.readouterr().out
    plan("small")
    assert "2d configuration only" not in capsys.readouterr().out


@pytest.mark.parametrize("workers", ["0", "1"])
def test_planning_leaves_torchs_threads_alone(workers: str, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("nnUNet_n_proc_DA", workers)  # 0 stops the stock planner
    before = torch.get_num_threads()
    assert plan("small")["configurations"]["2d"]["patch_size"] == [64, 64]
    assert torch.get_num_threads() == before


def test_every_argument_of_nnunets_planning_is_taken(plan: Plan, datasets: dict[str, Project]) -> None:
    planned = plan(
        "even",
        gpu_memory_target_in_gb=24.0,
        preprocess_class_name="MyPreprocessor",
        overwrite_target_spacing=(999.0, 2.0, 2.0),
        overwrite_plans_name="plansOfMine",
    )
    flat = planned["configurations"]["2d"]
    assert planned["plans_name"] == "plansOfMine"
    assert flat["data_identifier"] == "plansOfMine_2d"
    assert flat["preprocessor_name"] == "MyPreprocessor"
    assert flat["spacing"] == [2.0, 2.0]
    assert flat["patch_size"] == [128, 96]


def test_more_memory_gives_larger_batches(plan: Plan, datasets: dict[str, Project]) -> None:
    file = datasets["even"].raw / "dataset.json"
    before = file.read_text()
    file.write_text(json.dumps(json.loads(before) | {"numTraining": 5000}))  # or 5 % of the data are the limit
    try:
        batches = [
            plan("even", gpu_memory_target_in_gb=gb)["configurations"]["2d"]["batch_size"] for gb in (4.0, 8.0, 24.0)
        ]
    finally:
        file.write_text(before)
    assert batches == sorted(set(batches))


@pytest.mark.parametrize("short", ["", "_B0", "_B1", "_B3", "_B4", "_B5"])
def test_nnunets_command_plans_by_name(short: str, datasets: dict[str, Project]) -> None:
    made = datasets["small"]
    with threads_for_pools():
        identifier = plan_experiments([made.dataset_id], f"nnUNetPlannerGDLA{short}")
    assert identifier == f"nnUNetGDLAPlans{short}"
    assert "__" not in identifier
    manager = PlansManager(made.plans(identifier))
    configuration = manager.get_configuration("2d")
    # Its own data: the stock command deletes the folder that the plans name before it fills it.
    assert configuration.data_identifier == f"{identifier}_2d"
    network = resolve(f"nnUNetTrainerGDLA{short}").build_network_architecture(manager, configuration, 1, 2)
    assert network.encoder_name == f"pvt_v2_{short[1:].lower() or 'b2'}"


def test_configurations_that_the_user_added_stay(plan: Plan, datasets: dict[str, Project]) -> None:
    name = "plansWithMore"
    plan("small", overwrite_plans_name=name)
    file = datasets["small"].preprocessed / f"{name}.json"
    content = json.loads(file.read_text())
    content["configurations"]["mine"] = {"inherits_from": "2d", "batch_size": 3}
    content["configurations"]["2d"]["batch_size"] = 99
    file.write_text(json.dumps(content))
    again = plan("small", overwrite_plans_name=name)
    assert again["configurations"]["mine"] == {"inherits_from": "2d", "batch_size": 3}
    assert again["configurations"]["2d"]["batch_size"] == 2


def test_a_user_plans_another_encoder(plan: Plan) -> None:
    planned = plan("small", OfAUser, overwrite_plans_name="plansB0")
    manager = PlansManager(planned)
    network = resolve("nnUNetTrainerGDLA_B0").build_network_architecture(manager, manager.get_configuration("2d"), 1, 2)
    assert network.encoder_name == "pvt_v2_b0"
    assert planned["experiment_planner_used"] == "OfAUser"


@pytest.mark.parametrize(
    "hook", ["__init__", *(name for name, _ in inspect.getmembers(nnUNetPlannerGDLA, callable) if name[:2] != "__")]
)
def test_signatures_are_those_of_the_installed_nnunet(hook: str) -> None:
    stock = getattr(ExperimentPlanner, hook, None)
    if stock is None:
        assert hook.startswith("_")  # a helper of ours
        return
    ours, theirs = (inspect.signature(getattr(cls, hook)).parameters for cls in (nnUNetPlannerGDLA, ExperimentPlanner))
    assert [(name, parameter.kind) for name, parameter in ours.items()] == [
        (name, parameter.kind) for name, parameter in theirs.items()
    ]
    defaults = {name: parameter.default for name, parameter in theirs.items()}
    expected = defaults | ({"plans_name": "nnUNetGDLAPlans"} if hook == "__init__" else {})
    assert {name: parameter.default for name, parameter in ours.items()} == expected
    kinds = [type(inspect.getattr_static(cls, hook)) for cls in (nnUNetPlannerGDLA, ExperimentPlanner)]
    assert kinds[0] is kinds[1]


def test_the_package_offers_the_planners() -> None:
    assert tuple(f"nnUNetPlannerGDLA{end}" for end in ("", "_B0", "_B1", "_B3", "_B4", "_B5")) == our_plans.PLANNERS
    assert our_plans.nnUNetPlannerGDLA is nnUNetPlannerGDLA
    for name in our_plans.PLANNERS:
        assert getattr(our_plans, name).__name__ == name
        assert getattr(our_plans, name) is getattr(our_plans, name)
    with pytest.raises(AttributeError, match="nnUNetPlannerOfSomebodyElse"):
        our_plans.nnUNetPlannerOfSomebodyElse  # noqa: B018


def test_without_a_fingerprint_nnunet_says_so(datasets: dict[str, Project]) -> None:
    bare = datasets["small"].root / "raw" / "Dataset799_Bare"
    if not bare.exists():
        write_dataset(bare, {}, {}, file_ending=".nii.gz")
    assert not (Path(datasets["small"].root) / "preprocessed" / bare.name).exists()
    with threads_for_pools(), pytest.raises(RuntimeError, match="Fingerprint missing"):
        nnUNetPlannerGDLA(799)
