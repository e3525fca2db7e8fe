"""The idea itself: does Gated SRP help where neighbouring patches repeat each other and a rare patch decides?

    python -m benchmarks.srp_study --calibrate                 # the base model alone, seeds 100-104
    python -m benchmarks.srp_study --results srp_study.jsonl   # the comparison, seeds 0-19, each once
    python -m benchmarks.srp_study --results srp_study.jsonl --figure docs/figures/srp_study.png

Fixed in this file before any comparison was run: the generator (`nnunet_gdla.mil.synthetic`), sizes, budget, gate and
levels. Of the methods only the base model (no correction) was looked at for that: learning rate and epochs
so that it learns at all, and one signal strength per level of redundancy, chosen so that its mean test AUC on seeds
100-104 lies between .75 and .85, so that there is room on both sides at every level.

A seed is a cohort of its own, a split of its own and weights of its own. All methods of a seed and level see the same
slides in the same order, keep the epoch with the lowest validation loss and are tested once. Besides them two readers
that know the class directions are scored, one on the features and one on the features minus the mean of the neighbours:
they tell how much there is to gain by taking the neighbours' part away. Finished runs are read back from the results
file; one with other settings is refused.
"""

import argparse
import json
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from scipy.stats import t as student
from torch import Tensor, nn
from torch.nn import functional as F

from nnunet_gdla.mil.gates import GateRecorder
from nnunet_gdla.mil.metrics import roc_auc
from nnunet_gdla.mil.models.slide_transformer import SlideTransformer
from nnunet_gdla.mil.optimiser import parameter_groups
from nnunet_gdla.mil.schedule import warmup_cosine
from nnunet_gdla.mil.synthetic import TissueModel, class_directions, make_slide
from nnunet_gdla.ops.neighbours import NeighbourGraph, grid_neighbours

# Level of redundancy -> length of the signal, by --calibrate.
STRENGTHS: Final = {0.0: 1.75, 0.25: 3.1, 0.5: 3.6, 0.75: 3.5, 0.9: 3.5}
METHODS: Final[dict[str, dict[str, Any]]] = {
    "base": {"correction": "none"},
    # The published setting for rare tumour in lymph nodes (CAMELYON16): range 1, hidden width 16.
    "srp": {"correction": "srp", "delta": 1.0, "gate_hidden": 16},
    "xsa": {"correction": "xsa"},
    "diff": {"correction": "none", "attention": "diff"},
}
SEEDS: Final = tuple(range(20))
CALIBRATION_SEEDS: Final = tuple(range(100, 105))
SIZES: Final = {"train": 400, "val": 60, "test": 200}
SETTINGS: Final[dict[str, Any]] = {
    "tissue": {"patches": 60, "dim": 16, "rare": 6, "reach": 1.25, "holes": 0.12},
    "width": 32,
    "depth": 3,
    "num_heads": 4,
    "num_landmarks": 16,
    "epochs": 5,
    "batch": 16,
    "lr": 5e-3,
    "weight_decay": 0.05,
    "sizes": SIZES,
}


