"""Synthetic slides with planted local redundancy and a rare signal: for the demo, the tests and the study of the idea.

A slide is a piece of tissue on a lattice, ragged and with holes. Its features are white noise, of which a share (the
redundancy) is replaced by random fields that vary slowly over the lattice, so that neighbours resemble each other; a
single feature keeps variance 1. A few isolated patches carry a direction that tells the class, every class its own: the
number of odd patches says nothing.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nnunet_gdla.mil.files import replaced, write_csv
from nnunet_gdla.words import counted

__all__ = ["SyntheticCohort", "SyntheticSlide", "TissueModel", "class_directions", "make_cohort", "make_slide"]

_ENCODER: Final = "synthetic"


@dataclass(frozen=True)
class TissueModel:
    """How slides are made.

    Attributes:
        patches: Patches of a slide.
        dim: Features of a patch.
        redundancy: Share of the variance that a patch shares with its surroundings, 0 to 1.
        strength: Length of the class direction added to a rare patch; a single feature has standard deviation 1.
        rare: Rare patches of a slide; no two of them are neighbours.
        reach: Standard deviation in cells of the filter that makes the slow fields.
        holes: Share of the tissue's cells that are missing.
        stride: Level-0 pixels from one patch to the next.
    """

    patches: int = 100
    dim: int = 32
    redundancy: float = 0.75
    strength: float = 4.0
    rare: int = 3
    reach: float = 1.25
    holes: float = 0.12
    stride: int = 256

    def __post_init__(self) -> None:
        if not 0 <= self.redundancy <= 1:
            raise ValueError(f"redundancy {self.redundancy} is a share: give 0 to 1")
        if self.patches < 9 * self.rare or self.rare < 0 or self.dim < 1:
            bag = f"{counted(self.patches, 'patch', 'patches')} of {counted(self.dim, 'feature')}"
            raise ValueError(f"{bag} cannot hold {counted(self.rare, 'isolated patch', 'isolated patches')}")
        if not 0 <= self.holes < 0.5:
            raise ValueError(f"holes {self.holes} is a share: give 0 to below 0.5")


@dataclass(frozen=True)
class SyntheticSlide:
    """One slide: features (N, D) float32, coords (N, 2) int64 in level-0 pixels, and which patches are rare (N)."""

    features: NDArray[np.float32]
    coords: NDArray[np.int64]
    rare: NDArray[np.bool_]


@dataclass(frozen=True)
class SyntheticCohort:
    """Where `make_cohort` wrote: the table, the folder of the feature files, and the rows of the rare patches."""

    table: Path
    features: Path
    rare: Path


def class_directions(rng: np.random.Generator, classes: int, dim: int) -> NDArray[np.float64]:
    """Return one unit vector per class, (classes, dim), orthogonal to each other."""
    if not 1 < classes <= dim:
        raise ValueError(f"{classes} classes need 2 to {dim} (the feature width) directions")
    return np.linalg.qr(rng.standard_normal((dim, classes)))[0].T


def make_slide(
    rng: np.random.Generator,
    direction: NDArray[np.float64],
    model: TissueModel,
) -> SyntheticSlide:
    """Make one slide whose rare patches carry `direction` (dim).

    Args:
        rng: Source of all randomness of the slide.
        direction: What the rare patches have in common, of length 1.
        model: Sizes and shares.

    Returns:
        The slide, its rows in scan order: column by column, as tools write them.
    """
    cells = _tissue(rng, model)
    size = int(cells.max()) + 1
    slow = _slow_fields(rng, size, model)[:, cells[:, 0], cells[:, 1]].T
    own = rng.standard_normal((model.patches, model.dim))
    features = np.sqrt(model.redundancy) * slow + np.sqrt(1 - model.redundancy) * own
    rare = np.zeros(model.patches, bool)
    rare[_isolated(rng, cells, model.rare)] = True
    features[rare] += model.strength * direction
    origin = rng.integers(0, 40 * model.stride, 2)
    return SyntheticSlide(features.astype(np.float32), origin + cells * model.stride, rare)


def make_cohort(
    folder: Path,
    *,
    seed: int = 0,
    slides: int = 48,
    classes: int = 2,
    redundancy: float = 0.75,
    signal: float = 4.0,
    task: str = "classification",
    tissue: TissueModel | None = None,
) -> SyntheticCohort:
    """Write a cohort: `features/*.h5` as TRIDENT writes them, `cohort.csv`, and `rare.csv`, the rows of rare patches.

    Every fourth patient has two slides of one class. Equal arguments give equal files, bit for bit.

    Args:
        folder: Made where missing; existing files of these names are replaced.
        seed: Any non-negative integer.
        slides: Number of slides; the number of patches varies by up to a fifth from slide to slide.
        classes: Number of classes, named `class_0` ...; in survival the number of risk groups.
        redundancy: Share of a patch's variance that it shares with its surroundings.
        signal: Length of the class direction in a rare patch.
        task: "classification" writes `label`; "survival" writes `time` (days) and `event`, the hazard tripling from
            group to group and about 30 % of the patients censored.
        tissue: Everything else; `redundancy` and `signal` above win over its own.

    Returns:
        Where the files are.

    Raises:
        ValueError: If the task is unknown or the sizes make no sense.
    """
    if task not in ("classification", "survival"):
        raise ValueError(f"unknown task {task!r}; choose one of classification, survival")
    if slides < classes:
        raise ValueError(f"{counted(slides, 'slide')} cannot hold {counted(classes, 'class', 'classes')}")
    base = dataclasses.replace(tissue or TissueModel(), redundancy=redundancy, strength=signal)
    rng = np.random.default_rng([seed, 0])
    directions = class_directions(rng, classes, base.dim)
    features = folder / "features"
    features.mkdir(parents=True, exist_ok=True)
    table = _table(rng, slides, classes, task)
    rare = []
    for number, row in enumerate(table.to_dict("records")):
        slide_rng = np.random.default_rng([seed, 1, number])
        patches = round(base.patches * slide_rng.uniform(0.8, 1.2))
        model = dataclasses.replace(base, patches=max(patches, 9 * base.rare))
        slide = make_slide(slide_rng, directions[row["group"]], model)
        _write_trident(features / f"{row['slide_id']}.h5", row["slide_id"], slide, model.stride)
        rare += [(row["slide_id"], int(place)) for place in np.flatnonzero(slide.rare)]
    write_csv(folder / "cohort.csv", table.drop(columns="group"))
    write_csv(folder / "rare.csv", pd.DataFrame(rare, columns=["slide_id", "row"]))
    return SyntheticCohort(folder / "cohort.csv", features, folder / "rare.csv")


def _table(rng: np.random.Generator, slides: int, classes: int, task: str) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    patient = 0
    while len(rows) < slides:
        group = patient % classes
        entry: dict[str, Any] = {"patient_id": f"P{patient:03d}", "group": group}
        if task == "survival":
            death = rng.exponential(1500 / 3.0**group)
            end = rng.uniform(200, 5000 / 3.0**group)
            entry |= {"time": round(min(death, end) + 1, 1), "event": int(death <= end)}
        else:
            entry["label"] = f"class_{group}"
        for _ in range(min(2 if patient % 4 == 3 else 1, slides - len(rows))):
            rows.append({"slide_id": f"slide_{len(rows):03d}"} | entry)
        patient += 1
    return pd.DataFrame(rows)


def _tissue(rng: np.random.Generator, model: TissueModel) -> NDArray[np.int64]:
    """Return the (N, 2) cells of a ragged piece of tissue: the highest part of a slow field, with holes punched in."""
    kept = int(np.ceil(model.patches / (1 - model.holes)))
    size = int(np.ceil(np.sqrt(1.5 * kept)))
    middle = (np.arange(size) - (size - 1) / 2) / size
    bowl = -4 * (middle[:, None] ** 2 + middle[None] ** 2)  # tissue lies around the middle
    height = _smooth(rng.standard_normal((1, size + 16, size + 16)), size, 2.0)[0] * 0.35 + bowl
    tissue = np.argsort(height, axis=None)[-kept:]
    cells = np.sort(rng.permutation(tissue)[: model.patches])
    return np.stack(np.unravel_index(cells, (size, size)), axis=1).astype(np.int64)


def _slow_fields(rng: np.random.Generator, size: int, model: TissueModel) -> NDArray[np.float64]:
    margin = 2 * int(np.ceil(4 * model.reach))
    return _smooth(rng.standard_normal((model.dim, size + margin, size + margin)), size, model.reach)


def _smooth(noise: NDArray[np.float64], size: int, reach: float) -> NDArray[np.float64]:
    """Filter white noise (F, M, M) to (F, size, size) fields of variance 1; the border M - size is used up."""
    offsets = np.arange(noise.shape[-1])[None] - np.arange(size)[:, None] - (noise.shape[-1] - size) / 2
    kernel = np.exp(-(offsets**2) / (2 * reach**2))
    kernel /= np.sqrt((kernel**2).sum(1, keepdims=True))
    smooth: NDArray[np.float64] = kernel @ noise @ kernel.T
    return smooth


def _isolated(rng: np.random.Generator, cells: NDArray[np.int64], wanted: int) -> list[int]:
    """Choose rows no two of which touch, by a random walk through all rows."""
    chosen: list[int] = []
    for row in rng.permutation(len(cells)):
        if len(chosen) == wanted:
            break
        if all(np.abs(cells[row] - cells[other]).max() > 1 for other in chosen):
            chosen.append(int(row))
    return chosen


def _write_trident(path: Path, name: str, slide: SyntheticSlide, stride: int) -> None:
    replaced(path, lambda unfinished: _write_h5(unfinished, name, slide, stride))


def _write_h5(path: Path, name: str, slide: SyntheticSlide, stride: int) -> None:
    with h5py.File(path, "w") as file:
        coords = file.create_dataset("coords", data=slide.coords)
        width, height = (slide.coords.max(0) + 2 * stride).tolist()
        coords.attrs.update(
            {
                "name": name,
                "patch_size": stride,
                "patch_size_level0": stride,
                "patch_level": 0,
                "overlap": 0,
                "level0_width": width,
                "level0_height": height,
            }
        )
        file.create_dataset("features", data=slide.features).attrs["encoder"] = _ENCODER
