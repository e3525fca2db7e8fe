"""The signed gate: golden coefficients of every variant, its start, its parameters, and what it refuses."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nnunet_gdla.layers.redundancy import RedundancyGate
from nnunet_gdla.layers.redundancy_gate import BOUNDS, Bound, Factorisation, GateInit, Parameterisation
from tests.layers.srp_names import GATE_NAMES
from tests.reference.compare import assert_all_close, gradients
from tests.reference.redundancy import gate_naive, head_features_naive, token_features_naive, unit_naive
from tests.srp_golden import SrpFile, srp_params

FORMS = ("full", "token_only", "head_only", "no_bias")
TOKEN_FEATURES = ("legacy", "rawlog", "normlog", "none")
GOLDEN = pytest.mark.parametrize("golden", srp_params("gate"))


def vectors_with(head_features: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and directions (1, H, N, 2) in the plane that have these cosines and lengths."""
    cosine, _, log_norm = head_features.double().unbind(-1)
    angle = torch.acos(cosine.clamp(-1, 1))
    y = torch.expm1(log_norm)[..., None] * torch.stack([angle.cos(), angle.sin()], dim=-1)
    return y, torch.tensor([1.0, 0.0], dtype=torch.float64).expand_as(y)


@GOLDEN
@pytest.mark.parametrize("form", FORMS)
def test_coefficients_are_the_golden_ones(golden: SrpFile, form: Factorisation) -> None:
    tensors = golden.tensors
    weights = golden.group(f"{form}.gate.")
    if form == "token_only":
        del weights["head_b"]  # has no effect, and is not there in ours
    named = {GATE_NAMES[name]: value.double() for name, value in weights.items()}
    y, r_hat = vectors_with(tensors["head_feats"])
    cases = [name for name in tensors if name.startswith(f"{form}.beta.")]
    assert len(cases) == (10 if form == "full" else 4)
    for name in cases:
        bound, parameterisation, *temperature = name.removeprefix(f"{form}.beta.").split(".", 2)
        gate = RedundancyGate(
            y.shape[1],
            num_slots=int(tensors["K"]),
            hidden=weights["tok1_w"].shape[0] if "tok1_w" in weights else 64,
            delta=tensors["delta"].item(),
            bound=bound,  # type: ignore[arg-type]
            temperature=float(temperature[0].removeprefix("T")) if temperature else 1.0,
            parameterisation=parameterisation,  # type: ignore[arg-type]
            factorisation=form,
        ).double()
        gate.load_state_dict(named)
        beta = gate(tensors["h_local"].double(), tensors["count"].double(), y, r_hat)
        assert_all_close({name: beta.unsqueeze(-1)}, {name: tensors[name]}, 5e-6)


@GOLDEN
@pytest.mark.parametrize("kind", [*TOKEN_FEATURES, "legacy_with_norm", "legacy_K24"])
def test_token_features_are_the_golden_ones(golden: SrpFile, kind: str) -> None:
    tensors, wide = golden.tensors, kind == "legacy_K24"
    count = tensors["count"]
    gate = RedundancyGate(
        3,
        num_slots=24 if wide else int(tensors["K"]),
        token_features=kind.split("_")[0],  # type: ignore[arg-type]
        mean_norm=kind == "legacy_with_norm",
    )
    seen: list[Tensor] = []
    assert gate.token_in is not None
    original = gate._token_features

    def spy(*args: Tensor) -> Tensor:
        seen.append(original(*args))
        return seen[-1]

    gate._token_features = spy  # type: ignore[method-assign]
    length = torch.expm1(tensors["extra_mean_log_norm"])
    y = torch.stack([length, torch.zeros_like(length)], dim=-1).unsqueeze(1).expand(-1, 3, -1, -1)
    gate(tensors["h_local"], 2 * count if wide else count, y, torch.zeros_like(y))
    assert_all_close({"t": seen[0]}, {"t": tensors[f"token_feats_{kind}"]}, 5e-6)


@GOLDEN
@pytest.mark.parametrize("bound", [*BOUNDS, "tanh.direct"])
def test_constant_start_is_the_golden_one(golden: SrpFile, bound: str) -> None:
    tensors = golden.tensors
    beta = tensors["const_init_beta0"].item()
    direct = bound.endswith(".direct")
    gate = RedundancyGate(
        3,
        delta=tensors["delta"].item(),
        bound=bound.removesuffix(".direct"),  # type: ignore[arg-type]
        parameterisation="direct" if direct else "fixed",
        init="constant",
        init_beta=beta,
    )
    assert gate.layer_bias is not None
    expected = tensors[f"const_init_bias.{bound}"].expand(3)
    assert_all_close({"bias": gate.layer_bias}, {"bias": expected}, 5e-6)