class Part(NamedTuple):
    """Slides of one part: features (S, N, D), their graphs, labels (S)."""

    features: Tensor
    graph: NeighbourGraph
    labels: Tensor

    def rows(self, chosen: Tensor) -> tuple[Tensor, NeighbourGraph, Tensor]:
        """Return some of the slides."""
        return self.features[chosen], NeighbourGraph(*(each[chosen] for each in self.graph)), self.labels[chosen]


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calibrate", action="store_true", help="the base model alone, seeds 100-104")
    parser.add_argument("--strengths", type=float, nargs="+", help="with --calibrate: try these at every level")
    parser.add_argument("--results", type=Path, default=Path("srp_study.jsonl"))
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--processes", type=int, default=2, help="each with one thread (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=45.0, help="start nothing after that (default: %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.calibrate:
        calibrate(arguments.strengths)
        return
    run_missing(arguments.results, arguments.processes, arguments.minutes)
    results = finished(arguments.results)
    print_tables(results)
    if arguments.figure is not None:
        draw(results, arguments.figure)


def calibrate(strengths: list[float] | None) -> None:
    """Print the base model's mean test AUC at every level, for the chosen strengths or for others."""
    for level, chosen in STRENGTHS.items():
        for strength in strengths or [chosen]:
            runs = [train("base", make_parts(level, strength, seed)[0], seed) for seed in CALIBRATION_SEEDS]
            aucs = ", ".join(f"{run['auc']:.3f}" for run in runs)
            mean = np.mean([run["auc"] for run in runs])
            fit = np.mean([run["train_auc"] for run in runs])
            seconds = np.mean([run["seconds"] for run in runs])
            print(f"{level:4.2f} strength {strength:5.2f}: AUC {mean:.3f} ({aucs}), train {fit:.3f}, {seconds:.1f} s")


def run_missing(path: Path, processes: int, minutes: float) -> None:
    """Run what the results file lacks, seed by seed; write every result as soon as it is there."""
    done = {(run["seed"], run["level"], run["method"]) for run in finished(path)}
    wanted = [(seed, level) for seed in SEEDS for level in STRENGTHS]
    missing = [[name for name in (*METHODS, "readers") if (*pair, name) not in done] for pair in wanted]
    end = time.time() + 60 * minutes
    tasks = [(*pair, names, end) for pair, names in zip(wanted, missing, strict=True) if names]
    with ProcessPoolExecutor(processes, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for results in pool.map(run_methods, tasks):
            with path.open("a") as file:
                file.writelines(json.dumps(result) + "\n" for result in results)
            print(*(f"{r['seed']} {r['level']} {r['method']} {r['auc']:.3f}" for r in results), sep="  ", flush=True)


def run_methods(task: tuple[int, float, list[str], float]) -> list[dict[str, Any]]:
    """Run some methods with one seed and level; nothing once the time is over."""
    seed, level, methods, end = task
    if time.time() > end:
        return []
    parts, directions = make_parts(level, STRENGTHS[level], seed)
    key = {"level": level, "strength": STRENGTHS[level], "seed": seed, "settings": SETTINGS | {"methods": METHODS}}
    return [
        key
        | {"method": name}
        | (read_knowing(parts["test"], directions) if name == "readers" else train(name, parts, seed))
        for name in methods
    ]


def finished(path: Path) -> list[dict[str, Any]]:
    """Return the runs of the results file.

    Raises:
        SystemExit: If one of them was made with other settings.
    """
    runs = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    ours = json.loads(json.dumps(SETTINGS | {"methods": METHODS}))
    if any(run["settings"] != ours or run["strength"] != STRENGTHS.get(run["level"]) for run in runs):
        raise SystemExit(f"{path} holds runs with other settings: move it away")
    return runs


def make_parts(level: float, strength: float, seed: int) -> tuple[dict[str, Part], np.ndarray[Any, Any]]:
    """Make the cohort of a seed: training, validation and test slides, half of each class, and the class directions."""
    rng = np.random.default_rng([seed, round(100 * level)])
    tissue = TissueModel(**SETTINGS["tissue"], redundancy=level, strength=strength)
    directions = class_directions(rng, 2, tissue.dim)
    parts = {}
    for name, count in SIZES.items():
        labels = rng.permutation(np.arange(count) % 2)
        slides = [make_slide(rng, directions[label], tissue) for label in labels]
        features = torch.from_numpy(np.stack([slide.features for slide in slides]))
        coords = torch.from_numpy(np.stack([slide.coords for slide in slides]))
        parts[name] = Part(features, grid_neighbours(coords, float(tissue.stride)), torch.from_numpy(labels))
    return parts, directions


def train(method: str, parts: dict[str, Part], seed: int) -> dict[str, Any]:
    """Train one model and test the epoch with the lowest validation loss."""
    start = time.process_time()
    torch.manual_seed(seed)
    names = ("width", "depth", "num_heads", "num_landmarks")
    model = SlideTransformer(SETTINGS["tissue"]["dim"], 2, **{name: SETTINGS[name] for name in names} | METHODS[method])
    optimiser = torch.optim.AdamW(
        parameter_groups(model, SETTINGS["weight_decay"], decay_norms_and_biases=False), lr=SETTINGS["lr"]
    )
    steps = -(-SIZES["train"] // SETTINGS["batch"])
    total = steps * SETTINGS["epochs"]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda t: warmup_cosine(t, total, max(1, total // 20)))
    order = torch.Generator().manual_seed(seed)
    best: dict[str, Any] = {"val_loss": float("inf")}
    for epoch in range(SETTINGS["epochs"]):
        model.train()
        for chosen in torch.randperm(SIZES["train"], generator=order).split(SETTINGS["batch"]):
            features, graph, labels = parts["train"].rows(chosen)
            loss = F.cross_entropy(model(features, graph=graph), labels)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
        val_loss, val_auc, _ = test(model, parts["val"])
        if val_loss < best["val_loss"]:
            weights = {name: value.clone() for name, value in model.state_dict().items()}
            best = {"val_loss": val_loss, "val_auc": val_auc, "epoch": epoch, "weights": weights}
    model.load_state_dict(best.pop("weights"))
    train_loss, train_auc, _ = test(model, parts["train"])
    test_loss, auc, gates = test(model, parts["test"])
    numbers = {"auc": auc, "loss": test_loss, "train_auc": train_auc, "train_loss": train_loss} | best
    return numbers | {"gates": gates, "seconds": time.process_time() - start}


@torch.no_grad()
def test(model: SlideTransformer, part: Part) -> tuple[float, float, list[dict[str, int | float]]]:
    """Return loss, AUC and what the gates did."""
    model.eval()
    with GateRecorder(model) as recorder:
        batches = [part.rows(chosen) for chosen in torch.arange(len(part.labels)).split(40)]
        logits = torch.cat([model(features, graph=graph) for features, graph, _ in batches])
    score = (logits[:, 1] - logits[:, 0]).double().numpy()
    loss = F.cross_entropy(logits, part.labels).item()
    return loss, roc_auc(part.labels.numpy() == 1, score), recorder.rows(0)


def read_knowing(part: Part, directions: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Score two readers that know the directions, by the strongest patches; one takes the neighbours' mean away."""
    contrast_D = torch.from_numpy(directions[1] - directions[0]).float()
    raw_SN = part.features @ contrast_D
    slides = torch.arange(len(raw_SN))[:, None, None]
    near_SNK = raw_SN[slides, part.graph.index.clamp_min(0)].masked_fill(~part.graph.mask, 0)
    local_SN = raw_SN - near_SNK.sum(-1) / part.graph.count.clamp_min(1)
    truth = part.labels.numpy() == 1
    scores = {"auc": raw_SN, "auc_local": local_SN}
    return {name: roc_auc(truth, (s.amax(1) + s.amin(1)).double().numpy()) for name, s in scores.items()}


def differences(results: list[dict[str, Any]], level: float, ours: str, theirs: str) -> np.ndarray[Any, Any]:
    """Return the difference in AUC of two methods, one number per seed that both have."""
    by_seed: dict[int, dict[str, float]] = {}
    for run in results:
        if run["level"] == level:
            by_seed.setdefault(run["seed"], {})[run["method"]] = run["auc"]
    return np.array([aucs[ours] - aucs[theirs] for _, aucs in sorted(by_seed.items()) if {ours, theirs} <= set(aucs)])


def interval(values: np.ndarray[Any, Any]) -> tuple[float, float, float]:
    """Return mean and 95 % interval (Student's t over the seeds)."""
    half = float(student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
    return float(values.mean()), float(values.mean()) - half, float(values.mean()) + half


def print_tables(results: list[dict[str, Any]]) -> None:
    """Print two Markdown tables: mean AUC of every method, and the differences with their intervals."""
    print("\n| redundancy | strength | base | SRP | XSA | Diff | knowing reader | the same, neighbours taken away |")
    print("|---|---|---|---|---|---|---|---|")
    for level, strength in STRENGTHS.items():
        cells = [_mean(results, level, name) for name in (*METHODS, "readers")]
        print(f"| {level} | {strength} | {' | '.join(cells)} | {_mean(results, level, 'readers', 'auc_local')} |")
    print("\n| redundancy | SRP - base | XSA - base | Diff - base | SRP - XSA | SRP - Diff | mean beta (blocks) |")
    print("|---|---|---|---|---|---|---|")
    for level in STRENGTHS:
        pairs = (("srp", "base"), ("xsa", "base"), ("diff", "base"), ("srp", "xsa"), ("srp", "diff"))
        cells = ["{:+.3f} ({:+.3f} to {:+.3f})".format(*interval(differences(results, level, *pair))) for pair in pairs]
        print(f"| {level} | {' | '.join(cells)} | {_betas(results, level)} |")
    seconds = sum(run.get("seconds", 0.0) for run in results)
    print(f"\n{len(results)} runs, {seconds / 60:.1f} CPU minutes of training and testing")


def _mean(results: Iterable[dict[str, Any]], level: float, method: str, name: str = "auc") -> str:
    values = [run[name] for run in results if run["level"] == level and run["method"] == method]
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else "n/a"


def _betas(results: Iterable[dict[str, Any]], level: float) -> str:
    rows = [run["gates"] for run in results if run["level"] == level and run["method"] == "srp"]
    return ", ".join(f"{np.mean([gate['mean'] for gate in block]):+.2f}" for block in zip(*rows, strict=True))


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """Draw the differences to the base model over the levels."""
    from nnunet_gdla.mil.figures import INK, canvas, colour, paper_style, save

    with paper_style():
        figure, (axes,) = canvas(1, 1, width=7.0, height=4.4)
        for place, name in enumerate(("srp", "xsa", "diff")):
            stats = np.array([interval(differences(results, level, name, "base")) for level in STRENGTHS])
            across = np.arange(len(STRENGTHS)) + 0.12 * (place - 1)
            error = np.abs(stats[:, 1:] - stats[:, :1]).T
            label = {"srp": "Gated SRP", "xsa": "XSA", "diff": "Diff"}[name]
            axes.errorbar(across, stats[:, 0], error, fmt="o", capsize=4, color=colour(place), label=label)
        axes.axhline(0, color=INK, linewidth=1)
        axes.set_xticks(range(len(STRENGTHS)), [str(level) for level in STRENGTHS])
        axes.set(
            xlabel="share of a patch's variance shared with its surroundings", ylabel="test AUC minus base model's"
        )
        axes.set_title(f"Synthetic slides, {len(SEEDS)} seeds; bars: 95 % intervals")
        axes.legend()
        save(figure, path)


if __name__ == "__main__":
    main()
