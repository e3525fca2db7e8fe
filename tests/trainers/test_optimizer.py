"""AdamW decays what it should, steps on clipped gradients, and holds every trainable parameter once."""

from typing import Any

import pytest
import torch
from torch import nn

from nnunet_gdla.errors import TrainingStopped
from nnunet_gdla.trainers import resolve
from tests.trainers.nnunet_project import Project, make_trainer, read_batch

NAMES = [
    "nnUNetTrainerGDLA_B0",
    "nnUNetTrainerPVTLinearAttn_B0",
    "nnUNetTrainerPVTSelfAttn_B0",
    "nnUNetTrainerPVTDiffAttn_B0",
]
LAMBDAS = {"nnUNetTrainerGDLA_B0": 6, "nnUNetTrainerPVTDiffAttn_B0": 12}  # of all three blocks


def groups(trainer: Any) -> list[list[str]]:  # noqa: ANN401
    """Names of the parameters in each group."""
    names = {id(parameter): name for name, parameter in trainer.network.named_parameters()}
    return [[names[id(parameter)] for parameter in group["params"]] for group in trainer.optimizer.param_groups]


@pytest.fixture(params=NAMES)
def trainer(request: pytest.FixtureRequest, project: Project) -> Any:  # noqa: ANN401
    made = make_trainer(resolve(request.param), project)
    made.initialize()
    return made


def test_every_trainable_parameter_is_in_one_group(trainer: Any) -> None:  # noqa: ANN401
    held = [name for group in groups(trainer) for name in group]
    assert sorted(held) == sorted(name for name, _ in trainer.network.named_parameters())
    assert all(parameter.requires_grad for parameter in trainer.network.parameters())


def test_only_weights_of_two_and_more_axes_decay(trainer: Any) -> None:  # noqa: ANN401
    assert [group["weight_decay"] for group in trainer.optimizer.param_groups] == [1e-4, 0.0]
    decayed, plain = groups(trainer)
    shapes = {name: parameter.ndim for name, parameter in trainer.network.named_parameters()}
    assert all(shapes[name] >= 2 and name.endswith(".weight") for name in decayed)
    lambdas = [name for name in shapes if "lambda" in name]
    assert len(lambdas) == LAMBDAS.get(type(trainer).__name__, 0)
    assert set(lambdas) <= set(plain)
    assert all(shapes[name] == 1 for name in plain if name not in lambdas)
    norms = (nn.LayerNorm, nn.BatchNorm2d, nn.modules.batchnorm._BatchNorm)
    for name, module in trainer.network.named_modules():
        if isinstance(module, norms) and module.weight is not None:
            assert f"{name}.weight" in plain


def test_the_recipe(trainer: Any) -> None:  # noqa: ANN401
    assert type(trainer.optimizer) is torch.optim.AdamW
    assert all(group["betas"] == (0.9, 0.999) for group in trainer.optimizer.param_groups)
    assert trainer.weight_decay == 1e-4


def test_frozen_heads_are_left_out(project: Project) -> None:
    trainer = make_trainer(resolve("nnUNetTrainerGDLA_B0"), project)
    trainer.enable_deep_supervision = False
    trainer.initialize()
    frozen = [name for name, parameter in trainer.network.named_parameters() if not parameter.requires_grad]
    assert sorted(frozen) == sorted(f"decoder.seg_layers.{i}.{part}" for i in (1, 2, 3) for part in ("weight", "bias"))
    held = {name for group in groups(trainer) for name in group}
    assert held == {name for name, _ in trainer.network.named_parameters()} - set(frozen)


def test_a_subclass_may_set_another_decay(project: Project) -> None:
    trainer = make_trainer(resolve("nnUNetTrainerGDLA_B0"), project)
    trainer.weight_decay = 0.25
    trainer.initialize()
    assert [group["weight_decay"] for group in trainer.optimizer.param_groups] == [0.25, 0.0]


@pytest.mark.compile
def test_a_compiled_network_has_the_same_groups(project: Project) -> None:
    trainer = make_trainer(resolve("nnUNetTrainerGDLA_B0"), project)
    trainer.initialize()
    plain = [len(group) for group in groups(trainer)]
    # nnU-Net compiles before it asks for the optimizer; its names then begin with `_orig_mod.`
    trainer.network = torch.compile(trainer.network, backend="eager")
    trainer.optimizer, _ = trainer.configure_optimizers()
    assert [len(group) for group in groups(trainer)] == plain
    assert all(name.startswith("_orig_mod.") for group in groups(trainer) for name in group)


