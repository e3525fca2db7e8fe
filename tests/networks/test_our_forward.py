"""Our forward passes of encoder and stem give what timm's and the layers' own give."""

import copy
from collections.abc import Callable

import pytest
import timm
import torch
from torch import Tensor, nn

from nnunet_gdla.networks.encoder import build_encoder
from nnunet_gdla.networks.stem import ResidualStem
from nnunet_gdla.ops import use_forms
from tests.reference.compare import assert_all_close


def outputs_and_gradients(module: nn.Module, run: Callable[[], Tensor | list[Tensor]]) -> dict[str, Tensor]:
    """Outputs by number, gradients of all parameters by name, buffers by name."""
    module.zero_grad()
    result = run()
    outputs = [result] if isinstance(result, Tensor) else list(result)
    # Random, for a cotangent that is the same in all channels dies in a layer normalisation.
    generator = torch.Generator().manual_seed(3)
    weights = [torch.randn(output.shape, generator=generator, dtype=output.dtype) for output in outputs]
    torch.autograd.backward(outputs, weights)
    named = {f"output {number}": output for number, output in enumerate(outputs)}
    named |= {name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None}
    return named | {name: buffer.double() for name, buffer in module.named_buffers()}


@pytest.mark.parametrize("size", [(64, 32), (96, 96)], ids=str)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_encoder_equals_timms(size: tuple[int, int], checkpointing: bool) -> None:
    torch.manual_seed(0)
    ours, _ = build_encoder("pvt_v2_b0", 2, 0.0)
    timms = timm.create_model("pvt_v2_b0", features_only=True, in_chans=2)
    timms.load_state_dict(ours.state_dict())
    assert not {type(module) for module in timms.modules()} >= {type(module) for module in ours.modules()}
    ours.set_grad_checkpointing(checkpointing)  # type: ignore[operator]
    x = torch.randn(2, 2, *size, dtype=torch.float64)
    ours, timms = ours.double(), timms.double()
    found, expected = (outputs_and_gradients(encoder, lambda e=encoder: e(x)) for encoder in (ours, timms))  # type: ignore[misc]
    assert_all_close(found, expected, 1e-10)
    with use_forms("plain"):
        assert_all_close(outputs_and_gradients(ours, lambda: ours(x)), expected, 1e-14)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize("size", [(9, 7), (1, 2), (1, 1)], ids=str)
def test_the_projected_stem_equals_stem_and_head(size: tuple[int, int], channels: int, train: bool) -> None:
    torch.manual_seed(1)
    module = nn.ModuleDict({"stem": ResidualStem(channels, 8), "head": nn.Conv2d(8, 5, 1)}).double().train(train)
    for name, buffer in module.named_buffers():
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 2)
    plain = copy.deepcopy(module)
    x = 3 * torch.randn(2, channels, *size, dtype=torch.float64) + 50

    def run(module: nn.ModuleDict) -> Tensor:
        return module["stem"].project(x, module["head"])  # type: ignore[operator]

    found = outputs_and_gradients(module, lambda: run(module))
    with use_forms("plain"):
        expected = outputs_and_gradients(plain, lambda: run(plain))
    # Normalisation cancels a convolution's scale: where it has one input channel its gradient is rounding alone.
    assert_all_close(found, expected, 1e-8, floor=1e-4)


def test_float32_statistics_of_many_pixels_stay_exact() -> None:
    torch.manual_seed(0)
    stem, head = ResidualStem(1, 16), nn.Conv2d(16, 3, 1)
    x = torch.randn(2, 1, 256, 256) + 5
    found = stem.project(x, head)
    exact = copy.deepcopy(stem).double().project(x.double(), copy.deepcopy(head).double())
    assert_all_close({"logits": found}, {"logits": exact}, 2e-6)
