r"""How far the gates of a model can get in a training, and where they ended.

AdamW moves a parameter by about the learning rate at most in a step: exactly that where its gradient always has the
same sign and size. Over a training it moves by at most the sum S of the learning rates, so that a gate's raw value

$$\mathrm{raw} = \sum_k W_{2k}\,a_k + c_2 + \langle w, e\rangle + b + b',\qquad a = \mathrm{GELU}(W_1 t + c_1)$$

moves from the start of the biases by at most

$$\sum_k (|W_{2k}| + S)\,\hat a_k + (|w| + S)\cdot|e| + 3 S ,$$

with the weights as they start, and $\hat a_k$ the largest |GELU| within $S(\|t\|_1 + 1)$ of the starting $W_1 t + c_1$
(3 S: the three biases; a gate may have fewer parts). t is the token feature vector at which the sum is largest
(homogeneity 0 to 1, any number of neighbours), and e = [c, |c|, log(1 + |y|)] has |c| <= 1 and |y| = 3, about the
length of a head's values at the start. The bound of the gate turns this into a range of beta. Gradients that grow all
the time can take AdamW's steps to three times the learning rate; noise, clipping and weight decay make them shorter, in
real trainings by far.
"""

import itertools
import math
from collections.abc import Mapping
from typing import Final

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nnunet_gdla.layers.redundancy import FixedSRP
from nnunet_gdla.layers.redundancy_gate import BOUNDS, RedundancyGate
from nnunet_gdla.mil.config_schema import TrainConfig
from nnunet_gdla.mil.schedule import warmup_steps
from nnunet_gdla.words import counted

__all__ = ["gate_lines", "gate_reach", "reach_lines", "seed_lines", "sum_of_rates"]

_LOWEST: Final = -0.7518  # where GELU is lowest
_LOG_LENGTH: Final = math.log1p(3.0)
_HOMOGENEITY: Final = (0.0, 0.5, 1.0)
# Up to this size of beta a model is nearly the one without correction; means beyond half of it have a sign.
_NEAR: Final = 0.1


def sum_of_rates(train: TrainConfig, slides: int) -> tuple[int, float]:
    """Return the steps of a training on so many slides, and the sum of the gates' learning rates over them."""
    steps = train.epochs * math.ceil(slides / train.accumulate)
    warmup = warmup_steps(steps, train.warmup_fraction)
    # The sum of `warmup_cosine` over all steps: (w + 1) / 2 while it rises, then (T - w + 1) / 2, if there are such.
    factors = (warmup + 1) / 2 + ((steps - warmup + 1) / 2 if warmup < steps else 0.0)
    return steps, train.lr * train.gate_lr_scale * factors


@torch.no_grad()
def gate_reach(gate: RedundancyGate, rates: float) -> tuple[float, float]:
    """Return the lowest and the highest beta that a gate can get to; the top of this file says how.

    Args:
        gate: As it starts.
        rates: Sum of the learning rates of the training.
    """
    move, start = 0.0, 0.0
    if gate.token_in is not None and gate.token_out is not None:
        move += _token_move(gate, gate.token_in, gate.token_out, rates)
    if gate.head_weight is not None:
        head = torch.tensor([1.0, 1.0, _LOG_LENGTH])
        move += float(((gate.head_weight.abs().cpu() + rates) @ head).max())
    for bias in (gate.head_bias, gate.layer_bias):
        if bias is not None:
            move += rates
            start += float(bias[0])
    ends = torch.tensor([start - move, start + move], dtype=torch.float64) / gate.temperature
    low, high = (gate.reach * BOUNDS[gate.bound](ends)).tolist()
    return low, high


