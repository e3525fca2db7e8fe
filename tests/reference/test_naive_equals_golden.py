"""The naive formulas are the specification: they reproduce the golden numbers, so that other tests may trust them."""

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from tests.golden_files import GoldenFile, golden_params
from tests.reference.attention import AttentionWeights, DifferentialWeights, mhda_naive, mhla_naive, mhsa_naive
from tests.reference.compare import assert_all_close
from tests.reference.feed_forward import mix_ffn_naive, mlp_naive, swiglu_naive
from tests.reference.gdla import LocalWeights, MixerWeights, gdla_mixer_naive


def _attention_weights(weights: Mapping[str, Tensor]) -> AttentionWeights:
    return AttentionWeights(
        weights["qkv.weight"], weights.get("qkv.bias"), weights["out_proj.weight"], weights.get("out_proj.bias")
    )


def _mixer(golden: GoldenFile, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    local = LocalWeights(
        weights["dwc.weight"],
        weights["dwc.bias"],
        (weights["pwc.weight"][:, :, 0, 0],),
        weights["pwc.bias"],
        weights["lambda_scale_aux"],
    )
    mixer = MixerWeights(
        weights["qkvg.weight"],
        weights.get("qkvg.bias"),
        weights["lambda_scale_main"],
        weights["ln.weight"],
        weights["out_proj.weight"],
        weights["out_proj.bias"],
        local,
    )
    meta = golden.meta
    return gdla_mixer_naive(x, (meta["grid"][0], meta["grid"][1]), mixer, num_heads=meta["heads"], gate=meta["gate"])


def _mhda(golden: GoldenFile, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    lambdas = DifferentialWeights(
        weights["lambda_q1"],
        weights["lambda_k1"],
        weights["lambda_q2"],
        weights["lambda_k2"],
        weights["subln.weight"],
    )
    meta = golden.meta
    return mhda_naive(
        x, _attention_weights(weights), lambdas, num_heads=meta["heads"], depth=meta["depth"], rope=meta["rope"]
    )


def _mhla(golden: GoldenFile, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    return mhla_naive(x, _attention_weights(weights), num_heads=golden.meta["heads"], rope=golden.meta["rope"])


def _mhsa(golden: GoldenFile, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    return mhsa_naive(x, _attention_weights(weights), num_heads=golden.meta["heads"], rope=golden.meta["rope"])


def _mix_ffn(golden: GoldenFile, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    grid = golden.meta["grid"]
    expand = (weights["pwc1.weight"][:, :, 0, 0], weights["pwc1.bias"])
    depthwise = (weights["dwc.weight"], weights["dwc.bias"])
    return mix_ffn_naive(x, (grid[0], grid[1]), expand, depthwise, weights["pwc2.weight"][:, :, 0, 0])


def _mlp(golden: GoldenFile, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    fc1, fc2 = (weights["fc1.weight"], weights["fc1.bias"]), (weights["fc2.weight"], weights["fc2.bias"])
    return (swiglu_naive if golden.meta["kind"] == "SwiGLU" else mlp_naive)(x, fc1, fc2)


NAIVE: dict[str, Callable[[GoldenFile, Tensor, Mapping[str, Tensor]], Tensor]] = {
    "GatedDiffLinearAttn": _mixer,
    "MultiHeadDiffAttn": _mhda,
    "MultiHeadLinearAttn": _mhla,
    "MultiHeadSelfAttn": _mhsa,
    "GMLP": _mix_ffn,
    "SwiGLU": _mlp,
    "MLP": _mlp,
}


@pytest.mark.parametrize("golden", golden_params(*NAIVE))
def test_the_naive_formula_reproduces_the_golden_file(golden: GoldenFile) -> None:
    # in float64, where the only error left is the reference run's own float32 noise
    weights = {name: value.double().requires_grad_() for name, value in golden.group("param.").items()}
    x = golden.tensors["input.x"].double().requires_grad_()
    y = NAIVE[golden.meta["kind"]](golden, x, weights)
    grads = torch.autograd.grad(y, [x, *weights.values()], golden.tensors["cotangent"].double())
    actual = {"input.x": grads[0], **{f"param.{name}": grad for name, grad in zip(weights, grads[1:], strict=True)}}
    assert_all_close({"y": y}, {"y": golden.tensors["output.y"]}, max(1e-5, 2 * golden.meta["noise_out"]))
    assert_all_close(actual, golden.group("grad."), max(1e-4, 2 * golden.meta["noise_grad"]))
