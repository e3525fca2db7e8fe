"""What numbers from few cases cannot say, in words for tables and files."""

from collections.abc import Callable, Iterable

__all__ = ["FEW_CASES", "interval_remark", "pairs_remark", "table_notes"]

# Of normal values the percentile bootstrap's 95 % interval holds the mean in 51 % of samples of two, 84 % of five, 90 %
# of ten and 93 % of twenty (tests/evaluation/test_small_samples.py).
FEW_CASES = 10
_FEWEST_PAIRS = 6  # 2 / 2**5, the smallest p of five pairs, is above 0.05

_NOTHING = "undefined in every case, so there is no mean and no interval"
_ONE = "no interval: it needs two cases, and only one is defined"
_FEW = f"95 % intervals of fewer than {FEW_CASES} cases are too narrow: that of two holds the mean half of the time"
_NO_PAIR = "no case in which both are defined, so nothing is compared"
_FEW_PAIRS = f"with fewer than {_FEWEST_PAIRS} pairs no difference can reach p < 0.05"
_ONE_PAIR = f"no interval: it needs two pairs, and there is one; {_FEW_PAIRS}"


def interval_remark(n: int) -> str:
    """Say why the interval of a mean over n defined cases is missing, or not to be trusted; nothing where it is."""
    return _NOTHING if not n else _ONE if n == 1 else _FEW if n < FEW_CASES else ""


def pairs_remark(n: int) -> str:
    """Say why a comparison of n pairs has no interval, or a test that cannot succeed; nothing where all is well."""
    return _NO_PAIR if not n else _ONE_PAIR if n == 1 else _FEW_PAIRS if n < _FEWEST_PAIRS else ""


def table_notes(counts: Iterable[int], remark: Callable[[int], str]) -> str:
    """Return what stands below a table with its blank line: the remark on each count of cases once, but for zero."""
    lines = dict.fromkeys(f"\n{remark(count)}" for count in counts if count and remark(count))
    return "\n" + "".join(lines) if lines else ""
