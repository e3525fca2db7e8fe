import json
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from nnunet_gdla.errors import UserError
from tests.recipes.trees import Converted, acdc, nifti, truncated


def parts_of(dataset: Path) -> list[set[str]]:
    fold = json.loads((dataset / "splits_final.json").read_text())[0]
    test = {path.name.removesuffix(".nii.gz") for path in (dataset / "labelsTs").iterdir()}
    return [set(fold["train"]), set(fold["val"]), test]


def test_both_frames_of_a_patient_are_on_one_side(
    tmp_path: Path, run_convert: Converted, capsys: pytest.CaptureFixture[str]
) -> None:
    source = acdc(tmp_path / "ACDC (2017)")
    dataset = run_convert("acdc", source, "-d", 502, "-np", 2)
    parts = parts_of(dataset)
    assert [len(part) for part in parts] == [14, 2, 4]
    patients = [{name.split("_")[0] for name in part} for part in parts]
    assert [len(part) for part in patients] == [7, 1, 2]
    assert len(set.union(*patients)) == 10
    told = (dataset / "skipped_files.txt").read_text()
    assert (
        "skipped 4: of the folder testing, outside the paper's split; name it in --split\n  patient011_frame01" in told
    )
    assert "skipped 24: not needed: beside the labelled frames" in told
    out = capsys.readouterr().out
    assert "12 patients; all frames of a patient stay together" in out
    assert "spacing in mm: 1.5 x 1.4 x 8" in out
    assert "label 1 RV: 1,680 voxels in 20 cases" in out
    assert "sizes: 14x12x4 (20)" in out


def test_voxels_spacing_and_position_are_kept(tmp_path: Path, run_convert: Converted) -> None:
    source = acdc(tmp_path, training=3, testing=0)
    dataset = run_convert("acdc", source, "-d", 502)
    original = source / "training" / "patient001" / "patient001_frame01.nii.gz"
    (image,) = dataset.glob("imagesT*/patient001_frame01_0000.nii.gz")
    (label,) = dataset.glob("labelsT*/patient001_frame01.nii.gz")
    assert image.read_bytes() == original.read_bytes()
    written, theirs = nib.load(label), nib.load(original.with_name("patient001_frame01_gt.nii.gz"))
    np.testing.assert_array_equal(np.asarray(written.dataobj), np.asarray(theirs.dataobj))
    np.testing.assert_allclose(written.affine, nib.load(image).affine)
    assert written.get_data_dtype() == np.uint8


def test_a_split_of_ones_own_may_name_patients_and_the_testing_folder(tmp_path: Path, run_convert: Converted) -> None:
    source = acdc(tmp_path)
    split = tmp_path / "mine.json"
    names = {"train": [f"patient{k:03d}" for k in range(1, 9)], "val": ["patient009_frame01"], "test": ["patient012"]}
    split.write_text(json.dumps(names))
    dataset = run_convert("acdc", source, "-d", 502, "--split", split)
    assert [len(part) for part in parts_of(dataset)] == [16, 1, 2]
    assert "in no part of the split (your own, mine.json)" in (dataset / "skipped_files.txt").read_text()


def test_what_cannot_be_used_is_named(
    tmp_path: Path, run_convert: Converted, capsys: pytest.CaptureFixture[str]
) -> None:
    source = acdc(tmp_path, training=8, testing=0)
    inside = source / "training"
    frame = "patient001/patient001_frame01.nii.gz"
    (inside / "patient001" / "patient001_frame01_gt.nii.gz").unlink()
    truncated(inside / "patient002" / "patient002_frame01.nii.gz")
    truncated(inside / "patient003" / "patient003_frame01_gt.nii.gz")
    nifti(inside / "patient004" / "patient004_frame01_gt.nii.gz", np.zeros((14, 12, 3), dtype=np.uint8))
    nifti(inside / "patient005" / "patient005_frame01_gt.nii.gz", np.full((14, 12, 4), 4, dtype=np.uint8))
    nifti(inside / "patient006" / "patient006_frame01_gt.nii.gz", np.full((14, 12, 4), 0.5, dtype=np.float32))
    nifti(inside / "patient007" / "patient007_frame01_gt.nii.gz", np.ones((14, 12, 4), dtype=np.float32), (1, 1, 1))
    dataset = run_convert("acdc", source, "-d", 502)
    told = (dataset / "skipped_files.txt").read_text()
    assert f"frame without labels\n  training/{frame}" in told
    assert "patient002_frame01.nii.gz cannot be read: " in told
    assert "patient003_frame01_gt.nii.gz cannot be read: " in told
    assert "labels patient004_frame01_gt.nii.gz are (14, 12, 3), the image is (14, 12, 4)" in told
    assert "patient005_frame01_gt.nii.gz has labels that the release does not have: [4]" in told
    assert "patient006_frame01_gt.nii.gz has labels that are no whole numbers" in told
    out = capsys.readouterr().out
    assert "1 patient without exactly two labelled frames: patient001" in out
    assert "1 case: labels placed where their image is: their own header differs" in out
    assert sum(map(len, parts_of(dataset))) == 10
    for label in dataset.glob("labelsT*/*"):
        folder = label.parent.parent / label.parent.name.replace("labels", "images")
        image = folder / label.name.replace(".nii.gz", "_0000.nii.gz")
        np.testing.assert_allclose(nib.load(label).affine, nib.load(image).affine)


def test_another_layout_is_refused(tmp_path: Path, run_convert: Converted) -> None:
    nifti(tmp_path / "x" / "patient001" / "patient001_frame01.nii.gz", np.zeros((4, 4, 4), dtype=np.int16))
    with pytest.raises(UserError, match=r"0 frames and 0 labels(?s:.*)1 \.nii\.gz(?s:.*)patient001/patient"):
        run_convert("acdc", tmp_path / "x", "-d", 502)
