"""Every training slice once a pass, and every validation case whole.

Shape legend (this file): N cases, K classes, C channels, R target channels, Z slices, H and W pixels.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from batchgeneratorsv2.transforms.base.basic_transform import BasicTransform
from jaxtyping import Float
from nnunetv2.training.dataloading.data_loader import nnUNetDataLoader
from nnunetv2.training.dataloading.nnunet_dataset import nnUNetBaseDataset
from nnunetv2.utilities.label_handling.label_handling import LabelManager
from torch.nn import functional

__all__ = ["PassLoader", "Share", "Slices", "WholeCases", "case_dice"]


class Slices:
    """A dataset whose items are single slices; a photograph is one slice.

    Args:
        cases: nnU-Net's dataset of whole cases.
    """

    def __init__(self, cases: nnUNetBaseDataset) -> None:
        self.cases = cases
        # Opening a case reads its header only.
        self.identifiers = [
            (case, index) for case in cases.identifiers for index in range(cases.load_case(case)[0].shape[1])
        ]

    def load_case(self, identifier: tuple[str, int]) -> tuple[Any, Any, None, dict[str, Any]]:
        """Return image (C, 1, H, W), labels (1, 1, H, W), no earlier stage, and the case's properties."""
        case, index = identifier
        data, seg, _, properties = self.cases.load_case(case)
        return data[:, index : index + 1], seg[:, index : index + 1], None, properties


@dataclass(frozen=True)
class Share:
    """Which part of the batches a process makes.

    Args:
        batch: Images in the whole batch, of all GPUs.
        first: First of these that belongs to this GPU.
        step: Step of the training at which to begin, counted from 0.
        workers: Processes that make batches in turn.
    """

    batch: int
    first: int = 0
    step: int = 0
    workers: int = 1


class PassLoader(nnUNetDataLoader):
    """Passes over all slices, each in a new order, cut into full batches; no slice is drawn for its foreground.

    Order, crops and augmentation of a batch depend on the seed and the number of its step only: neither on how many
    processes make batches, nor on whether the training was resumed.
    """

    def __init__(
        self,
        slices: Slices,
        batch_size: int,
        patch_size: Sequence[int],
        labels: LabelManager,
        transforms: BasicTransform,
        *,
        seed: int,
        share: Share,
    ) -> None:
        super().__init__(slices, batch_size, patch_size, patch_size, labels, transforms=transforms)
        self.has_ignore = False  # or crops would be drawn where the whole volume is annotated
        self.seed, self.share = seed, share
        self._made = 0

    def set_thread_id(self, thread_id: int) -> None:
        """Begin in a process that makes batches; nnU-Net's augmenter calls it there only."""
        super().set_thread_id(thread_id)
        # As nnU-Net's own workers do: a forked process would wait for ever for its parent's threads.
        torch.set_num_threads(1)

    def get_indices(self) -> list[tuple[str, int]]:
        """Return the next batch's slices, and set the random state that its crops and augmentation draw from."""
        step = self.share.step + self._made * self.share.workers + self.thread_id
        self._made += 1
        start = step * self.share.batch + self.share.first
        # nnU-Net's crops draw from there too.
        np.random.seed(np.random.SeedSequence((self.seed, start)).generate_state(4))  # noqa: NPY002
        places = [divmod(place, len(self.indices)) for place in range(start, start + self.batch_size)]
        return [self.indices[self._order(number)[place]] for number, place in places]

    def generate_train_batch(self) -> dict[str, Any]:
        """Make nnU-Net's batch, its keys as words."""
        batch: dict[str, Any] = super().generate_train_batch()
        volumes = any(index for _, index in self.indices)
        batch["keys"] = [f"{case} (slice {index})" if volumes else case for case, index in batch["keys"]]
        return batch

    def _order(self, number: int) -> np.ndarray:
        return _permutation(len(self.indices), self.seed, number)


@functools.lru_cache(maxsize=4)
def _permutation(length: int, seed: int, number: int) -> np.ndarray:
    return np.random.default_rng((seed, number)).permutation(length)


class WholeCases:
    """The validation cases, one after the other and again from the first: all slices of a case are one batch.

    Args:
        cases: nnU-Net's dataset.
        patch_size: Smaller images are padded to it, as nnU-Net's prediction does.
        transforms: nnU-Net's own for validation, which turn labels into targets.
    """

    def __init__(self, cases: nnUNetBaseDataset, patch_size: Sequence[int], transforms: BasicTransform) -> None:
        self.cases, self.patch_size, self.transforms = cases, patch_size, transforms
        self._next = 0

    def __len__(self) -> int:
        return len(self.cases.identifiers)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        """Return data (Z, C, H, W), target (Z, R, H, W) and keys, the name of the case."""
        case = self.cases.identifiers[self._next]
        self._next = (self._next + 1) % len(self)
        data, seg, _, _ = self.cases.load_case(case)
        image = _padded(torch.from_numpy(np.array(data[:], dtype=np.float32)), self.patch_size, 0)
        labels = _padded(torch.from_numpy(np.array(seg[:], dtype=np.int16)), self.patch_size, -1)
        made = self.transforms(image=image, segmentation=labels)
        return {"data": made["image"].transpose(0, 1), "target": made["segmentation"].transpose(0, 1), "keys": [case]}


def _padded(values: torch.Tensor, patch_size: Sequence[int], fill: int) -> torch.Tensor:
    missing = [max(0, patch - edge) for patch, edge in zip(patch_size, values.shape[-2:], strict=True)]
    sides = [side for lack in reversed(missing) for side in (lack // 2, lack - lack // 2)]
    return functional.pad(values, sides, value=fill) if any(sides) else values


def case_dice(counts: Sequence[dict[str, Any]]) -> Float[np.ndarray, "N K"]:
    """Dice of every case and class from its counted pixels; NaN where the truth is empty."""
    tp, fp, fn = (
        np.stack([np.asarray(case[key], dtype=float) for case in counts]) for key in ("tp_hard", "fp_hard", "fn_hard")
    )
    return np.where(tp + fn > 0, 2 * tp / np.maximum(2 * tp + fp + fn, 1), np.nan)
