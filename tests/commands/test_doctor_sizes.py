"""S4, S20, S21: images to predict, patches that are lines, and images of another order of size."""

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
import PIL.Image
import pytest
import tifffile

from nnunet_gdla.commands.dataset_check import RawDataset, check_dataset
from nnunet_gdla.commands.doctor.sizes import check_outliers, check_patch
from nnunet_gdla.commands.findings import Finding, Level
from nnunet_gdla.commands.plans_check import check_plans
from tests.commands.damaged import MHA, PAIR, PNG, TIF
from tests.commands.made_datasets import make_dataset, save
from tests.commands.prepared_datasets import PLANS, edit_json, prepare

Value = TypeVar("Value")


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("nnUNet_raw", "nnUNet_preprocessed"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    return tmp_path / "nnUNet_raw"


def run_through(check: Generator[Finding, None, Value]) -> tuple[list[Finding], Value]:
    """Findings and result of a check."""
    result: list[Value] = []

    def keep() -> Iterator[Finding]:
        result.append((yield from check))

    return list(keep()), result[0]


def look(folder: Path) -> tuple[list[Finding], RawDataset]:
    """Problems of a raw dataset, and what was read."""
    findings, read = run_through(check_dataset(folder, num_threads=1))
    assert read is not None
    return [problem for problem in findings if problem.level is not Level.PASS], read


def test_images_to_predict_without_a_channel_number_are_named(raw: Path) -> None:
    """S4: nnU-Net makes a case without files of `c00.png`."""
    folder = make_dataset(raw, *PNG)
    for name in ("c00.png", "c01.png"):
        save(folder / "imagesTs" / name, np.zeros((40, 48), np.uint8) + np.arange(48, dtype=np.uint8))
    (folder / "imagesTs" / "notes.txt").write_text("")
    problems, _ = look(folder)
    assert [(problem.level, problem.title, problem.detail) for problem in problems] == [
        (Level.WARN, "imagesTs, image name", "c00.png; c01.png"),
        (Level.WARN, "ignored file in imagesTs", "notes.txt"),
    ]
    assert "rename to CASE_0000.png" in problems[0].fix


def test_images_to_predict_that_lack_a_channel_are_named(raw: Path) -> None:
    folder = make_dataset(raw, *PAIR)
    (folder / "imagesTs" / "case_3_0001.png").unlink()
    (problem,), _ = look(folder)
    assert problem.title == "imagesTs, missing channels"
    assert problem.detail.startswith("case_3_0000.png: 1 channel, declared 2")


def test_hundreds_of_skipped_files_take_a_line(raw: Path) -> None:
    """S18."""
    folder = make_dataset(raw, *PNG)
    for number in range(300):
        (folder / "imagesTr" / f"slide_{number}_0000.svs").write_text("")
        (folder / "imagesTs" / f"slide_{number}.jpg").write_text("")
    problems, _ = look(folder)
    assert [problem.detail.rpartition("; ")[2] for problem in problems] == ["and 295 more", "and 295 more"]


@pytest.mark.parametrize(
    ("size", "patch"), [((40, 48, 1), "48 x 1"), ((40, 48, 20), "48 x 20"), ((40, 1, 48), "1 x 48")]
)
def test_slices_along_another_axis_are_seen_before_planning(raw: Path, size: tuple[int, ...], patch: str) -> None:
    """S20: of equal spacings nnU-Net's planner takes the first axis as that of the slices."""
    folder = make_dataset(raw, *MHA, size=(size[0], 48, 48), predict=False)
    for path in [*folder.glob("*Tr/*")]:
        kept = np.ones(size, np.uint8 if "labels" in path.parent.name else np.float32)
        save(path, kept * np.arange(size[0], dtype=kept.dtype)[:, None, None] % 2)
    _, read = look(folder)
    (problem,) = check_patch(None, read)
    assert problem.level is Level.WARN
    assert f"of {patch}, a side of {min(map(int, patch.split(' x ')))} px" in problem.detail
    assert "nnunet-gdla plan -d 801" in problem.fix


@pytest.mark.parametrize(
    ("patch", "slices", "seen"), [([64, 1], 64, True), ([64, 20], 64, True), ([28, 36], 1, False), ([8, 8], 1, True)]
)
def test_patches_of_plans_that_are_lines_are_seen(raw: Path, patch: list[int], slices: int, seen: bool) -> None:
    """S20, of plans that are there."""
    folder = make_dataset(raw, *PNG, predict=False)
    _, read = look(folder)
    plans = prepare(folder, raw.parent / "nnUNet_preprocessed", "NaturalImage2DIO", [1.0, 1.0]) / f"{PLANS}.json"

    def edit(content: dict) -> None:  # type: ignore[type-arg]
        content["configurations"]["2d"]["patch_size"] = patch
        content["original_median_shape_after_transp"] = [slices, 64, 64]

    edit_json(plans, edit)
    _, planned = run_through(check_plans(folder.name, PLANS, "2d", "nnUNetTrainerGDLA_B0", "cpu"))
    problems = list(check_patch(planned, read))
    assert [problem.level for problem in problems] == [Level.WARN] * seen
    assert all(f"patches of {patch[0]} x {patch[1]}" in problem.detail for problem in problems)


def test_an_image_that_is_far_larger_is_told_with_its_tiles(raw: Path) -> None:
    """S21: nnU-Net moves its window by half the patch and predicts four times, mirrored."""
    folder = make_dataset(raw, *PNG)
    assert list(check_outliers(None, look(folder)[1])) == []
    pixels = np.random.default_rng(0).integers(0, 255, (1000, 1200), dtype=np.uint8)
    save(folder / "imagesTr" / "case_2_0000.png", pixels)
    save(folder / "labelsTr" / "case_2.png", (pixels > 127).astype(np.uint8))
    save(folder / "imagesTs" / "case_5_0000.png", pixels)
    problems, read = look(folder)
    assert problems == []
    (problem,) = check_outliers(None, read)
    # windows of 40 x 48, every 20 x 24: (1000 - 40) / 20 + 1 by (1200 - 48) / 24 + 1
    tiles = 49 * 49
    assert problem.detail == "; ".join(
        f"{case} is 1 x 1000 x 1200, {tiles:,} tiles of 40 x 48, 4 times with mirroring"
        for case in ("case_2", "case_5")
    )
    assert "cut such images into tiles" in problem.fix


def test_an_image_beyond_the_readers_limit_is_to_be_cut(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S21: writing it again would not help."""
    folder = make_dataset(raw, *PNG, predict=False)
    save(folder / "imagesTr" / "case_2_0000.png", np.arange(10_000, dtype=np.uint16).reshape(100, 100).astype(np.uint8))
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 4000)
    (problem,), _ = look(folder)
    assert (problem.level, problem.title) == (Level.FAIL, "image too large")
    assert problem.detail.startswith("case_2_0000.png: DecompressionBombError")
    assert "cut the image into tiles" in problem.fix


def test_pictures_with_several_pages_are_named(raw: Path) -> None:
    folder = make_dataset(raw, *TIF, predict=False)
    path = folder / "imagesTr" / "case_3_0000.tif"
    picture = tifffile.imread(path)
    with tifffile.TiffWriter(path) as writer:
        for each in (picture, picture[::2, ::2]):  # the picture and a preview, as microscopes write them
            writer.write(each, metadata=None)
    (problem,), _ = look(folder)
    assert (problem.level, problem.title, problem.detail) == (Level.WARN, "pages in TIFF images", "case_3 has 2")