@pytest.mark.parametrize("factor", [1e3, 1e-3])
def test_gradients_are_clipped_to_norm_one(factor: float, project: Project) -> None:
    trainer = make_trainer(resolve("nnUNetTrainerGDLA_B0"), project)
    trainer.initialize()
    loss, norms = trainer.loss, []
    trainer.loss = lambda output, target: factor * loss(output, target)

    def record(optimizer: torch.optim.Optimizer, _args: object, _kwargs: object) -> None:
        gradients = [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]
        assert all(gradient is not None for gradient in gradients)
        norms.append(torch.nn.utils.get_total_norm(gradients))

    trainer.optimizer.register_step_pre_hook(record)
    trainer.on_train_epoch_start()
    trainer.train_step(read_batch(trainer))
    (norm,) = norms
    if factor > 1:
        torch.testing.assert_close(norm, torch.tensor(1.0), rtol=1e-3, atol=0)
    else:
        assert 0 < norm < 0.1  # a small gradient stays small


def test_gradients_do_not_add_up_over_steps(project: Project) -> None:
    trainer = make_trainer(resolve("nnUNetTrainerGDLA_B0"), project)
    trainer.initialize()
    trainer.network.eval()  # no stochastic depth, and running statistics, so that equal steps are equal
    seen = []
    trainer.optimizer.register_step_pre_hook(
        lambda optimizer, _args, _kwargs: seen.append(optimizer.param_groups[0]["params"][0].grad.clone())
    )
    trainer.lr_scheduler.counts = lambda: (1, 1, 0.0)
    trainer.weight_decay = 0.0
    state = {name: value.clone() for name, value in trainer.network.state_dict().items()}
    for _ in range(2):
        trainer.train_step(read_batch(trainer))
        trainer.network.load_state_dict(state)
    torch.testing.assert_close(seen[0], seen[1], rtol=1e-5, atol=1e-8)


@pytest.fixture
def with_scaler(project: Project) -> Any:  # noqa: ANN401
    """A trainer that scales its losses, as on a GPU."""
    trainer = make_trainer(resolve("nnUNetTrainerGDLA_B0"), project)
    trainer.initialize()
    trainer.grad_scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    trainer.on_train_epoch_start()
    return trainer


def test_clipping_looks_at_unscaled_gradients(with_scaler: Any) -> None:  # noqa: ANN401
    loss, norms = with_scaler.loss, []
    with_scaler.loss = lambda output, target: 1e-3 * loss(output, target)
    step = with_scaler.optimizer.step

    def record(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        gradients = [parameter.grad for parameter in with_scaler.network.parameters()]
        norms.append(float(torch.nn.utils.get_total_norm(gradients)))
        return step(*args, **kwargs)

    with_scaler.optimizer.step = record
    with_scaler.train_step(read_batch(with_scaler))
    assert len(norms) == 1
    assert 0 < norms[0] < 0.1  # scaled it would be thousands, and cut to 1


def test_a_gradient_that_overflows_costs_one_step(with_scaler: Any) -> None:  # noqa: ANN401
    parameter = with_scaler.network.decoder.upsamples[0].weight
    handle = parameter.register_hook(lambda gradient: gradient * torch.inf)
    before = parameter.detach().clone()
    with_scaler.train_step(read_batch(with_scaler))
    assert torch.equal(parameter, before)
    assert with_scaler.grad_scaler.get_scale() == 2.0**15
    handle.remove()
    with_scaler.train_step(read_batch(with_scaler))
    assert not torch.equal(parameter, before)


def test_gradients_that_overflow_in_every_step_stop_the_training(with_scaler: Any) -> None:  # noqa: ANN401
    with_scaler.network.decoder.upsamples[0].weight.register_hook(lambda gradient: gradient * torch.nan)
    # As after many steps of that kind: each halves the scale.
    with_scaler.grad_scaler = torch.amp.GradScaler("cpu", init_scale=2.0**-10)
    outputs = [with_scaler.train_step(read_batch(with_scaler))]
    with pytest.raises(TrainingStopped, match="no finite gradients in epoch 0"):
        with_scaler.on_train_epoch_end(outputs)
