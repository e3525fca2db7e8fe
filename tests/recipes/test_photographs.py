"""HAM10000 and PH2."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nnunet_gdla.errors import UserError
from tests.recipes.trees import Converted, blob, ham10000, ph2, picture, png

LESIONS = {f"HAM_{lesion:07d}": range(10 * lesion, 10 * lesion + 1 + lesion % 4) for lesion in range(1, 21)}


def parts_of(dataset: Path) -> list[set[str]]:
    fold = json.loads((dataset / "splits_final.json").read_text())[0]
    return [set(fold["train"]), set(fold["val"]), {path.stem for path in (dataset / "labelsTs").iterdir()}]


def test_photographs_of_a_lesion_stay_on_one_side(
    tmp_path: Path, run_convert: Converted, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = run_convert("ham10000", ham10000(tmp_path / "HAM", LESIONS), "-d", 504)
    parts = parts_of(dataset)
    for numbers in LESIONS.values():
        names = {f"ISIC_{number:07d}" for number in numbers}
        assert [len(names & part) for part in parts].count(0) == 2
    assert sum(map(len, parts)) == 50
    assert [abs(len(part) - share) < 4 for part, share in zip(parts, (35, 5, 10), strict=True)] == [True] * 3
    out = capsys.readouterr().out
    assert "20 lesions by HAM10000_metadata.csv" in out
    assert "paper-ratio, seed 0" in out
    description = json.loads((dataset / "dataset.json").read_text())
    assert description["channel_names"] == {"0": "R", "1": "G", "2": "B"}
    assert description["numTraining"] == len(parts[0] | parts[1]) == len(list((dataset / "imagesTr").iterdir()))


def test_jpg_becomes_png_with_the_pixels_that_it_decodes_to(tmp_path: Path, run_convert: Converted) -> None:
    source = ham10000(tmp_path / "HAM", {"a": [1], "b": [2], "c": [3], "d": [4]})
    dataset = run_convert("ham10000", source, "-d", 504)
    for number in range(1, 5):
        name = f"ISIC_{number:07d}"
        (image,), (label,) = dataset.glob(f"imagesT*/{name}_0000.png"), dataset.glob(f"labelsT*/{name}.png")
        (original,) = source.glob(f"*/{name}.jpg")
        np.testing.assert_array_equal(np.asarray(Image.open(image)), np.asarray(Image.open(original)))
        np.testing.assert_array_equal(np.asarray(Image.open(label)), blob(number) // 255)


def test_nested_folders_and_copies_of_a_mirror_are_understood(tmp_path: Path, run_convert: Converted) -> None:
    source = ham10000(tmp_path / "a" / "HAM10000 (mirror)", LESIONS)
    twice = source / "ham10000_images_part_1"
    twice.mkdir()
    (original,) = source.glob("HAM10000_images_part_1/ISIC_0000010.jpg")
    (twice / original.name).write_bytes(original.read_bytes())
    dataset = run_convert("ham10000", tmp_path / "a", "-d", 504)
    told = (dataset / "skipped_files.txt").read_text()
    assert "the same file as" in told
    assert told.count("ISIC_0000010.jpg") == 2


def test_two_different_files_of_one_name_are_refused(tmp_path: Path, run_convert: Converted) -> None:
    source = ham10000(tmp_path / "HAM", LESIONS)
    (source / "more").mkdir()
    Image.fromarray(picture(1)).save(source / "more" / "ISIC_0000010.jpg")
    with pytest.raises(UserError, match="have the same name and differ"):
        run_convert("ham10000", source, "-d", 504)


def test_missing_metadata_and_unknown_images_are_said(
    tmp_path: Path, run_convert: Converted, capsys: pytest.CaptureFixture[str]
) -> None:
    run_convert("ham10000", ham10000(tmp_path / "HAM", LESIONS, metadata=False), "-d", 504)
    assert "no HAM10000_metadata.csv: photographs of one lesion may land on both sides" in capsys.readouterr().out
    (tmp_path / "HAM" / "HAM10000_metadata").write_text("lesion_id\timage_id\nx\tISIC_0000010\n")
    run_convert("ham10000", tmp_path / "HAM", "-d", 504, "--overwrite")
    out = capsys.readouterr().out
    assert "50 lesions by HAM10000_metadata, kept together" in out
    assert "49 images not in HAM10000_metadata, each its own lesion: ISIC_0000011, " in out
    (tmp_path / "HAM" / "HAM10000_metadata").write_text("image_id,dx\n")
    with pytest.raises(UserError, match="has no column lesion_id"):
        run_convert("ham10000", tmp_path / "HAM", "-d", 504)


def test_ph2_images_and_masks(tmp_path: Path, run_convert: Converted, capsys: pytest.CaptureFixture[str]) -> None:
    source = ph2(tmp_path / "PH2 (download)")
    dataset = run_convert("ph2", source, "-d", 505, "-np", 2)
    assert [len(part) for part in parts_of(dataset)] == [4, 1, 5]
    for k in range(2, 12):
        (label,) = dataset.glob(f"labelsT*/IMD{k:03d}.png")
        (image,) = dataset.glob(f"imagesT*/IMD{k:03d}_0000.png")
        np.testing.assert_array_equal(np.asarray(Image.open(label)), blob(k) // 255)
        assert np.asarray(Image.open(image)).shape == (12, 16, 3)
    out = capsys.readouterr().out
    assert "skipped 10: not needed: colour regions of a lesion" in out
    assert "no file of the public layout\n  PH2Dataset/PH2_dataset.txt" in out


def test_ph2_pairs_that_are_incomplete_are_named(tmp_path: Path, run_convert: Converted) -> None:
    source = ph2(tmp_path / "PH2")
    inside = source / "PH2Dataset" / "PH2 Dataset images"
    (inside / "IMD002" / "IMD002_lesion" / "IMD002_lesion.bmp").unlink()
    (inside / "IMD003" / "IMD003_Dermoscopic_Image" / "IMD003.bmp").unlink()
    png(inside / "IMD004" / "IMD004_lesion" / "IMD004_lesion.bmp", blob(4, 8, 16))
    dataset = run_convert("ph2", inside, "-d", 505)
    told = (dataset / "skipped_files.txt").read_text()
    assert "no mask: IMD002_lesion.bmp is missing\n  IMD002/IMD002_Dermoscopic_Image/IMD002.bmp" in told
    assert "mask without its image\n  IMD003/IMD003_lesion/IMD003_lesion.bmp" in told
    assert "mask IMD004_lesion.bmp is 8x16, the image is 12x16\n  IMD004" in told
    assert sum(len(part) for part in parts_of(dataset)) == 7


def test_ph2_needs_its_layout(tmp_path: Path, run_convert: Converted) -> None:
    png(tmp_path / "x" / "IMD002.bmp", picture(1))
    with pytest.raises(UserError, match=r"there are 0 images and 0 masks of that form(?s:.*)1 \.bmp"):
        run_convert("ph2", tmp_path / "x", "-d", 505)