def random_inputs(dtype: torch.dtype = torch.float64, *, batch: int = 1) -> list[Tensor]:
    y, r_hat = torch.randn(2, batch, 3, 11, 4, dtype=dtype).unbind()
    return [torch.rand(batch, 11, dtype=dtype), torch.randint(0, 9, (batch, 11)).to(dtype), y, unit_naive(r_hat)]


def opened(gate: RedundancyGate) -> RedundancyGate:
    for parameter in gate.parameters():
        nn.init.normal_(parameter)
    return gate.double()


@pytest.mark.parametrize("bound", list(BOUNDS))
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("direct", [False, True])
def test_it_equals_naive_with_all_gradients(bound: Bound, form: Factorisation, direct: bool) -> None:
    homogeneity, count, y, r_hat = random_inputs()
    parameterisation: Parameterisation = "direct" if direct else "fixed"
    features = TOKEN_FEATURES[FORMS.index(form)]
    gate = opened(
        RedundancyGate(
            3,
            token_features=features,  # type: ignore[arg-type]
            bound=bound,
            factorisation=form,
            parameterisation=parameterisation,
            delta=1.7,
            temperature=0.8,
            hidden=5,
        )
    )
    names, values = zip(*gate.named_parameters(), strict=True)

    def fast(*weights: Tensor) -> Tensor:
        return torch.func.functional_call(gate, dict(zip(names, weights, strict=True)), (homogeneity, count, y, r_hat))

    def naive(*weights: Tensor) -> Tensor:
        tokens = token_features_naive(homogeneity[0], count[0], 8, features)
        heads = head_features_naive(y[0], r_hat[0])
        options = {"delta": 1.7, "temperature": 0.8, "bound": bound, "direct": direct}
        return gate_naive(dict(zip(names, weights, strict=True)), tokens, heads, **options).unsqueeze(0)  # type: ignore[arg-type]

    assert_all_close(gradients(fast, list(values)), gradients(naive, list(values)), 1e-12)


def test_known_products_and_lengths_are_used() -> None:
    homogeneity, count, y, r_hat = random_inputs()
    gate = opened(RedundancyGate(3))
    measured = ((y * r_hat).sum(-1), y.norm(dim=-1))
    torch.testing.assert_close(
        gate(homogeneity, count, y, r_hat, measured=measured), gate(homogeneity, count, y, r_hat)
    )


@pytest.mark.parametrize("mean_norm", [False, True])
def test_gradients_reach_the_outputs_only_when_live(mean_norm: bool) -> None:
    homogeneity, count, y, r_hat = random_inputs()
    y.requires_grad_()
    r_hat.requires_grad_()
    gate = opened(RedundancyGate(3, mean_norm=mean_norm, factorisation="token_only" if mean_norm else "full"))
    gate(homogeneity, count, y, r_hat).sum().backward()
    assert y.grad is None
    live = copy.deepcopy(gate)
    live.detach = False
    live(homogeneity, count, y, r_hat).sum().backward()
    assert y.grad is not None
    assert y.grad.abs().sum() > 0
    assert r_hat.grad is None


def test_live_gradients_are_right_in_the_fourth_feature_too() -> None:
    homogeneity, count, y, r_hat = random_inputs(batch=2)
    gate = opened(RedundancyGate(3, mean_norm=True, detach=False, hidden=4))
    assert torch.autograd.gradcheck(lambda x: gate(homogeneity, count, x, r_hat), [y.requires_grad_()])


@pytest.mark.parametrize(("hidden", "number"), [(16, 111), (32, 191), (64, 351), (128, 671)])
def test_parameters_are_as_many_as_the_paper_says(hidden: int, number: int) -> None:
    assert sum(parameter.numel() for parameter in RedundancyGate(6, hidden=hidden).parameters()) == number


def test_each_form_has_only_what_it_uses() -> None:
    def sizes(**options: Any) -> dict[str, tuple[int, ...]]:  # noqa: ANN401
        return {name: tuple(value.shape) for name, value in RedundancyGate(6, hidden=16, **options).named_parameters()}

    token_part = {
        "token_in.weight": (16, 3),
        "token_in.bias": (16,),
        "token_out.weight": (1, 16),
        "token_out.bias": (1,),
    }
    head_part = {"head_weight": (6, 3), "head_bias": (6,)}
    assert sizes() == token_part | head_part | {"layer_bias": (6,)}
    assert sizes(factorisation="token_only") == token_part | {"layer_bias": (6,)}
    assert sizes(factorisation="head_only") == head_part | {"layer_bias": (6,)}
    assert sizes(factorisation="no_bias") == {
        "token_in.weight": (16, 3),
        "token_out.weight": (1, 16),
        "head_weight": (6, 3),
    }
    assert sizes(mean_norm=True)["token_in.weight"] == (16, 4)
    assert sizes(token_features="none")["token_in.weight"] == (16, 1)


@pytest.mark.parametrize("init", ["zero", "normal", "xavier", "kaiming", "orthogonal", "constant"])
def test_building_a_gate_draws_nothing_from_the_generator(init: GateInit) -> None:
    before = torch.get_rng_state()
    RedundancyGate(6, init=init)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("bound", [name for name in BOUNDS if name != "sigmoid01"])
