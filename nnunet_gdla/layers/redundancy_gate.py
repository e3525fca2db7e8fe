"""The signed gate of Gated SRP: how much of a patch's output along its neighbourhood is removed, kept or reflected.

Shape legend (this file): B batch, H heads, N patches, D head width, T token features.
"""

import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from nnunet_gdla.layers._gate_parts import head_part, token_part
from nnunet_gdla.layers.untouched import is_untouched
from nnunet_gdla.ops._checks import without_autocast
from nnunet_gdla.ops._dispatch import are_exact

__all__ = ["Bound", "Factorisation", "GateInit", "Parameterisation", "RedundancyGate", "TokenFeatures"]

TokenFeatures = Literal["legacy", "rawlog", "normlog", "none"]
Bound = Literal["tanh", "scaled_sigmoid", "sigmoid01", "softsign", "hardtanh", "atan"]
Parameterisation = Literal["fixed", "direct"]
Factorisation = Literal["full", "token_only", "head_only", "no_bias"]
GateInit = Literal["zero", "normal", "xavier", "kaiming", "orthogonal", "constant"]

HEAD_FEATURES = 3

BOUNDS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "scaled_sigmoid": lambda x: 2 * torch.sigmoid(x) - 1,
    "sigmoid01": torch.sigmoid,
    "softsign": F.softsign,
    "hardtanh": F.hardtanh,
    "atan": lambda x: 2 / math.pi * torch.atan(x),
}
INVERSE_BOUNDS: dict[str, Callable[[float], float]] = {
    "tanh": math.atanh,
    "scaled_sigmoid": lambda g: math.log((1 + g) / (1 - g)),
    "sigmoid01": lambda g: math.log(g / (1 - g)),
    "softsign": lambda g: g / (1 - abs(g)),
    "hardtanh": lambda g: g,
    "atan": lambda g: math.tan(math.pi * g / 2),
}


