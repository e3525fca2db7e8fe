"""Methods against seeds on identical splits: runs what is missing, reads back what is there, compares."""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import yaml

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.bundle import load_info
from nnunet_gdla.mil.bundle_info import BundleInfo, table_metrics
from nnunet_gdla.mil.config import config_from_dict, load_config
from nnunet_gdla.mil.config_schema import Config, ModelConfig, forget_unknown
from nnunet_gdla.mil.files import read_csv, write_csv
from nnunet_gdla.mil.fit import fit, is_finished
from nnunet_gdla.mil.models import MODELS as KNOWN_MODELS
from nnunet_gdla.mil.models import model_settings
from nnunet_gdla.mil.predictions import to_patients
from nnunet_gdla.mil.prepare import resolved, silent
from nnunet_gdla.mil.statistics import corrected_resampled_t, paired_bootstrap
from nnunet_gdla.words import counted

__all__ = ["Method", "Sweep", "compare", "comparison_lines", "read_method", "run_sweep"]

METHODS: Final[dict[str, dict[str, Any]]] = {
    "none": {"correction": "none", "placement": None},
    "srp": {"correction": "srp"},
    "xsa": {"correction": "xsa", "placement": None},
    "diff": {"attention": "diff", "correction": "none", "placement": None},
}
MODELS: Final = ("abmil", "dsmil", "transmil", "vit4")
DEFAULT_METRIC: Final = {"classification": "auc", "survival": "c_index"}


@dataclass(frozen=True)
class Method:
    """A name and what it changes: keys with dots, such as model.delta."""

    name: str
    changes: tuple[tuple[str, Any], ...]

    def config(self, base: Config, seed: int, *, fixed_split: bool) -> Config:
        """Return the settings of one run."""
        tree = copy.deepcopy(dataclasses.asdict(base))
        tree["found"] = None
        tree["train"]["seed"] = seed
        if not fixed_split:
            tree["split"]["seed"] = seed
        for key, value in self.changes:
            if key == "model.name" and value != base.model.name and value in KNOWN_MODELS:
                forget_unknown(tree["model"], model_settings(value))  # they were for the model of the base
        for key, value in self.changes:
            if key == "model":
                tree["model"] = value
                continue
            *sections, last = key.split(".")
            node = tree
            for section in sections:
                node = node.setdefault(section, {})
            node[last] = value
        return config_from_dict({name: part for name, part in tree.items() if part is not None}, where=self.name)


@dataclass(frozen=True)
class Run:
    """What one finished run says about the test slides."""

    method: str
    seed: int
    folder: Path
    info: BundleInfo
    predictions: pd.DataFrame
    patients: tuple[int, int]

    def metrics(self, level: str) -> dict[str, float]:
        """Return the metrics at slide or patient level."""
        rows = to_patients(self.predictions, self.info.task) if level == "patient" else self.predictions
        return table_metrics(rows, self.info)


@dataclass(frozen=True)
class Sweep:
    """All runs; methods and seeds in the order in which they were asked for."""

    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: dict[tuple[str, int], Run]

    @property
    def task(self) -> str:
        """What is learned."""
        return next(iter(self.runs.values())).info.task

    def table(self) -> pd.DataFrame:
        """Return one row per run with its metrics, `slide_<metric>` and `patient_<metric>`."""
        rows = []
        for (method, seed), run in self.runs.items():
            values = {f"{level}_{k}": v for level in ("slide", "patient") for k, v in run.metrics(level).items()}
            rows.append({"method": method, "seed": seed, "run": str(run.folder)} | values)
        return pd.DataFrame(rows)