@pytest.mark.parametrize("form", FORMS)
def test_the_zero_start_is_exactly_zero(bound: Bound, form: Factorisation) -> None:
    choices: tuple[Parameterisation, ...] = ("fixed", "direct")
    for parameterisation in choices:
        gate = RedundancyGate(3, bound=bound, factorisation=form, parameterisation=parameterisation)
        assert not gate(*random_inputs(torch.float32)).any()
        assert all(not value.any() for name, value in gate.named_parameters() if not name.startswith("token_in"))
        if form != "head_only":
            assert gate.token_in is not None
            assert gate.token_in.weight.abs().max() <= 3**-0.5


def test_the_sigmoid_starts_at_half_its_range() -> None:
    beta = RedundancyGate(3, bound="sigmoid01", delta=1.5)(*random_inputs(torch.float32))
    torch.testing.assert_close(beta, torch.full_like(beta, 0.75))


@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_random_starts_have_their_spread(scale: float) -> None:
    def weights(init: GateInit) -> tuple[Tensor, Tensor]:
        gate = RedundancyGate(2000, hidden=4000, init=init, init_scale=scale)
        assert gate.token_out is not None
        assert gate.head_weight is not None
        assert not any(
            value.any() for name, value in gate.named_parameters() if name in gate.no_weight_decay() - {"token_in.bias"}
        )
        return gate.token_out.weight, gate.head_weight

    for weight in weights("normal"):
        assert weight.std().item() == pytest.approx(scale, rel=0.05)
    for weight, bound in zip(weights("xavier"), ((6 / 4001) ** 0.5, (6 / 2003) ** 0.5), strict=True):
        assert weight.abs().max().item() == pytest.approx(scale * bound, rel=0.01)
    for weight, bound in zip(weights("kaiming"), (4000**-0.5, 3**-0.5), strict=True):
        assert weight.abs().max().item() == pytest.approx(scale * bound, rel=0.01)
    row, matrix = weights("orthogonal")
    torch.testing.assert_close(row @ row.T, torch.full((1, 1), scale**2))
    torch.testing.assert_close(matrix.T @ matrix, scale**2 * torch.eye(3), rtol=1e-4, atol=1e-6 * scale**2)


@pytest.mark.parametrize("bound", list(BOUNDS))
@pytest.mark.parametrize("parameterisation", ["fixed", "direct"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_constant_start_hits_its_value(bound: Bound, parameterisation: Parameterisation, temperature: float) -> None:
    options = {"bound": bound, "parameterisation": parameterisation, "temperature": temperature, "delta": 1.5}
    for beta in (0.3, 1.2) if bound == "sigmoid01" else (-1.2, 0.0, 0.3, 1.2):
        gate = RedundancyGate(3, init="constant", init_beta=beta, **options)
        result = gate(*random_inputs(torch.float32))
        torch.testing.assert_close(result, torch.full_like(result, beta), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bound", list(BOUNDS))
@pytest.mark.parametrize("factorisation", ["full", "token_only", "head_only", "no_bias"])
def test_a_closed_gate_is_zero_and_any_output_opens_it(bound: Bound, factorisation: Factorisation) -> None:
    gate, inputs = RedundancyGate(3, bound=bound, factorisation=factorisation), random_inputs(torch.float32)
    assert gate.is_closed() == (bound != "sigmoid01")
    assert gate.is_closed() == (not gate(*inputs).any())
    outputs = [(name, part) for name, part in gate.named_parameters() if not name.startswith("token_in")]
    assert outputs
    for name, part in outputs:
        part.detach().view(-1)[-1] += 0.5
        assert not gate.is_closed(), name
        assert gate(*inputs).any(), name
        part.detach().view(-1)[-1] -= 0.5


def test_a_gate_with_a_foreign_part_is_not_called_closed() -> None:
    gate = RedundancyGate(3)
    assert isinstance(gate.token_out, nn.Linear)
    gate.token_out = nn.Sequential(gate.token_out, nn.Softplus())  # type: ignore[assignment]
    assert not gate.is_closed()
    assert gate(*random_inputs(torch.float32)).all()


def test_it_runs_in_float32_under_autocast_and_with_half_weights() -> None:
    inputs = random_inputs(torch.float32)
    gate = opened(RedundancyGate(3)).float()
    expected = gate(*inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(gate(*inputs), expected)
    assert gate.to(torch.bfloat16)(*inputs).dtype == torch.float32


def test_batch_elements_are_independent() -> None:
    inputs = random_inputs(batch=3)
    gate = opened(RedundancyGate(3, mean_norm=True))
    whole = gate(*inputs)
    for one in range(3):
        torch.testing.assert_close(gate(*(value[one : one + 1] for value in inputs)), whole[one : one + 1])
