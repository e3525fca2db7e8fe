"""`nnunet-gdla plan` on raw files that cannot be read, or only in part: one sentence with the file's name."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk

from nnunet_gdla.cli import main
from tests.commands.made_datasets import make_dataset, planes, write_description
from tests.trainers.nnunet_project import threads_for_pools

HEADER = 50  # so few bytes that not even the header is whole
HALF = -1


@pytest.fixture
def volumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A raw dataset of compressed volumes."""
    for name in ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("nnUNet_n_proc_DA", "1")
    return make_dataset(tmp_path / "nnUNet_raw", planes(1, np.int16, 1000), ["MR"], ".nii.gz", size=(4, 30, 32))


def plan(capfd: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    """Exit code and what stands on the screen, but for the title of what runs and its progress bar."""
    with threads_for_pools():
        code = main(["plan", "-d", "801", "-np", "1"])
    shown = "".join(capfd.readouterr()).replace("\r", "\n").splitlines()
    passing = ("taking the fingerprint of", "Extracting dataset fingerprint")
    return code, [line for line in shown if line.strip() and not line.startswith(passing)]


@pytest.mark.parametrize(
    ("file", "kept", "reader"),
    [
        ("imagesTr/case_0_0000.nii.gz", 0, None),  # the first case is looked at before the workers start
        ("imagesTr/case_0_0000.nii.gz", HEADER, None),
        ("imagesTr/case_0_0000.nii.gz", HALF, "NibabelIO"),
        ("imagesTr/case_1_0000.nii.gz", HEADER, None),
        ("imagesTr/case_1_0000.nii.gz", 300, None),
        ("imagesTr/case_1_0000.nii.gz", HALF, None),
        ("imagesTr/case_1_0000.nii.gz", HALF, "NibabelIO"),
        ("labelsTr/case_1.nii.gz", HALF, None),
    ],
)
def test_a_file_cut_short_is_named_in_one_sentence(
    file: str, kept: int, reader: str | None, volumes: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_description(volumes, overwrite_image_reader_writer=reader)
    path = volumes / file
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2 if kept == HALF else kept])
    code, shown = plan(capfd)
    assert code == 1
    assert len(shown) == 1
    assert shown[0].startswith(f"nnunet-gdla plan: {path} cannot be read (")
    assert shown[0].count(path.name) == 1
    assert not Path(os.environ["nnUNet_preprocessed"]).exists()


@pytest.mark.parametrize("ending", [".gipl", ".tif"])
@pytest.mark.parametrize("case", ["case_0", "case_1"])  # looked at before the workers start, and not
def test_formats_that_are_read_short_without_a_word_are_named_too(
    ending: str, case: str, volumes: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(volumes)
    folder = make_dataset(volumes.parent, planes(1, np.int16, 1000), ["MR"], ending, size=(4, 30, 32))
    if ending == ".tif":
        write_description(folder, overwrite_image_reader_writer="Tiff3DIO")
    path = folder / "imagesTr" / f"{case}_0000{ending}"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    code, shown = plan(capfd)
    assert code == 1
    assert len(shown) == 1
    assert shown[0].startswith(f"nnunet-gdla plan: {path} cannot be read (EOFError: ")


def test_whole_files_are_planned(volumes: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, shown = plan(capfd)
    assert code == 0
    assert not any("Using <class" in line for line in shown)


def test_files_that_do_not_fit_together_are_told_by_their_case(
    volumes: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = make_dataset(volumes.parent / "other", planes(1, np.int16, 1000), ["MR"], ".nii.gz", size=(3, 20, 20))
    (volumes / "labelsTr" / "case_1.nii.gz").write_bytes((other / "labelsTr" / "case_1.nii.gz").read_bytes())
    code, shown = plan(capfd)
    assert code == 1
    assert len(shown) == 1
    assert "labelsTr/case_1.nii.gz is 3 x 20 x 20" in shown[0]


def test_a_dataset_without_any_foreground_is_told_so(volumes: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for path in (volumes / "labelsTr").iterdir():
        mask = sitk.ReadImage(path)
        sitk.WriteImage(mask * 0, path)
    code, shown = plan(capfd)
    assert code == 1
    assert len(shown) == 1
    assert "of Dataset801_" in shown[0]
    assert "are 0 everywhere: planning needs a case with foreground" in shown[0]


@pytest.mark.parametrize("case", ["case_0", "case_1"])  # looked at in this process, and read by nnU-Net's
@pytest.mark.parametrize("size", [(4, 30, 20), (5, 40, 40)])
def test_a_mask_of_another_size_is_named_with_both(
    size: tuple[int, ...], case: str, volumes: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mask = volumes / "labelsTr" / f"{case}.nii.gz"
    sitk.WriteImage(sitk.GetImageFromArray(np.ones(size, np.uint8)), mask)
    code, shown = plan(capfd)
    assert code == 1
    sizes = f"{mask} is {size[0]} x {size[1]} x {size[2]}, {volumes}/imagesTr/{case}_0000.nii.gz is 4 x 30 x 32 (axes"
    assert [line.startswith(f"nnunet-gdla plan: {sizes}") for line in shown] == [True]