def read_method(text: str) -> Method:
    """Read a method of the command line: a known name, fixed:<beta>, or NAME:KEY=VALUE[,KEY=VALUE].

    Raises:
        UserError: If it is neither.
    """
    if text in METHODS:
        return Method(text, tuple((f"model.{key}", value) for key, value in METHODS[text].items()))
    if text in MODELS:
        return Method(text, (("model", dataclasses.asdict(ModelConfig(name=text))),))
    name, colon, rest = text.partition(":")
    if name == "fixed" and colon and "=" not in rest:
        return Method(text.replace(":", "_"), (("model.correction", text),))
    pairs = [pair.partition("=") for pair in rest.split(",")] if colon else []
    if not pairs or not all(key and equals for key, equals, _ in pairs) or not _is_file_name(name):
        known = ", ".join([*METHODS, *MODELS, "fixed:<beta>"])
        raise UserError(f"no method {text!r}; choose among {known}, or write NAME:KEY=VALUE[,KEY=VALUE]")
    return Method(name, tuple((key, yaml.safe_load(value)) for key, _, value in pairs))


def run_sweep(
    base: Config,
    methods: Sequence[Method],
    seeds: Sequence[int],
    out: Path,
    *,
    fixed_split: bool = False,
    say: Callable[[str], None] = silent,
    progress: bool = False,
) -> Sweep:
    """Run or read back every method with every seed; write `sweep.csv`.

    Args:
        base: Settings that all share.
        methods: What is compared.
        seeds: Of the training and, unless `fixed_split`, of the split.
        out: Folder of the runs.
        fixed_split: Keep the split of the settings for all seeds.
        say: Where progress goes.
        progress: Show bars.

    Raises:
        UserError: If names or seeds repeat, a folder holds a run with other settings, or splits differ.
    """
    names = [method.name for method in methods]
    if len(set(names)) < len(names) or len(set(seeds)) < len(seeds):
        raise UserError(f"methods {' '.join(names)}, seeds {' '.join(map(str, seeds))}: one of them is named twice")
    configs = {(m.name, s): m.config(base, s, fixed_split=fixed_split) for s in seeds for m in methods}
    runs = {}
    for number, ((name, seed), config) in enumerate(configs.items(), 1):
        folder = out / name / f"seed_{seed}"
        say(f"{name}, seed {seed} ({number} of {len(configs)})" + (": read back" if is_finished(folder) else ""))
        # the cohort is the same every time: its report comes with the first run alone
        _run_or_resume(config, folder, say if number == 1 else silent, progress=progress, check_files=number == 1)
        runs[name, seed] = _read_run(name, seed, folder)
        say(f"  {_result(runs[name, seed])}")
    for seed in seeds:
        _refuse_other_splits([runs[name, seed] for name in names])
    sweep = Sweep(tuple(names), tuple(seeds), runs)
    write_csv(out / "sweep.csv", sweep.table())
    return sweep


def compare(
    sweep: Sweep, metric: str | None = None, *, bootstrap: int = 1000, fixed_split: bool = False
) -> pd.DataFrame:
    """Compare every method with the first.

    Args:
        sweep: The runs.
        metric: Default: auc, or c_index.
        bootstrap: Draws of patients.
        fixed_split: All runs share a split: the corrected t, which is about splits, is not given.

    Returns:
        One row per method: mean, sd (over seeds), and `difference` to the first method with its bootstrap interval
        `low`, `high` and `p`, and `t`, `p_t` of the corrected resampled t test. Survival: of patients; else of slides.

    Raises:
        UserError: If there is no such metric.
    """
    metric = metric or DEFAULT_METRIC[sweep.task]
    level = "patient" if sweep.task == "survival" else "slide"
    values = {key: run.metrics(level) for key, run in sweep.runs.items()}
    known = list(next(iter(values.values())))
    if metric not in known:
        raise UserError(f"no metric {metric!r}; choose one of {', '.join(known)}")
    first, rows = sweep.methods[0], []
    for method in sweep.methods:
        numbers = np.array([values[method, seed][metric] for seed in sweep.seeds])
        row: dict[str, Any] = {"method": method, "metric": metric, "runs": len(numbers), "mean": numbers.mean()}
        row["sd"] = numbers.std(ddof=1) if len(numbers) > 1 else np.nan
        if method != first:
            row |= _difference(sweep, method, metric, level, bootstrap)
            reference = np.array([values[first, seed][metric] for seed in sweep.seeds])
            if not fixed_split:
                sizes = np.mean([sweep.runs[method, seed].patients for seed in sweep.seeds], axis=0)
                test = corrected_resampled_t(numbers - reference, float(sizes[0]), float(sizes[1]))
                row |= {"t": test.t, "p_t": test.p}
        rows.append(row)
    columns = ["method", "metric", "runs", "mean", "sd", "difference", "low", "high", "p", "t", "p_t"]
    return pd.DataFrame(rows, columns=columns)


