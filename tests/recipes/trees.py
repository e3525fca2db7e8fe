"""Made-up downloads in the exact public layouts, with tiny images."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import nibabel as nib
import numpy as np
from PIL import Image

Converted = Callable[..., Path]

# Voxels of the organs in our numbering: 1 spleen, 2 right kidney, ..., 6 liver, 7 stomach, 8 aorta.
ORGANS = {1: 60, 2: 40, 3: 42, 4: 10, 5: 18, 6: 300, 7: 80, 8: 30}
PREPARED = {1: 7, 2: 4, 3: 3, 4: 2, 5: 6, 6: 5, 7: 8, 8: 1}
RELEASE = {1: 1, 2: 2, 3: 3, 4: 4, 5: 11, 6: 6, 7: 7, 8: 8}
OTHER_RELEASE_LABELS = {5: 6, 9: 12, 10: 11, 12: 3, 13: 3}
TRAIN = [f"{n:04d}" for n in (5, 6, 7, 9, 10, 21, 23, 24, 26, 27, 28, 30, 31, 33, 34, 37, 39, 40)]
TEST = [f"{n:04d}" for n in (8, 22, 38, 36, 32, 2, 29, 3, 1, 4, 25, 35)]


def png(path: Path, values: np.ndarray, mode: str | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(values)
    (image.convert(mode) if mode else image).save(path)
    return path


def picture(seed: int, height: int = 12, width: int = 16) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width), dtype=np.uint8)


def blob(seed: int, height: int = 12, width: int = 16, white: int = 255) -> np.ndarray:
    mask = np.zeros((height, width), dtype=np.uint8)
    row, column = np.random.default_rng(seed).integers(0, 6, 2)
    mask[row : row + 5, column : column + 7] = white
    return mask


def busi(root: Path, benign: int = 6, malignant: int = 3, normal: int = 2) -> Path:
    """`Dataset_BUSI_with_GT` with grey images."""
    folder = root / "Dataset_BUSI_with_GT"
    for number, (kind, count) in enumerate({"benign": benign, "malignant": malignant, "normal": normal}.items()):
        for k in range(1, count + 1):
            seed = k + 1000 * (number + 1)
            png(folder / kind / f"{kind} ({k}).png", picture(seed))
            mask = blob(seed) if kind != "normal" else np.zeros((12, 16), dtype=np.uint8)
            png(folder / kind / f"{kind} ({k})_mask.png", mask)
    return folder


def ham10000(root: Path, lesions: Mapping[str, Iterable[int]], metadata: bool = True) -> Path:
    """The folders of HAM10000; `lesions` are image numbers by lesion."""
    rows = ["lesion_id,image_id,dx"]
    for lesion, numbers in lesions.items():
        for number in numbers:
            name = f"ISIC_{number:07d}"
            part = root / f"HAM10000_images_part_{1 + number % 2}"
            part.mkdir(parents=True, exist_ok=True)
            rgb = np.random.default_rng(number).integers(0, 256, (12, 16, 3), dtype=np.uint8)
            Image.fromarray(rgb).save(part / f"{name}.jpg", quality=95)
            png(root / "HAM10000_segmentations_lesion_tschandl" / f"{name}_segmentation.png", blob(number))
            rows.append(f"{lesion},{name},nv")
    if metadata:
        (root / "HAM10000_metadata.csv").write_text("\n".join(rows) + "\n")
    return root


def ph2(root: Path, count: int = 10) -> Path:
    for k in range(2, 2 + count):
        name, rng = f"IMD{k:03d}", np.random.default_rng(k)
        folder = root / "PH2Dataset" / "PH2 Dataset images" / name
        png(folder / f"{name}_Dermoscopic_Image" / f"{name}.bmp", rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        png(folder / f"{name}_lesion" / f"{name}_lesion.bmp", blob(k), mode="1")
        png(folder / f"{name}_roi" / f"{name}_R1_Label3.bmp", blob(k), mode="1")
    (root / "PH2Dataset" / "PH2_dataset.txt").write_text("|| Name ||\n")
    return root


def nifti(path: Path, values: np.ndarray, spacing: tuple[float, float, float] = (1.5, 1.4, 8.0)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    affine = np.diag([-spacing[0], -spacing[1], spacing[2], 1.0])
    affine[:3, 3] = (20.0, 30.0, -5.0)
    nib.save(nib.Nifti1Image(values, affine), path)  # type: ignore[no-untyped-call]
    return path


def acdc(root: Path, training: int = 10, testing: int = 2) -> Path:
    for k in range(1, training + testing + 1):
        patient, rng = f"patient{k:03d}", np.random.default_rng(k)
        folder = root / "database" / ("training" if k <= training else "testing") / patient
        for frame in ("01", f"{8 + k % 5:02d}"):
            nifti(folder / f"{patient}_frame{frame}.nii.gz", rng.integers(0, 900, (14, 12, 4)).astype(np.int16))
            labels = np.zeros((14, 12, 4), dtype=np.uint8)
            labels[2:5, 2:9], labels[5:7, 2:9], labels[7:9, 3:8] = 1, 2, 3
            nifti(folder / f"{patient}_frame{frame}_gt.nii.gz", labels)
        nifti(folder / f"{patient}_4d.nii.gz", np.zeros((4, 4, 4), dtype=np.int16))
        (folder / "Info.cfg").write_text("ED: 1\nES: 9\n")
    return root / "database"


def organs(numbering: Mapping[int, int], extra: Mapping[int, int] | None = None) -> np.ndarray:
    """Labels (12, 10, 8) in the numbering of a copy; the liver is the largest."""
    counts = {numbering[ours]: count for ours, count in ORGANS.items()} | dict(extra or {})
    flat = np.zeros(12 * 10 * 8, dtype=np.uint8)
    flat[: sum(counts.values())] = np.repeat(list(counts), list(counts.values()))
    return flat.reshape(12, 10, 8)


def ours(labels: np.ndarray, numbering: Mapping[int, int]) -> np.ndarray:
    """The same organs in our numbering."""
    wanted = np.zeros(labels.shape, dtype=np.uint8)
    for own, theirs in numbering.items():
        wanted[labels == theirs] = own
    return wanted


def hounsfield(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-1000, 1500, (12, 10, 8)).astype(np.int16)


def synapse_release(
    root: Path,
    numbers: Iterable[str] = (*TRAIN, *TEST),
    numbering: Mapping[int, int] = RELEASE,
    extra: Mapping[int, int] | None = OTHER_RELEASE_LABELS,
) -> Path:
    for number in numbers:
        folder = root / "RawData" / "Training"
        nifti(folder / "img" / f"img{number}.nii.gz", hounsfield(int(number)), (0.8, 0.8, 3.0))
        nifti(folder / "label" / f"label{number}.nii.gz", organs(numbering, extra), (0.8, 0.8, 3.0))
    nifti(root / "RawData" / "Testing" / "img" / "img0061.nii.gz", hounsfield(61))
    return root / "RawData"


def prepared_image(number: str) -> np.ndarray:
    return np.random.default_rng(int(number)).random((12, 10, 8), dtype=np.float32)


def synapse_prepared(root: Path, numbering: Mapping[int, int] = PREPARED) -> Path:
    import h5py

    labels = organs(numbering).astype(np.float32)
    for folder in ("train_npz", "test_vol_h5"):
        (root / "Synapse" / folder).mkdir(parents=True)
    for number in TRAIN:
        for index, image in enumerate(prepared_image(number)):
            name = f"case{number}_slice{index:03d}.npz"
            np.savez(root / "Synapse" / "train_npz" / name, image=image, label=labels[index])
    for number in TEST:
        with h5py.File(root / "Synapse" / "test_vol_h5" / f"case{number}.npy.h5", "w") as file:
            file["image"], file["label"] = prepared_image(number), labels
    return root / "Synapse"


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
