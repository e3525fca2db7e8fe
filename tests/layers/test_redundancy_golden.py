"""Gated SRP and its fixed relatives: the golden projections with y and v given."""

from typing import Any

import pytest
import torch
from torch import Tensor

from nnunet_gdla.layers.redundancy import FixedSRP, GatedSRP
from nnunet_gdla.ops.neighbours import NeighbourGraph
from tests.layers.srp_names import GATE_NAMES
from tests.reference.compare import assert_all_close
from tests.srp_golden import SrpFile, srp_params

# what the files do not say, from their README
OPTIONS: dict[str, dict[str, Any]] = {
    "detached": {"delta": 1.5},
    "live": {"delta": 1.5, "detach": False},
    "gaussian": {"delta": 2},
    "win5": {"delta": 0.5},
    "direct": {"parameterisation": "direct"},
    "sigmoid": {"delta": 1, "bound": "sigmoid01"},
    "token_only": {"delta": 1, "factorisation": "token_only"},
    "head_only": {"delta": 1, "factorisation": "head_only"},
    "no_bias": {"delta": 1, "factorisation": "no_bias"},
    "normlog": {"delta": 1, "token_features": "normlog"},
}
GATED = srp_params(*(f"projection_{kind}" for kind in OPTIONS))
FIXED = srp_params(*(f"projection_{kind}" for kind in ("beta_m1", "beta_1", "beta_2", "beta_learn")))


def golden_graph(tensors: dict[str, Tensor]) -> NeighbourGraph:
    mask = tensors["nbr_mask"]
    return NeighbourGraph(tensors["nbr_index"], mask, tensors.get("nbr_weight", mask.float()))


def run_golden(layer: GatedSRP | FixedSRP, golden: SrpFile) -> dict[str, Tensor]:
    tensors = golden.tensors
    y, v = (tensors[name].clone().requires_grad_() for name in ("y", "v"))
    z = layer(y, v, golden_graph(tensors), tensors["h_local"], first=1)
    (z * tensors["cot_z"]).sum().backward()
    assert v.grad is None or not v.grad.any()
    assert y.grad is not None
    outside = [0, *range(int(tensors["n_real"]) + 1, y.shape[2])]
    assert torch.equal(z[:, :, outside], y[:, :, outside])
    return {"z": z, "y": y.grad}


@pytest.mark.parametrize("golden", GATED)
def test_gated_projection_is_the_golden_one(golden: SrpFile) -> None:
    tensors = golden.tensors
    options = OPTIONS[golden.kind.removeprefix("projection_")]
    weights = golden.group("w.gate.")
    if options.get("factorisation") == "token_only":
        del weights["head_b"]  # has no effect, and is not there in ours
    hidden = weights["tok1_w"].shape[0] if "tok1_w" in weights else 64
    slots = tensors["nbr_index"].shape[1]
    layer = GatedSRP(tensors["y"].shape[1], num_slots=slots, hidden=hidden, **options)
    layer.gate.load_state_dict({GATE_NAMES[name]: value for name, value in weights.items()})
    betas: list[Tensor] = []
    layer.gate.register_forward_hook(lambda _module, _inputs, beta: betas.append(beta))
    result = run_golden(layer, golden)
    outputs = {"z": result["z"], "beta": betas[0].unsqueeze(-1)}
    assert_all_close(outputs, {"z": tensors["z"], "beta": tensors["beta"]}, 5e-6)
    expected = {GATE_NAMES[name]: value for name, value in golden.group("grad.gate.").items()}
    found = {name: value.grad for name, value in layer.gate.named_parameters() if value.grad is not None}
    assert_all_close({"y": result["y"], **found}, {"y": tensors["grad_y"], **expected}, 5e-5)


@pytest.mark.parametrize("golden", FIXED)
def test_fixed_projection_is_the_golden_one(golden: SrpFile) -> None:
    tensors = golden.tensors
    betas = tensors["w.beta_h"]
    learned = "grad.beta_h" in tensors
    layer = FixedSRP(len(betas), "learned" if learned else betas[0].item())
    if learned:
        layer.load_state_dict({"beta": betas})
    result = run_golden(layer, golden)
    assert_all_close({"z": result["z"]}, {"z": tensors["z"]}, 5e-6)
    assert_all_close({"y": result["y"]}, {"y": tensors["grad_y"]}, 5e-5)
    if learned:
        assert_all_close({"beta": layer.beta.grad}, {"beta": tensors["grad.beta_h"]}, 5e-5)  # type: ignore[dict-item]
    else:
        assert (betas == betas[0]).all()
        assert not list(layer.parameters())
