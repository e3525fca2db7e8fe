"""A tiny nnU-Net project, made and planned inside the test process, and trainers on it.

The images are those of a user with two sizes, neither a multiple of 32, and a blank and a dot in every case name.
Imports nothing of nnunet_gdla, because conftest files import this one.
"""

import contextlib
import dataclasses
import json
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any
from unittest import mock

import nnunetv2.utilities.utils
import numpy as np
import numpy.typing as npt
import pytest
import SimpleITK as sitk
import torch
from nnunetv2.experiment_planning.dataset_fingerprint.fingerprint_extractor import DatasetFingerprintExtractor
from nnunetv2.experiment_planning.plan_and_preprocess_api import (
    extract_fingerprint_dataset,
    plan_experiment_dataset,
    preprocess_dataset,
)
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

__all__ = [
    "LABELS",
    "Project",
    "as_ours",
    "made_project",
    "make_trainer",
    "project",
    "read_batch",
    "small_plans",
    "threads_for_pools",
    "write_dataset",
]

LABELS = {"background": 0, "disc": 1, "corner": 2}
CPU = torch.device("cpu")
Image = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Project:
    """Where nnU-Net's folders are, and the one dataset in them."""

    root: Path
    dataset: str = "Dataset850_Tiny"
    dataset_id: int = 850

    @property
    def raw(self) -> Path:
        return self.root / "raw" / self.dataset

    @property
    def preprocessed(self) -> Path:
        return self.root / "preprocessed" / self.dataset

    def plans(self, name: str = "nnUNetPlans") -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.preprocessed / f"{name}.json").read_text())
        return loaded

    def dataset_json(self, **changes: Any) -> dict[str, Any]:  # noqa: ANN401
        loaded: dict[str, Any] = json.loads((self.preprocessed / "dataset.json").read_text())
        return loaded | changes

    def set_folders(self, monkeypatch: pytest.MonkeyPatch, results: Path) -> None:
        monkeypatch.setenv("nnUNet_raw", str(self.root / "raw"))
        monkeypatch.setenv("nnUNet_preprocessed", str(self.root / "preprocessed"))
        monkeypatch.setenv("nnUNet_results", str(results))
        monkeypatch.setenv("nnUNet_n_proc_DA", "0")  # batches are made in this process


@contextlib.contextmanager
def threads_for_pools() -> Iterator[None]:
    """Let nnU-Net's pools of new interpreters, each of which takes seconds to start, be threads."""

    class Threads:
        @staticmethod
        def Pool(processes: int) -> ThreadPool:  # noqa: N802 - multiprocessing's name
            return ThreadPool(min(processes, 2))

    with (
        mock.patch.object(multiprocessing, "get_context", return_value=Threads),
        mock.patch.object(nnunetv2.utilities.utils, "Pool", Threads.Pool),
    ):
        yield


class QuickFingerprint(DatasetFingerprintExtractor):  # type: ignore[misc]
    """Ten million foreground pixels are drawn from six tiny images otherwise."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **kwargs)
        self.num_foreground_voxels_for_intensitystats = 10_000


def write_dataset(
    folder: Path,
    images: Mapping[str, Sequence[Image]],
    labels: Mapping[str, Image],
    *,
    file_ending: str = ".png",
    channel_names: Sequence[str] = ("us",),
    label_names: Mapping[str, Any] = LABELS,
) -> None:
    """Write a raw dataset; each case is a sequence of one image a file (an RGB image is one file)."""
    for part in ("imagesTr", "labelsTr"):
        (folder / part).mkdir(parents=True)
    for case, files in images.items():
        for index, image in enumerate(files):
            _write(folder / "imagesTr" / f"{case}_{index:04d}{file_ending}", image)
        _write(folder / "labelsTr" / f"{case}{file_ending}", labels[case])
    description = {
        "channel_names": {str(index): name for index, name in enumerate(channel_names)},
        "labels": label_names,
        "numTraining": len(images),
        "file_ending": file_ending,
    }
    (folder / "dataset.json").write_text(json.dumps(description))


def _write(path: Path, image: Image) -> None:
    is_colour = image.ndim == 3 and image.shape[-1] in (3, 4)
    sitk.WriteImage(sitk.GetImageFromArray(image, isVector=is_colour), path)


def disc_and_corner(seed: int, height: int, width: int) -> tuple[Image, Image]:
    """An image and its label map: a bright disc in the middle, a dark corner."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:height, :width]
    label = ((rows - height / 2) ** 2 + (columns - width / 2) ** 2 < 18**2).astype(np.uint8)
    label[:12, :12] = 2
    image = rng.normal(90, 15, label.shape) + 60 * (label == 1) - 40 * (label == 2)
    return np.clip(image, 0, 255).astype(np.uint8), label


