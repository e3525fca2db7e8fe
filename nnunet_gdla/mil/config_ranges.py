"""Which values every numeric setting may have."""

import math
from dataclasses import fields
from typing import Final, NamedTuple

from nnunet_gdla.mil.config_schema import FEWEST_DRAWS, Config, SplitConfig

__all__ = ["LARGEST_SEED", "RANGES", "Range", "out_of_range", "unused_of_split"]

LARGEST_SEED: Final = 2**32 - 1  # of NumPy
LARGEST_EXTRA: Final = 10**6


class Range(NamedTuple):
    """Smallest and largest value; an open end is not reached. A `limit` is far beyond what makes sense."""

    low: float | int
    high: float | int = math.inf
    open_low: bool = False
    open_high: bool = False
    limit: float | int = math.inf

    def holds(self, value: float | int) -> bool:
        """Whether a value lies inside; NaN and infinity do not."""
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return above and below and value <= self.limit and _is_finite(value)

    def words(self) -> str:
        """Return what the value must do."""
        if self == Range(-math.inf):
            return "be a number"
        low = f"greater than {self.low:g}" if self.open_low else f"{self.low:g} or more"
        if self.high == math.inf:
            return f"be {low}" + (f" and {self.limit:.15g} at most" if self.limit < math.inf else "")
        if self.open_low or self.open_high:
            return f"be {low} and less than {self.high:g}"
        return f"lie between {self.low:g} and {self.high:.0f}"


def positive(limit: float | int) -> Range:
    """Return the range of more than 0."""
    return Range(0, open_low=True, limit=limit)


SEED: Final = Range(0, LARGEST_SEED)

RANGES: Final = {
    "data.stride": positive(1e9),
    "data.max_patches": Range(1, limit=10**9),
    "split.seed": SEED,
    "split.folds": Range(2, limit=10_000),
    "split.fold": Range(0, limit=10_000),
    "split.val_share": Range(0, 1, open_low=True, open_high=True),
    "split.test_share": Range(0, 1, open_high=True),
    "model.delta": positive(100),
    "model.gate_hidden": Range(1, limit=2**16),
    "model.width": Range(1, limit=2**14),
    "model.depth": Range(1, limit=1000),
    "model.num_heads": Range(1, limit=2**14),
    "model.num_landmarks": Range(1, limit=2**14),
    "model.window": Range(3, limit=255),
    "model.drop_path_rate": Range(0, 1, open_high=True),
    "train.seed": SEED,
    "train.epochs": positive(10**6),
    "train.accumulate": positive(10**6),
    "train.lr": positive(10),
    "train.gate_lr_scale": positive(1e6),
    "train.weight_decay": Range(0, limit=1000),
    "train.warmup_fraction": Range(0, 1),
    "train.clip_norm": positive(1e9),
    "train.class_weights": Range(-math.inf),
    "train.num_bins": positive(1000),
    "train.patience": positive(10**6),
    "train.devices": positive(1024),
    "train.workers": Range(0, limit=1024),
    "train.bootstrap": Range(FEWEST_DRAWS, limit=10**6),
    "found.in_dim": Range(1, limit=10**6),
    "found.bin_edges": Range(-math.inf),
}

# What each scheme looks at.
USED: Final = {
    "paper": ("rule", "seed"),
    "holdout": ("seed", "val_share", "test_share"),
    "kfold": ("seed", "folds", "fold", "val_share"),
    "site": ("seed", "folds", "fold", "val_share"),
    "centre": ("seed", "fold", "centre", "val_share"),
    "file": ("seed", "file", "val_share"),
}


def out_of_range(config: Config) -> str | None:
    """Return one sentence about the first number that cannot be; None where all can. Lists count entry by entry."""
    for key, allowed in RANGES.items():
        section, name = key.split(".")
        value = getattr(getattr(config, section), name, None)
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int | float) and not allowed.holds(number):
                finite = "" if _is_finite(number) else ", a finite number"
                return f"{key} is {number}; it must {allowed.words()}{finite}"
    for name, value in config.model.extra.items():
        if isinstance(value, float) and not math.isfinite(value):
            return f"model.extra.{name} is {value}; it must be a finite number"
        if isinstance(value, int | float) and abs(value) > LARGEST_EXTRA:
            return f"model.extra.{name} is {value}; it must be {LARGEST_EXTRA} at most in size"
    return None


def unused_of_split(split: SplitConfig, *, column: bool) -> str | None:
    """Return one sentence about what was set for the split, but is not used by its scheme; None where all is.

    Args:
        split: The settings.
        column: Whether the table has a column with a part for each slide.
    """
    default = SplitConfig()
    changed = [
        field.name for field in fields(SplitConfig) if getattr(split, field.name) != getattr(default, field.name)
    ]
    unused = [f"split.{name}" for name in changed if name != "scheme" and name not in USED[split.scheme]]
    if column and (split.scheme != "file" or split.file is not None):
        unused.append("the column split of the table")
    if not unused:
        return None
    scheme = "scheme file with split.file" if split.scheme == "file" else f"scheme {split.scheme}"
    return f"{scheme} does not use {', '.join(unused)}: choose another split.scheme if it should"


def _is_finite(value: float | int) -> bool:
    """Also of whole numbers that no float can hold."""
    return isinstance(value, int) or math.isfinite(value)