def _token_move(gate: RedundancyGate, first: nn.Linear, second: nn.Linear, rates: float) -> float:
    """The largest value of the token part, over the features that a patch can have."""
    grid = list(itertools.product(_HOMOGENEITY, range(gate.num_slots + 1)))
    homogeneity, count = (torch.tensor(column, dtype=torch.float32)[None] for column in zip(*grid, strict=True))
    length = torch.full((1, 1, len(grid)), math.expm1(_LOG_LENGTH))
    features: Tensor = gate._token_features(homogeneity, count, length)[0]
    biased = first.bias is not None
    start = F.linear(features, first.weight.cpu(), None if first.bias is None else first.bias.cpu())
    shift = rates * (features.abs().sum(1, keepdim=True) + biased)
    lowest = torch.full_like(start, _LOWEST).clamp(start - shift, start + shift)
    hidden = torch.stack([F.gelu(each).abs() for each in (start - shift, lowest, start + shift)]).amax(0)
    moved = hidden @ (second.weight[0].abs().cpu() + rates)
    return float(moved.max()) + rates * biased


def reach_lines(model: nn.Module, train: TrainConfig, slides: int) -> list[str]:
    """Return what to expect of the gates before a training: PASS, or WARN where they cannot get far.

    Args:
        model: As it starts; gates do not depend on the width of the features.
        train: Settings.
        slides: Training slides.
    """
    gates = [module for module in model.modules() if isinstance(module, RedundancyGate)]
    if not gates:
        learned = any(isinstance(module, FixedSRP) and list(module.parameters()) for module in model.modules())
        if train.gate_lr_scale == 1 or learned:
            return []
        return [f"WARN train.gate_lr_scale {train.gate_lr_scale:g} changes nothing: this model has no gate"]
    steps, rates = sum_of_rates(train, slides)
    ends = [gate_reach(gate, rates) for gate in gates]
    low, high, limit = min(low for low, _ in ends), max(high for _, high in ends), max(gate.reach for gate in gates)
    line = (
        f"gate: beta can get to about {low:.2f} to {high:.2f} in this training, of {limit:g} at most "
        f"({counted(steps, 'step')}, learning rates add up to {rates:.2g})"
    )
    if max(-low, high) >= limit / 2:
        return [f"PASS {line}"]
    return [f"WARN {line}; raise train.gate_lr_scale (now {train.gate_lr_scale:g}) if it is to get further"]


def gate_lines(gates: pd.DataFrame | None, epoch: int) -> list[str]:
    """Return where the gates of a run ended.

    Args:
        gates: As in `gates.csv`.
        epoch: Of the weights that were kept, from 0.
    """
    rows = _rows_of(gates, epoch)
    if not len(rows):
        return []
    means = ", ".join(f"{row.mean:.2f} (block {row.block})" for row in rows.itertuples())
    size = _size(rows)
    if size < _NEAR:
        return [
            f"beta stayed near 0: {size:.2f} in size at most, means on validation {means}; the model is nearly the one "
            "without correction"
        ]
    return [f"beta, means on validation: {means}; {rows['min'].min():.2f} to {rows['max'].max():.2f} over patches"]


def seed_lines(method: str, ended: Mapping[int, tuple[pd.DataFrame | None, int]]) -> list[str]:
    """Return what the gates of one method did in several seeds, where that says that they found nothing to agree on.

    Args:
        method: Its name.
        ended: `gates.csv` and the kept epoch (from 0) by seed.
    """
    rows = {seed: _rows_of(gates, epoch) for seed, (gates, epoch) in ended.items()}
    rows = {seed: table for seed, table in rows.items() if len(table)}
    if not rows:
        return []
    if all(_size(table) < _NEAR for table in rows.values()):
        return [f"{method}: beta stayed near 0 ({max(map(_size, rows.values())):.2f} in size at most) in every seed"]
    lines = []
    for block in sorted({int(block) for table in rows.values() for block in table["block"]}):
        means = {seed: float(table["mean"][table["block"] == block].iloc[0]) for seed, table in rows.items()}
        if min(means.values()) <= -_NEAR / 2 and max(means.values()) >= _NEAR / 2:
            shown = ", ".join(f"{mean:+.2f} (seed {seed})" for seed, mean in means.items())
            lines.append(f"{method}: mean beta of block {block} differs in sign between seeds: {shown}")
    return lines


def _rows_of(gates: pd.DataFrame | None, epoch: int) -> pd.DataFrame:
    if gates is None or not len(gates):
        return pd.DataFrame()
    return gates[gates["epoch"] == epoch].sort_values("block")


def _size(rows: pd.DataFrame) -> float:
    return float(rows[["min", "max"]].abs().max(axis=None))
