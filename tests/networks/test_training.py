"""Training mode: every trained parameter gets a gradient, one pixel is enough, checkpointing changes nothing."""

import pytest
import torch
from torch import Tensor

from nnunet_gdla.networks import PVTGDLA
from tests.networks.builders import DECODERS, VARIANTS, as_list, small_network

decoders = pytest.mark.parametrize("decoder", DECODERS)
supervision = pytest.mark.parametrize("deep_supervision", [True, False])


def _backward(network: PVTGDLA, x: Tensor) -> Tensor:
    outputs = network(x)
    loss = torch.stack([y.float().square().mean() for y in (outputs if isinstance(outputs, list) else [outputs])]).sum()
    loss.backward()
    return loss.detach()


@pytest.mark.parametrize("variant", VARIANTS)
@supervision
def test_every_trained_parameter_gets_a_gradient_and_the_others_are_the_unused_heads(
    variant: str, deep_supervision: bool
) -> None:
    network = small_network(deep_supervision=deep_supervision, **VARIANTS[variant]).train()
    _backward(network, torch.randn(2, 2, 64, 96))
    without = {name for name, parameter in network.named_parameters() if parameter.grad is None}
    frozen = {name for name, parameter in network.named_parameters() if not parameter.requires_grad}
    auxiliary = {f"decoder.seg_layers.{i}.{kind}" for i in (1, 2, 3) for kind in ("weight", "bias")}
    assert without == frozen == (set() if deep_supervision else auxiliary)
    grads = {name: parameter.grad for name, parameter in network.named_parameters() if parameter.grad is not None}
    assert all(torch.isfinite(grad).all() for grad in grads.values())
    silent = {name for name, grad in grads.items() if not grad.any()}
    assert not silent


@decoders
@supervision
@pytest.mark.parametrize(
    ("batch", "size"), [(1, (1, 1)), (2, (1, 1)), (1, (1, 2)), (1, (7, 3)), (3, (33, 31))], ids=str
)
def test_training_mode_works_for_any_batch_and_size(
    decoder: str, deep_supervision: bool, batch: int, size: tuple[int, int]
) -> None:
    network = small_network(decoder=decoder, deep_supervision=deep_supervision, drop_path_rate=0.1).train()
    _backward(network, torch.randn(batch, 2, *size))
    for name, parameter in network.named_parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all(), name
    for name, buffer in network.named_buffers():
        assert torch.isfinite(buffer).all(), name


def test_one_value_per_channel_is_normalised_by_the_running_statistics() -> None:
    network = small_network().train()
    network(torch.randn(4, 2, 32, 32))
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    pixel = torch.randn(1, 2, 1, 1)
    with torch.no_grad():
        trained = network(pixel)
    assert all(torch.equal(buffer, before[name]) for name, buffer in network.named_buffers())
    with torch.no_grad():
        torch.testing.assert_close(trained, network.eval()(pixel))


def test_two_values_per_channel_are_normalised_by_their_own_statistics() -> None:
    network = small_network().train()
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    network(torch.randn(1, 2, 1, 2))
    assert not all(torch.equal(buffer, before[name]) for name, buffer in network.named_buffers())


@decoders
@supervision
def test_checkpointing_changes_neither_outputs_nor_gradients(decoder: str, deep_supervision: bool) -> None:
    network = small_network(decoder=decoder, deep_supervision=deep_supervision).train()
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    x = torch.randn(2, 2, 40, 56)
    results = []
    for enable in (False, True):
        network.load_state_dict(state)
        network.zero_grad()
        network.set_grad_checkpointing(enable)
        loss = _backward(network, x)
        results.append([loss, *(p.grad.clone() for p in network.parameters() if p.grad is not None)])
    for plain, checkpointed in zip(*results, strict=True):
        torch.testing.assert_close(checkpointed, plain, rtol=1e-5, atol=1e-7)


def test_checkpointing_really_recomputes_the_encoder() -> None:
    network = small_network().train()
    calls = []
    block = network.encoder.get_submodule("stages_0.blocks.0.mlp")
    block.register_forward_hook(lambda *_: calls.append(1))
    for enable, expected in ((False, 1), (True, 2)):
        calls.clear()
        network.set_grad_checkpointing(enable)
        _backward(network, torch.randn(1, 2, 32, 32))
        assert len(calls) == expected


def test_stochastic_depth_works_in_training_only() -> None:
    network, x = small_network(drop_path_rate=0.5), torch.randn(2, 2, 32, 32)
    with torch.no_grad():
        assert not torch.equal(network.train()(x), network(x))
        assert torch.equal(network.eval()(x), network(x))


def test_switching_deep_supervision_changes_the_kind_of_output_and_back() -> None:
    network = small_network(deep_supervision=True).eval()
    x = torch.randn(1, 2, 32, 40)
    with torch.no_grad():
        first = as_list(network(x))[0]
        for _ in range(2):
            network.decoder.deep_supervision = False
            assert torch.equal(network(x), first)
            network.decoder.deep_supervision = True
            assert torch.equal(as_list(network(x))[0], first)


@pytest.mark.slow
@decoders
def test_one_batch_is_learned_by_heart(decoder: str) -> None:
    network = small_network(1, 2, decoder=decoder).train()
    rows, columns = torch.meshgrid(torch.arange(64), torch.arange(96), indexing="ij")
    discs = [(rows - y) ** 2 + (columns - x) ** 2 < radius**2 for y, x, radius in ((20, 30, 12), (40, 60, 17))]
    target = torch.stack(discs).long()
    x = target[:, None] + 0.5 * torch.randn(2, 1, 64, 96)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for _ in range(80):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(x), target)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.02
