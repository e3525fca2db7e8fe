"""The network lives in the plans: ours where they name it, the trainer's default on stock plans."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.utilities.plans_handling.plans_handler import PlansManager
from torch import nn

from nnunet_gdla.errors import UserError
from nnunet_gdla.networks import PVTGDLA
from nnunet_gdla.trainers import resolve
from nnunet_gdla.trainers.nnunet_trainer_gdla import nnUNetTrainerGDLA
from nnunet_gdla.trainers.nnunet_trainer_pvt_attention import nnUNetTrainerPVTSelfAttn
from tests.trainers.nnunet_project import Project, as_ours, make_trainer, read_batch, small_plans


class OfAUser(nnUNetTrainerGDLA):
    encoder = "pvt_v2_b0"


class OfAUserWithOtherDecoder(OfAUser):
    decoder = "self"


class OfAUserWithSelfAttention(nnUNetTrainerPVTSelfAttn):
    encoder = "pvt_v2_b1"


class OfAUserWithoutChanges(OfAUserWithSelfAttention):
    def __init__(
        self, plans: dict[str, Any], configuration: str, fold: int, dataset_json: dict[str, Any], device: torch.device
    ) -> None:
        super().__init__(plans, configuration, fold, dataset_json, device)
        self.num_epochs = 3


class OfAUserWithOwnNetwork(OfAUser):
    encoder = "pvt_v2_b1"

    @staticmethod
    def build_network_architecture(
        plans_manager: Any,  # noqa: ANN401
        configuration_manager: Any,  # noqa: ANN401
        num_input_channels: int,
        num_output_channels: int,
        enable_deep_supervision: bool = True,
    ) -> nn.Module:
        return nn.Conv2d(num_input_channels, num_output_channels, 1)


def build(trainer: Any, plans: dict[str, Any], deep_supervision: bool = True) -> Any:  # noqa: ANN401
    """Build a network as nnU-Net's predictor does: on the class."""
    manager = PlansManager(json.loads(json.dumps(plans)))
    return trainer.build_network_architecture(manager, manager.get_configuration("2d"), 1, 3, deep_supervision)


def shapes(network: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in network.state_dict().items()}


def test_stock_plans_get_the_default_network(project: Project) -> None:
    network = build(nnUNetTrainerGDLA, project.plans())
    assert type(network) is PVTGDLA
    assert network.encoder_name == "pvt_v2_b2"
    assert shapes(network) == shapes(PVTGDLA(1, 3))


def test_our_plans_get_their_own_network(project: Project) -> None:
    arguments: dict[str, Any] = {
        "encoder": "pvt_v2_b0",
        "gate": "sigmoid",
        "local_mixing": "separate",
        "num_heads": [1, 2, 1],
    }
    network = build(nnUNetTrainerGDLA, small_plans(project, architecture=as_ours(**arguments)))
    assert network.encoder_name == "pvt_v2_b0"
    assert shapes(network) == shapes(PVTGDLA(1, 3, **arguments))
    gates = {block.attention.gate for block in network.decoder.blocks}
    assert gates == {"sigmoid"}


def test_stock_and_our_plans_give_the_same_network(project: Project) -> None:
    by_name = build(resolve("nnUNetTrainerPVTDiffAttn_B0"), project.plans())
    by_plans = build(
        resolve("nnUNetTrainerPVTDiffAttn"),
        small_plans(project, architecture=as_ours(encoder="pvt_v2_b0", decoder="diff")),
    )
    assert shapes(by_name) == shapes(by_plans)


@pytest.mark.parametrize("with_plans_of_ours", [False, True])
def test_prediction_builds_what_training_built(with_plans_of_ours: bool, project: Project) -> None:
    change: dict[str, Any] = {"architecture": as_ours(encoder="pvt_v2_b0")} if with_plans_of_ours else {}
    plans = small_plans(project, **change)
    training, prediction = (build(resolve("nnUNetTrainerGDLA_B0"), plans, deep) for deep in (True, False))
    assert shapes(training) == shapes(prediction)
    prediction.load_state_dict(training.state_dict())
    assert isinstance(prediction.eval()(torch.zeros(1, 1, 64, 64)), torch.Tensor)
    assert all(parameter.requires_grad for parameter in training.parameters())
    frozen = {name for name, parameter in prediction.named_parameters() if not parameter.requires_grad}
    assert frozen == {
        name for name in shapes(prediction) if name.startswith("decoder.seg_layers.") and ".0." not in name
    }


CONFLICTS = [
    ("nnUNetTrainerGDLA_B0", {"encoder": "pvt_v2_b4"}, "'pvt_v2_b0'", "'pvt_v2_b4'"),
    ("nnUNetTrainerGDLA_B0_DiceCE_5epochs", {}, "'pvt_v2_b0'", "'pvt_v2_b2'"),
    ("nnUNetTrainerGDLA", {"decoder": "linear"}, "'gdla'", "'linear'"),
    ("nnUNetTrainerPVTSelfAttn", {"encoder": "pvt_v2_b0"}, "'self'", "'gdla'"),
    ("nnUNetTrainerPVTDiffAttn_B1", {"encoder": "pvt_v2_b1", "decoder": "self"}, "'diff'", "'self'"),
]