def prepare(dataset_id: int, plans_name: str = "nnUNetPlans", **planner: Any) -> None:  # noqa: ANN401
    """Fingerprint, plan and preprocess, all in this process."""
    with threads_for_pools():
        extract_fingerprint_dataset(
            dataset_id, QuickFingerprint, num_processes=1, clean=False, verbose=False, show_progress_bar=False
        )
        plan_experiment_dataset(dataset_id, **planner)
        preprocess_dataset(dataset_id, plans_name, ["2d"], [1], show_progress_bar=False)


@pytest.fixture(scope="session")
def made_project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project, made once; tests do not write into it. Its splits are fixed: four cases train, two validate."""
    made = Project(tmp_path_factory.mktemp("nnunet"))
    drawn = {f"a b.{i}": disc_and_corner(i, *((97, 131), (140, 75))[i % 2]) for i in range(6)}
    write_dataset(
        made.raw, {case: [pair[0]] for case, pair in drawn.items()}, {case: pair[1] for case, pair in drawn.items()}
    )
    with pytest.MonkeyPatch.context() as monkeypatch:
        made.set_folders(monkeypatch, made.root / "results")
        monkeypatch.setenv("nnUNet_n_proc_DA", "1")  # 0 stops nnU-Net's own planner
        prepare(made.dataset_id)
    cases = sorted(drawn)
    (made.preprocessed / "splits_final.json").write_text(json.dumps([{"train": cases[:4], "val": cases[4:]}]))
    return made


@pytest.fixture
def project(made_project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Project]:
    """The project with nnU-Net's variables set, and a results folder of the test's own."""
    made_project.set_folders(monkeypatch, tmp_path / "results")
    with threads_for_pools():
        yield made_project


def small_plans(
    made: Project,
    patch_size: Sequence[int] = (64, 64),
    batch_size: int = 2,
    **changes: Any,  # noqa: ANN401
) -> dict[str, Any]:
    """The stock plans with a patch and batch for a test, and other changes to the 2d configuration."""
    plans = made.plans()
    plans["configurations"]["2d"] |= {"patch_size": list(patch_size), "batch_size": batch_size} | changes
    return plans


def as_ours(**arguments: Any) -> dict[str, Any]:  # noqa: ANN401
    """An `architecture` entry of plans that names our network."""
    return {
        "network_class_name": "nnunet_gdla.networks.PVTGDLA",
        "arch_kwargs": {"strides": [[1, 1], [8, 8], [2, 2], [2, 2], [2, 2]]} | arguments,
        "_kw_requires_import": [],
    }


def make_trainer(
    trainer: Callable[..., nnUNetTrainer],
    made: Project,
    plans: dict[str, Any] | None = None,
    *,
    dataset_json: dict[str, Any] | None = None,
    configuration: str = "2d",
    continue_training: bool = False,
) -> Any:  # noqa: ANN401 - nnU-Net has no types
    """A trainer as nnU-Net's command makes it, on the CPU."""
    plans = deepcopy(plans) if plans is not None else small_plans(made)
    return trainer(
        plans=plans | {"continue_training": continue_training},
        configuration=configuration,
        fold=0,
        dataset_json=dataset_json or made.dataset_json(),
        device=CPU,
    )


def read_batch(trainer: Any, seed: int = 0) -> dict[str, Any]:  # noqa: ANN401
    """A random batch in the form of nnU-Net's loaders, with targets for every output."""
    generator = torch.Generator().manual_seed(seed)
    size = tuple(trainer.configuration_manager.patch_size)
    batch = trainer.configuration_manager.batch_size
    channels = len(trainer.dataset_json["channel_names"])
    heads = trainer.label_manager.num_segmentation_heads
    scales = trainer._get_deep_supervision_scales()
    sizes = [[round(edge * scale) for edge, scale in zip(size, factors, strict=True)] for factors in scales]
    return {
        "data": torch.randn(batch, channels, *size, generator=generator),
        "target": [torch.randint(heads, (batch, 1, *edges), generator=generator).float() for edges in sizes],
        "keys": [f"case {index}" for index in range(batch)],
    }