class RedundancyGate(nn.Module):
    r"""Give every head of every patch a coefficient $\beta$ from the local geometry and the head's own output.

    $$\mathrm{raw}_{ih} = u_i + \langle w_h, e_{ih}\rangle + b_h + b'_h,\quad
      u_i = W_2\,\mathrm{GELU}(W_1 t_i + c_1) + c_2,\quad \beta_{ih} = \delta\, g(\mathrm{raw}_{ih} / \tau),$$

    with $t_i$ = [h, n/K, log(1+n)] of homogeneity and neighbour count, and $e_{ih}$ = [c, |c|, log(1+|y|)] where
    $c = y^\top \hat r / |y|$.

    Args:
        num_heads: Heads H.
        num_slots: Slots K of the graph (8 for a 3x3 window).
        token_features: "legacy" as above; "rawlog" [h, log(1+n)]; "normlog" [h, log(1+n)/log(1+K)]; "none" [h].
        mean_norm: One more token feature at the end, the mean over heads of log(1+|y|).
        hidden: Width of the token part.
        delta: Range of beta; not used by "direct".
        bound: The map g. "sigmoid01" runs from 0 to delta and starts, with zero outputs, at delta / 2.
        temperature: tau.
        parameterisation: "fixed" as above; "direct" is $2\,g(\mathrm{raw} / 2\tau)$.
        factorisation: "full"; "token_only" u + b'; "head_only" <w, e> + b + b'; "no_bias" u + <w, e>, no bias anywhere.
        init: Start of W2 and w, biases zero: "zero", "normal" N(0, s^2), "xavier", "kaiming" (a = sqrt 5) or
            "orthogonal", the last three times s; "constant" starts every beta at `init_beta` by the layer bias.
        init_scale: s.
        init_beta: For init="constant".
        detach: The inputs of the gate send no gradient back (the paper); False sends it to `y`.

    Raises:
        ValueError: If a size or range is not positive, a choice unknown, or `init_beta` out of reach.

    Parameters: `token_in` Linear(T, hidden) at the framework's start, `token_out` Linear(hidden, 1), `head_weight`
        (H, 3), `head_bias` (H), `layer_bias` (H); only those that the factorisation uses. The two biases are one degree
        of freedom, kept apart as released.
    Numerics: runs in float32 (float64 for float64 input), also under autocast. Building one leaves the CPU's random
        state as it was, so that all other weights of a model are those of the same model without gates.
    Differs from the released code: no unused head bias in "token_only"; "constant" hits `init_beta` at any temperature.
    Reference: spec of Gated SRP; `gate_naive` in tests/reference.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        num_slots: int = 8,
        token_features: TokenFeatures = "legacy",
        mean_norm: bool = False,
        hidden: int = 64,
        delta: float | int = 1.0,
        bound: Bound = "tanh",
        temperature: float | int = 1.0,
        parameterisation: Parameterisation = "fixed",
        factorisation: Factorisation = "full",
        init: GateInit = "zero",
        init_scale: float | int = 1.0,
        init_beta: float | int = 0.0,
        detach: bool = True,
    ) -> None:
        super().__init__()
        _check_choice("token_features", token_features, get_args(TokenFeatures))
        _check_choice("bound", bound, get_args(Bound))
        _check_choice("parameterisation", parameterisation, get_args(Parameterisation))
        _check_choice("factorisation", factorisation, get_args(Factorisation))
        _check_choice("init", init, get_args(GateInit))
        _check_positive(num_heads=num_heads, num_slots=num_slots, hidden=hidden, delta=delta, temperature=temperature)
        self.num_heads, self.num_slots, self.detach = num_heads, num_slots, detach
        self.token_features, self.mean_norm = token_features, mean_norm
        self.bound, self.factorisation = bound, factorisation
        self.reach, self.temperature = (delta, temperature) if parameterisation == "fixed" else (2.0, 2 * temperature)
        width = {"legacy": 3, "rawlog": 2, "normlog": 2, "none": 1}[token_features] + mean_norm
        with torch.random.fork_rng(devices=[]):
            self._build(width, hidden)
            self._start(init, init_scale, init_beta)

    def _build(self, width: int, hidden: int) -> None:
        biased = self.factorisation != "no_bias"
        self.token_in = self.token_out = None
        if self.factorisation != "head_only":
            self.token_in = nn.Linear(width, hidden, bias=biased)
            self.token_out = nn.Linear(hidden, 1, bias=biased)

        def per_head(used: bool, *more: int) -> nn.Parameter | None:
            return nn.Parameter(torch.zeros(self.num_heads, *more)) if used else None

        self.head_weight = per_head(self.factorisation != "token_only", HEAD_FEATURES)
        self.head_bias = per_head(self.factorisation in ("full", "head_only"))
        self.layer_bias = per_head(biased)

    def _start(self, init: GateInit, scale: float | int, beta: float | int) -> None:
        outputs = [self.token_out.weight] if self.token_out is not None else []
        outputs += [self.head_weight] if self.head_weight is not None else []
        with torch.no_grad():
            for weight in outputs:
                _start_weight(weight, init, scale)
            if self.token_out is not None and self.token_out.bias is not None:
                self.token_out.bias.zero_()
            if init == "constant":
                if self.layer_bias is None:
                    raise ValueError("init='constant' needs a bias, which factorisation='no_bias' has not")
                self.layer_bias.fill_(self._raw_of(beta))

    def _raw_of(self, beta: float | int) -> float:
        """Return the value before the bound that gives `beta`."""
        share = beta / self.reach
        lowest = 0.0 if self.bound == "sigmoid01" else -1.0
        if not lowest < share < 1:
            raise ValueError(
                f"init_beta {beta} must lie between {lowest * self.reach:g} and {self.reach:g}, the range of this gate"
            )
        return self.temperature * INVERSE_BOUNDS[self.bound](share)

    def no_weight_decay(self) -> set[str]:
        """Return the names of the parameters that must not be decayed: all biases."""
        return {name for name, _ in self.named_parameters() if name.endswith("bias")}

    def is_closed(self) -> bool:
        """Whether beta is zero whatever the input: a symmetric bound, and all outputs still at their zero start."""
        if type(self) is not RedundancyGate or not is_untouched(self.token_out):
            return False  # what somebody has put in place of a part may do anything
        token_out = () if self.token_out is None else (self.token_out.weight, self.token_out.bias)
        outputs = (*token_out, self.head_weight, self.head_bias, self.layer_bias)
        if not are_exact(*outputs):
            return False
        return self.bound != "sigmoid01" and not any(bool(part.any()) for part in outputs if part is not None)

    def forward(
        self,
        homogeneity: Float[Tensor, "B N"],
        count: Int[Tensor, "B N"] | Float[Tensor, "B N"],
        y: Float[Tensor, "B H N D"],
        r_hat: Float[Tensor, "B H N D"],
        *,
        measured: tuple[Float[Tensor, "B H N"], Float[Tensor, "B H N"]] | None = None,
    ) -> Float[Tensor, "B H N"]:
        """Return beta, float32 or wider.

        Args:
            homogeneity: Mean cosine of a patch's raw features with its neighbours'.
            count: Neighbours found.
            y: Output (or query, key, value) of each head.
            r_hat: Direction of the neighbours' mean value, zero where there is none; no gradient reaches it.
            measured: Products of `y` with `r_hat` and lengths of `y`, if they are known; a gate that is not detached
                computes them itself.

        Raises:
            ValueError: If the sizes do not fit together or to the number of heads.
        """
        self._check_sizes(homogeneity, count, y, r_hat)
        with without_autocast(y):
            acc = torch.promote_types(y.dtype, torch.float32)
            with torch.set_grad_enabled(torch.is_grad_enabled() and not self.detach):
                if measured is None or not self.detach:
                    measured = _measure(y.to(acc), r_hat.detach().to(acc))
                dot, norm = measured
                token_BNT = self._token_features(homogeneity.to(acc), count.to(acc), norm)
            raw = self._raw(token_BNT, dot, norm)
            beta = BOUNDS[self.bound](raw if self.temperature == 1 else raw / self.temperature)
            return beta if self.reach == 1 else self.reach * beta

    def _token_features(self, homogeneity: Tensor, count: Tensor, norm_BHN: Tensor) -> Tensor:
        columns = [homogeneity]
        if self.token_features == "legacy":
            columns += [count / self.num_slots, torch.log1p(count)]
        elif self.token_features == "rawlog":
            columns.append(torch.log1p(count))
        elif self.token_features == "normlog":
            columns.append(torch.log1p(count) / math.log1p(self.num_slots))
        if self.mean_norm:
            columns.append(torch.log1p(norm_BHN).mean(1))
        return torch.stack(columns, dim=-1)

    def _raw(self, token_BNT: Tensor, dot_BHN: Tensor, norm_BHN: Tensor) -> Tensor:
        acc = token_BNT.dtype
        parts = []
        if self.token_in is not None and self.token_out is not None:
            parts.append(token_part(self.token_in, self.token_out, token_BNT).transpose(1, 2))
        if self.head_weight is not None:
            parts.append(head_part(self.head_weight.to(acc), dot_BHN, norm_BHN))
        parts += [bias.to(acc)[:, None] for bias in (self.head_bias, self.layer_bias) if bias is not None]
        raw = parts[0]
        for part in parts[1:]:
            raw = raw + part
        return raw.expand(dot_BHN.shape)

    def _check_sizes(self, homogeneity: Tensor, count: Tensor, y: Tensor, r_hat: Tensor) -> None:
        tokens = (y.shape[0], y.shape[2]) if y.ndim == 4 else None
        if tokens is None or y.shape[1] != self.num_heads or r_hat.shape != y.shape:
            raise ValueError(
                f"y {tuple(y.shape)} and r_hat {tuple(r_hat.shape)} must both be (batch, {self.num_heads} heads, "
                "patches, width)"
            )
        if homogeneity.shape != tokens or count.shape != tokens:
            raise ValueError(
                f"homogeneity {tuple(homogeneity.shape)} and count {tuple(count.shape)} must be {tokens}, one value a "
                f"patch (y is {tuple(y.shape)})"
            )


def _measure(y: Tensor, r_hat: Tensor) -> tuple[Tensor, Tensor]:
    return (y * r_hat).sum(-1), torch.linalg.vector_norm(y, dim=-1)


def _start_weight(weight: Tensor, init: GateInit, scale: float | int) -> None:
    if init in ("zero", "constant"):
        weight.zero_()
    elif init == "normal":
        weight.normal_(std=scale)
    elif init == "xavier":
        nn.init.xavier_uniform_(weight).mul_(scale)
    elif init == "kaiming":
        nn.init.kaiming_uniform_(weight, a=math.sqrt(5)).mul_(scale)
    else:
        nn.init.orthogonal_(weight).mul_(scale)


def _check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"unknown {name} {value!r}; choose one of {', '.join(map(repr, known))}")


def _check_positive(**values: float | int) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name} must be positive, got {value}")