@pytest.mark.parametrize(("name", "arguments", "wanted", "planned"), CONFLICTS)
def test_a_name_and_plans_that_disagree_are_refused(
    name: str, arguments: dict[str, Any], wanted: str, planned: str, project: Project
) -> None:
    plans = small_plans(project, architecture=as_ours(**arguments)) | {"plans_name": "plansOfMine"}
    with pytest.raises(UserError) as in_prediction:
        build(resolve(name), plans, deep_supervision=False)
    with pytest.raises(UserError) as in_training:
        make_trainer(resolve(name), project, plans).initialize()
    assert str(in_prediction.value) == str(in_training.value)
    for part in (wanted, planned, "plansOfMine", "-p nnUNetPlans"):
        assert part in str(in_training.value)
    assert "\n" not in str(in_training.value)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("nnUNetTrainerGDLA", {"encoder": "pvt_v2_b0"}),
        ("nnUNetTrainerGDLA_B0_NoMirroring", {"encoder": "pvt_v2_b0", "gate": None}),
        ("nnUNetTrainerPVTLinearAttn", {"encoder": "pvt_v2_b0", "decoder": "linear", "rope": True}),
    ],
)
def test_a_name_and_plans_that_agree_train(name: str, arguments: dict[str, Any], project: Project) -> None:
    trainer = make_trainer(resolve(name), project, small_plans(project, architecture=as_ours(**arguments)))
    trainer.initialize()
    trainer.on_train_epoch_start()
    assert np.isfinite(trainer.train_step(read_batch(trainer))["loss"])


@pytest.mark.parametrize("decoder", ["gdla", "linear", "self", "diff"])
def test_the_stock_trainer_trains_our_plans(decoder: str, project: Project) -> None:
    plans = small_plans(project, patch_size=(56, 40), architecture=as_ours(encoder="pvt_v2_b0", decoder=decoder))
    trainer = make_trainer(nnUNetTrainer, project, plans)
    trainer.initialize()
    assert type(trainer.network) is PVTGDLA
    trainer.set_deep_supervision_enabled(True)
    trainer.on_train_epoch_start()
    losses = [float(trainer.train_step(read_batch(trainer))["loss"]) for _ in range(3)]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]  # it learns the batch
    trainer.network.eval()
    with torch.no_grad():
        assert set(trainer.validation_step(read_batch(trainer))) == {"loss", "tp_hard", "fp_hard", "fn_hard"}


@pytest.mark.parametrize(
    ("trainer", "encoder", "decoder"),
    [
        (OfAUser, "pvt_v2_b0", "gdla"),
        (OfAUserWithOtherDecoder, "pvt_v2_b0", "self"),
        (OfAUserWithSelfAttention, "pvt_v2_b1", "self"),
        (OfAUserWithoutChanges, "pvt_v2_b1", "self"),
    ],
)
def test_a_user_sets_encoder_and_decoder_in_the_class(
    trainer: type[nnUNetTrainerGDLA],
    encoder: str,
    decoder: Any,  # noqa: ANN401
    project: Project,
) -> None:
    expected = shapes(PVTGDLA(1, 3, encoder=encoder, decoder=decoder))
    assert shapes(build(trainer, project.plans())) == expected
    made = make_trainer(trainer, project)
    made.initialize()
    assert shapes(made.network) == expected
    with pytest.raises(UserError, match="pvt_v2_b5"):
        build(trainer, small_plans(project, architecture=as_ours(encoder="pvt_v2_b5", decoder=decoder)))


def test_a_user_may_build_another_network(project: Project) -> None:
    assert type(build(OfAUserWithOwnNetwork, project.plans())) is nn.Conv2d


def test_plans_that_name_an_unknown_choice_are_refused_with_one_sentence(project: Project) -> None:
    with pytest.raises(UserError, match="cannot be built: unknown encoder 'pvt_v2_b9'; choose one of pvt_v2_b0"):
        build(nnUNetTrainerGDLA, small_plans(project, architecture=as_ours(encoder="pvt_v2_b9")))


def test_plans_with_another_encoder_are_refused_before_anything_is_made(project: Project) -> None:
    plans = small_plans(project, architecture=as_ours(encoder="pvt_v2_b0"))
    plans["plans_name"] = "refusedPlans"
    with pytest.raises(UserError, match=r"encoder 'pvt_v2_b4'.*encoder 'pvt_v2_b0'"):
        make_trainer(resolve("nnUNetTrainerGDLA_B4"), project, plans)
    assert not list(project.root.rglob("*refusedPlans*"))
