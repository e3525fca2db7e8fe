"""Warm-up and cosine against golden numbers."""

import pytest

from nnunet_gdla.mil.schedule import warmup_cosine, warmup_steps
from tests.srp_golden import SrpFile, srp_params

PEAK = 2e-4


@pytest.mark.parametrize("golden", srp_params("metrics_schedule"))
def test_learning_rate_equals_golden(golden: SrpFile) -> None:
    total, warmup = golden.arrays["lr_total_warm"].tolist()
    rates = [PEAK * warmup_cosine(step, total, warmup) for step in range(total + 2)]
    assert rates == pytest.approx(golden.arrays["lr"].tolist(), rel=5e-6, abs=1e-18)


def test_without_warmup_it_starts_at_the_peak() -> None:
    assert warmup_cosine(0, 10, 0) == 1.0
    assert warmup_cosine(10, 10, 10) == 0.0  # a run that only warms up


@pytest.mark.parametrize(("total", "steps"), [(1, 1), (19, 1), (60, 3), (1000, 50)])
def test_one_step_in_twenty_warms_up(total: int, steps: int) -> None:
    assert warmup_steps(total) == steps


def test_negative_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="step -1, total 10 and warmup 0"):
        warmup_cosine(-1, 10, 0)
