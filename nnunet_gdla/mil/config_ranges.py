"""Which values every numeric setting may have."""

import math
from dataclasses import fields
from typing import Final, NamedTuple

from nnunet_gdla.mil.config_schema import FEWEST_DRAWS, Config, SplitConfig

__all__ = ["LARGEST_SEED", "RANGES", "Range", "out_of_range", "unused_of_split"]

LARGEST_SEED: Final = 2**32 - 1  # of NumPy


class Range(NamedTuple):
    """Smallest and largest value; an open end is not reached."""

    low: float | int
    high: float | int = math.inf
    open_low: bool = False
    open_high: bool = False

    def holds(self, value: float | int) -> bool:
        """Whether a value lies inside; NaN and infinity do not."""
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return above and below and math.isfinite(value)

    def words(self) -> str:
        """Return what the value must do."""
        if self == Range(-math.inf):
            return "be a number"
        low = f"greater than {self.low:g}" if self.open_low else f"{self.low:g} or more"
        if self.high == math.inf:
            return f"be {low}"
        if self.open_low or self.open_high:
            return f"be {low} and less than {self.high:g}"
        return f"lie between {self.low:g} and {self.high:.0f}"


POSITIVE: Final = Range(0, open_low=True)
ONE_OR_MORE: Final = Range(1)
ZERO_OR_MORE: Final = Range(0)
SEED: Final = Range(0, LARGEST_SEED)

RANGES: Final = {
    "data.stride": POSITIVE,
    "data.max_patches": ONE_OR_MORE,
    "split.seed": SEED,
    "split.folds": Range(2),
    "split.fold": ZERO_OR_MORE,
    "split.val_share": Range(0, 1, open_low=True, open_high=True),
    "split.test_share": Range(0, 1, open_high=True),
    "model.delta": POSITIVE,
    "model.gate_hidden": ONE_OR_MORE,
    "model.width": ONE_OR_MORE,
    "model.depth": ONE_OR_MORE,
    "model.num_heads": ONE_OR_MORE,
    "model.num_landmarks": ONE_OR_MORE,
    "model.window": Range(3),
    "model.drop_path_rate": Range(0, 1, open_high=True),
    "train.seed": SEED,
    "train.epochs": POSITIVE,
    "train.accumulate": POSITIVE,
    "train.lr": POSITIVE,
    "train.gate_lr_scale": POSITIVE,
    "train.weight_decay": ZERO_OR_MORE,
    "train.warmup_fraction": Range(0, 1),
    "train.clip_norm": POSITIVE,
    "train.class_weights": Range(-math.inf),
    "train.num_bins": POSITIVE,
    "train.patience": POSITIVE,
    "train.devices": POSITIVE,
    "train.workers": ZERO_OR_MORE,
    "train.bootstrap": Range(FEWEST_DRAWS),
    "found.in_dim": ONE_OR_MORE,
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
                finite = "" if math.isfinite(number) else ", a finite number"
                return f"{key} is {number}; it must {allowed.words()}{finite}"
    for name, value in config.model.extra.items():
        if isinstance(value, float) and not math.isfinite(value):
            return f"model.extra.{name} is {value}; it must be a finite number"
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