def comparison_lines(table: pd.DataFrame) -> list[str]:
    """Return the comparison for the terminal; undefined is n/a."""
    first, metric, runs = table["method"].iloc[0], table["metric"].iloc[0], table["runs"].iloc[0]
    heads = [
        f"{metric} ({counted(int(runs), 'run')})",
        "mean",
        "sd",
        f"minus {first} [95 % interval]",
        "p",
        "t",
        "p of t",
    ]
    rows = [heads]
    for row in table.itertuples():
        interval = f"{_text(row.difference, '+')} [{_text(row.low, '+')}, {_text(row.high, '+')}]"
        tail = [interval, _text(row.p), _text(row.t), _text(row.p_t)] if row.method != first else [""] * 4
        rows.append([str(row.method), _text(row.mean), _text(row.sd), *tail])
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _difference(sweep: Sweep, method: str, metric: str, level: str, bootstrap: int) -> dict[str, float]:
    def tables(name: str) -> list[pd.DataFrame]:
        found = [sweep.runs[name, seed].predictions for seed in sweep.seeds]
        return [to_patients(rows, "survival") for rows in found] if level == "patient" else found

    functions = [partial(table_metrics, info=sweep.runs[method, seed].info) for seed in sweep.seeds]
    found = paired_bootstrap(tables(method), tables(sweep.methods[0]), functions, n=bootstrap)[metric]
    return {"difference": found.difference, "low": found.low, "high": found.high, "p": found.p}


def _run_or_resume(
    config: Config, folder: Path, say: Callable[[str], None], *, progress: bool, check_files: bool
) -> None:
    begun = (folder / "config.yaml").is_file()
    if begun:
        _refuse_other_settings(config, folder)
    if not is_finished(folder):
        fit(config, run=folder, resume=begun, say=say, progress=progress, check_files=check_files)


def _refuse_other_settings(config: Config, folder: Path) -> None:
    """Devices, workers and the like may change between starts; what decides the result may not."""
    free = ("accelerator", "devices", "workers", "tensorboard")
    wanted, there = (dataclasses.asdict(resolved(each)) for each in (config, load_config(folder / "config.yaml")))
    for section in ("data", "split", "model", "train"):
        for key, value in wanted[section].items():
            if value != there[section][key] and key not in free:
                raise UserError(
                    f"{folder} holds a run with {section}.{key} {there[section][key]!r}, wanted is {value!r}; "
                    "choose another --out, or remove it"
                )


def _read_run(method: str, seed: int, folder: Path) -> Run:
    path = folder / "predictions_test.csv"
    if not path.is_file():
        raise UserError(f"{folder} has no test predictions: the split has no test slides")
    split = read_csv(folder / "split.csv")
    patients = split.groupby("part")["patient_id"].nunique()
    sizes = (int(patients.get("train", 0)), int(patients.get("test", 0)))
    return Run(method, seed, folder, load_info(folder), read_csv(path), sizes)


def _result(run: Run) -> str:
    metric = DEFAULT_METRIC[run.info.task]
    level = "patient" if run.info.task == "survival" else "slide"
    return f"test {metric} {_text(run.metrics(level)[metric])} with epoch {run.info.training.get('epoch')}"


def _refuse_other_splits(runs: Sequence[Run]) -> None:
    first = runs[0]
    for run in runs[1:]:
        if not read_csv(run.folder / "split.csv").equals(read_csv(first.folder / "split.csv")):
            raise UserError(f"{first.folder} and {run.folder} have different splits (split.csv): nothing to compare")


def _is_file_name(name: str) -> bool:
    return bool(name) and name.replace("-", "").replace("_", "").replace(".", "").isalnum()


def _text(value: float, sign: str = "") -> str:
    return "n/a" if pd.isna(value) else f"{value:{sign}.3f}"
