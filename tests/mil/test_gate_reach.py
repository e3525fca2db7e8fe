"""How far gates get: the learning rate of their own, the bound that is printed, what is said afterwards."""

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from nnunet_gdla.errors import UserError
from nnunet_gdla.layers.redundancy_gate import RedundancyGate
from nnunet_gdla.mil.config import config_from_dict, load_config, preset_text
from nnunet_gdla.mil.config_schema import TrainConfig
from nnunet_gdla.mil.fit import fit
from nnunet_gdla.mil.gate_reach import gate_lines, gate_reach, reach_lines, seed_lines, sum_of_rates
from nnunet_gdla.mil.models import build_model
from nnunet_gdla.mil.optimiser import parameter_groups
from nnunet_gdla.mil.prepare import prepare
from nnunet_gdla.mil.schedule import warmup_cosine, warmup_steps
from tests.mil.small_cohorts import MODEL, make_cohort, small_config
from tests.mil.test_resume import CtrlC

SLIM: dict[str, Any] = {"width": 24, "depth": 3, "num_heads": 2, "num_landmarks": 8}


def _preset(name: str, tmp_path: Path) -> tuple[TrainConfig, dict[str, Any]]:
    (tmp_path / "preset.yaml").write_text(preset_text(name), encoding="utf-8")
    config = load_config(tmp_path / "preset.yaml")
    return config.train, {"delta": config.model.delta, "gate_hidden": config.model.gate_hidden}


def _reach(train: TrainConfig, gate: dict[str, Any], slides: int) -> float:
    torch.manual_seed(0)
    lines = reach_lines(build_model("slide_transformer", 8, 2, **SLIM, **gate), train, slides)
    (line,) = lines
    return float(line.split(" in this training")[0].rsplit(" ", 1)[1])


@pytest.mark.parametrize(
    ("preset", "slides", "expected"),
    [("cam16", 194, 0.21), ("own_classification", 70, 0.28)],
    ids=["CAMELYON16's 270 training slides", "100 own slides"],
)
def test_the_presets_cannot_get_far(preset: str, slides: int, expected: float, tmp_path: Path) -> None:
    """A count of rates and parameters gives .21 and .28; head features and a moving hidden layer add up to a tenth."""
    train, gate = _preset(preset, tmp_path)
    assert expected <= _reach(train, gate, slides) <= expected + 0.1


