"""Writes the files of a run with made-up numbers: what the figures read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd


def classification_run(
    folder: Path, *, classes: int = 2, slides: int = 40, epochs: int = 6, one_class: bool = False
) -> Path:
    rng = np.random.default_rng(0)
    _training(folder, rng, epochs)
    names = [f"class {place}" for place in range(classes)]
    for part in ("val", "test"):
        labels = np.zeros(slides, int) if one_class else rng.permutation(np.arange(slides) % classes)
        scores = rng.normal(size=(slides, classes)) + 1.5 * np.eye(classes)[labels]
        probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        table = pd.DataFrame({"slide_id": [f"s{i}" for i in range(slides)]})
        table["patient_id"] = [f"p{i // 2}" for i in range(slides)]
        table["label"] = [names[place] for place in labels]
        for place, name in enumerate(names):
            table[f"prob_{name}"] = probabilities[:, place]
        table.to_csv(folder / f"predictions_{part}.csv", index=False)
        numbers = {name: {"value": 0.8, "low": 0.7, "high": 0.9} for name in ("auc", "auprc", "ece")}
        (folder / f"metrics_{part}.json").write_text(json.dumps({"slide": numbers, "patient": numbers}))
    _bundle(folder, {"task": "classification", "classes": names, "threshold": 0.4 if classes == 2 else None})
    return folder


def survival_run(folder: Path, *, slides: int = 60, events: float = 0.6, cut: float | None = -2.0) -> Path:
    rng = np.random.default_rng(1)
    _training(folder, rng, 5)
    for part in ("val", "test"):
        risk = rng.normal(-2, 0.6, slides)
        table = pd.DataFrame(
            {"slide_id": [f"s{i}" for i in range(slides)], "patient_id": [f"p{i}" for i in range(slides)]}
        )
        table["time"] = rng.exponential(900 * np.exp(-risk - 2)) + 1
        table["event"] = (rng.random(slides) < events).astype(int)
        table["time_bin"] = 0
        table["risk"] = risk
        table[[f"hazard_{k}" for k in range(4)]] = rng.uniform(0.1, 0.4, (slides, 4))
        table.to_csv(folder / f"predictions_{part}.csv", index=False)
        numbers = {"c_index": {"value": 0.66, "low": None, "high": None}}
        (folder / f"metrics_{part}.json").write_text(json.dumps({"slide": numbers, "patient": numbers}))
    _bundle(folder, {"task": "survival", "classes": [], "median_risk": cut})
    return folder


def _training(folder: Path, rng: np.random.Generator, epochs: int) -> None:
    (folder / "logs").mkdir(parents=True)
    history = pd.DataFrame({"epoch": range(epochs), "step": range(10, 10 + epochs)})
    history["train_loss"] = 0.7 - 0.05 * history["epoch"]
    history["val_loss"] = 0.7 - 0.02 * history["epoch"]
    history["val_auc"] = rng.uniform(0.6, 0.9, epochs)
    history["val_macro_f1"] = rng.uniform(0.5, 0.8, epochs)
    history["lr"] = 2e-4 * np.cos(np.linspace(0, 1.5, epochs))
    history.to_csv(folder / "logs" / "metrics.csv", index=False)
    rows = []
    for epoch in range(epochs):
        for block in range(3):
            shares = rng.dirichlet((1, 6, 2, 1))
            mean = 0.1 * epoch * (1 - block)
            numbers = dict(zip(("anti", "identity", "projection", "reflection"), shares, strict=True))
            rest = {"min": mean - 1, "max": mean + 1, "cosine": 0.5, "corr_h": 0.1}
            rows.append({"epoch": epoch, "block": block, "mean": mean, "std": 0.2} | numbers | rest)
    pd.DataFrame(rows).to_csv(folder / "gates.csv", index=False)


def _bundle(folder: Path, info: dict[str, Any]) -> None:
    (folder / "bundle").mkdir()
    (folder / "bundle" / "bundle.json").write_text(json.dumps(info | {"training": {"epoch": 4}}))
