"""What a folder of predictions must hold."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import SimpleITK

from tests.integration.datasets import image_files, read_json

__all__ = ["assert_fits_images", "assert_same_predictions", "read_mask"]


def read_mask(path: Path) -> npt.NDArray[Any]:
    """Return the label values of a file."""
    mask: npt.NDArray[Any] = SimpleITK.GetArrayFromImage(SimpleITK.ReadImage(str(path)))
    return mask


def assert_fits_images(predicted: Path, dataset: Path, sub: str, cases: list[str]) -> None:
    """Every case has a mask, nothing else has; each lies where its image lies and holds only values that are labels."""
    about = read_json(dataset / "dataset.json")
    ending = about["file_ending"]
    assert sorted(path.name for path in predicted.glob(f"*{ending}")) == sorted(f"{case}{ending}" for case in cases)
    allowed = _predictable(about)
    for case in cases:
        image = SimpleITK.ReadImage(str(image_files(dataset, case, sub)[0]))
        mask = SimpleITK.ReadImage(str(predicted / f"{case}{ending}"))
        assert mask.GetSize() == image.GetSize()
        if image.GetDimension() == 3:
            for where in ("GetSpacing", "GetOrigin", "GetDirection"):
                np.testing.assert_allclose(getattr(mask, where)(), getattr(image, where)(), atol=1e-5)
        assert set(np.unique(read_mask(predicted / f"{case}{ending}")).tolist()) <= allowed


def _predictable(about: dict[str, Any]) -> set[int]:
    if "regions_class_order" in about:
        return {0, *about["regions_class_order"]}
    return {value for name, value in about["labels"].items() if name != "ignore"}


def assert_same_predictions(first: Path, second: Path, cases: list[str]) -> None:
    """Masks and probabilities of two folders are equal, bit for bit.

    Masks alone would not tell much: those of a network that has hardly been trained may be empty.
    """
    for case in cases:
        np.testing.assert_array_equal(read_mask(_mask_file(first, case)), read_mask(_mask_file(second, case)))
        ours, theirs = (np.load(folder / f"{case}.npz")["probabilities"] for folder in (first, second))
        assert ours.std() > 0
        np.testing.assert_array_equal(ours, theirs)


def _mask_file(folder: Path, case: str) -> Path:
    beside = (".npz", ".pkl")  # probabilities, and what nnU-Net notes about them
    found = [path for path in folder.glob(f"{case}.*") if path.suffix not in beside]
    assert len(found) == 1, found
    return found[0]