def _pushed(gate: RedundancyGate, train: TrainConfig, slides: int, sign: float) -> torch.Tensor:
    """The beta of a gate whose every step pushes the same way, which no real training does."""
    steps, _ = sum_of_rates(train, slides)
    optimiser = torch.optim.AdamW(gate.parameters(), weight_decay=0.0)
    generator = torch.Generator().manual_seed(1)
    for step in range(steps + 1):
        r_hat = torch.nn.functional.normalize(torch.randn(1, 2, 64, 12, generator=generator), dim=-1)
        y = r_hat + 0.1 * torch.randn(1, 2, 64, 12, generator=generator)
        count = torch.randint(4, 9, (1, 64), generator=generator)
        beta = gate(torch.rand(1, 64, generator=generator), count, y, r_hat)
        if step == steps:
            return beta.detach()
        optimiser.zero_grad()
        (-sign * beta.mean()).backward()
        factor = warmup_cosine(step, steps, warmup_steps(steps, train.warmup_fraction))
        optimiser.param_groups[0]["lr"] = train.lr * train.gate_lr_scale * factor
        optimiser.step()
    raise AssertionError


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bound": "sigmoid01"},
        {"init": "constant", "init_beta": 1.0, "delta": 2.0},
        {"init": "xavier", "parameterisation": "direct"},
        {"factorisation": "token_only", "token_features": "none"},
        {"factorisation": "head_only", "temperature": 0.5},
        {"factorisation": "no_bias", "mean_norm": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_pushed_one_way_in_every_step_a_gate_stays_within_its_reach(options: dict[str, Any], sign: float) -> None:
    torch.manual_seed(0)
    gate = RedundancyGate(2, hidden=16, **options)
    train = TrainConfig(epochs=10, gate_lr_scale=3.0)
    low, high = gate_reach(gate, sum_of_rates(train, 64)[1])
    beta = _pushed(gate, train, 64, sign)
    assert low <= beta.min()
    assert beta.max() <= high
    middle, furthest = (low + high) / 2, float(beta.max() if sign > 0 else beta.min())
    assert sign * (furthest - middle) > 0.3 * (high - middle)  # and it is no empty bound


@pytest.mark.parametrize(("slides", "fraction"), [(1, 0.05), (5, 0.0), (64, 0.3), (64, 1.0), (999, 0.05)])
def test_the_sum_of_rates_is_that_over_all_steps_and_takes_no_time(slides: int, fraction: float) -> None:
    train = TrainConfig(epochs=3, accumulate=4, warmup_fraction=fraction, lr=1.0)
    steps, rates = sum_of_rates(train, slides)
    warmup = warmup_steps(steps, fraction)
    assert rates == pytest.approx(sum(warmup_cosine(step, steps, warmup) for step in range(steps)), rel=1e-12)
    steps, rates = sum_of_rates(TrainConfig(epochs=10**12, accumulate=1, lr=1.0), slides)
    assert rates == pytest.approx(steps / 2, rel=1e-9)


def test_reach_grows_with_the_factor_and_ends_at_the_range(tmp_path: Path) -> None:
    train, gate = _preset("cam16", tmp_path)
    near = _reach(train, gate, 194)
    train.gate_lr_scale = 5.0
    assert near < 0.5 < _reach(train, gate, 194) <= 1.0
    assert "PASS" in reach_lines(build_model("slide_transformer", 8, 2, **SLIM, **gate), train, 194)[0]
    train.gate_lr_scale = 1.0
    (line,) = reach_lines(build_model("slide_transformer", 8, 2, **SLIM, **gate), train, 194)
    assert line.startswith("WARN gate: beta can get to about -0.")
    assert "raise train.gate_lr_scale (now 1)" in line


def test_a_factor_without_a_gate_is_pointed_out() -> None:
    plain = build_model("abmil", 8, 2)
    assert reach_lines(plain, TrainConfig(), 50) == []
    (line,) = reach_lines(plain, TrainConfig(gate_lr_scale=3.0), 50)
    assert line == "WARN train.gate_lr_scale 3 changes nothing: this model has no gate"


@pytest.mark.parametrize("decay_norms_and_biases", [False, True])
def test_gates_have_groups_of_their_own_only_with_a_factor(decay_norms_and_biases: bool) -> None:
    model = build_model("slide_transformer", 8, 2, **SLIM)
    gates = {id(p) for module in model.modules() if isinstance(module, RedundancyGate) for p in module.parameters()}
    plain = parameter_groups(model, 0.05, decay_norms_and_biases=decay_norms_and_biases)
    assert len(plain) == 2
    assert not any("lr_scale" in group for group in plain)
    scaled = parameter_groups(model, 0.05, decay_norms_and_biases=decay_norms_and_biases, gate_lr_scale=10.0)
    assert {id(p) for group in scaled if group.get("lr_scale") == 10 for p in group["params"]} == gates
    assert sum(len(group["params"]) for group in scaled) == len(list(model.parameters()))
    decayed = [
        {id(p) for group in groups if group["weight_decay"] for p in group["params"]} for groups in (plain, scaled)
    ]
    assert decayed[0] == decayed[1]


def test_check_prints_the_reach_and_the_warm_start_is_a_setting(tmp_path: Path) -> None:
    make_cohort(tmp_path, "classification")
    said: list[str] = []
    warm = MODEL | {"delta": 2.0, "extra": {"gate_options": {"init": "constant", "init_beta": 1}}}
    prepared = prepare(small_config(tmp_path, "classification", model=warm, lr=1e-5), say=said.append)
    (line,) = [line for line in said if "gate: beta" in line]
    assert line.startswith("PASS gate: beta can get to about 1.00 to 1.00 in this training, of 2 at most")
    model = build_model("slide_transformer", 16, 2, **prepared.info.model_kwargs)
    (gate,) = [module for module in model.modules() if isinstance(module, RedundancyGate)]
    y = torch.randn(1, 2, 5, 12)
    beta = gate(torch.rand(1, 5), torch.ones(1, 5, dtype=torch.int64), y, y)
    torch.testing.assert_close(beta, torch.ones_like(beta))


def _gates(mean: float, size: float, *, block: int = 0) -> pd.DataFrame:
    rows = [{"epoch": epoch, "block": block, "mean": mean * epoch, "min": -size, "max": size / 2} for epoch in (0, 1)]
    return pd.DataFrame(rows)


def test_where_the_gates_ended_is_said() -> None:
    assert gate_lines(None, 0) == gate_lines(_gates(0.0, 1.0).iloc[:0], 0) == []
    (near,) = gate_lines(_gates(-0.02, 0.06), 1)
    assert near.startswith("beta stayed near 0: 0.06 in size at most, means on validation -0.02 (block 0)")
    (moved,) = gate_lines(_gates(0.4, 0.9), 1)
    assert moved == "beta, means on validation: 0.40 (block 0); -0.90 to 0.45 over patches"


def test_gates_that_disagree_between_seeds_are_named() -> None:
    disagree = {0: (_gates(-0.3, 0.9), 1), 7: (_gates(0.2, 0.8), 1)}
    (line,) = seed_lines("srp", disagree)
    assert line == "srp: mean beta of block 0 differs in sign between seeds: -0.30 (seed 0), +0.20 (seed 7)"
    assert seed_lines("srp", {0: (_gates(0.3, 0.9), 1), 7: (_gates(0.2, 0.8), 1)}) == []
    assert "stayed near 0" in seed_lines("srp", {0: (_gates(0.01, 0.05), 1), 7: (_gates(-0.01, 0.04), 1)})[0]
    assert seed_lines("none", {0: (None, 0)}) == []


@pytest.mark.usefixtures("no_figures")
def test_a_scaled_training_keeps_its_ratio_stays_within_reach_and_resumes_exactly(tmp_path: Path) -> None:
    make_cohort(tmp_path, "classification", slides=12)
    config = small_config(tmp_path, "classification", epochs=2, gate_lr_scale=20.0)
    said: list[str] = []
    fit(config, run=tmp_path / "straight", say=said.append)
    (line,) = [line for line in said if "gate: beta can" in line]
    low, high = (float(number) for number in line.split("about ")[1].split(" in this")[0].split(" to "))
    gates = pd.read_csv(tmp_path / "straight" / "gates.csv")
    assert low <= gates["min"].min() < gates["max"].max() <= high
    assert sum(line.startswith("beta") for line in said) == 1
    tree = torch.load(tmp_path / "straight" / "checkpoints" / "last.ckpt", weights_only=True)
    groups = tree["optimizer_states"][0]["param_groups"]
    assert [group["lr"] / groups[0]["lr"] for group in groups] == pytest.approx([1, 1, 20, 20])

    with pytest.raises(KeyboardInterrupt):
        fit(config, run=tmp_path / "stopped", callbacks=[CtrlC(1, 0)])
    fit(config, run=tmp_path / "stopped", resume=True)
    for name in ("gates.csv", "logs/metrics.csv", "predictions_val.csv"):
        assert (tmp_path / "stopped" / name).read_bytes() == (tmp_path / "straight" / name).read_bytes()


def test_the_factor_has_a_range() -> None:
    for wrong in (0, -1, math.inf):
        with pytest.raises(UserError, match=r"train\.gate_lr_scale"):
            config_from_dict(
                {"data": {"table": "a", "features": "b", "task": "survival"}, "train": {"gate_lr_scale": wrong}}
            )
