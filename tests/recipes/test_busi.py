import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nnunet_gdla.errors import UserError
from tests.paths import nnunet_raw_folder
from tests.recipes.trees import Converted, blob, busi, picture, png, truncated


def read(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        assert image.mode == "L"
        return np.asarray(image)


def everywhere(dataset: Path, kind: str, name: str) -> Path:
    (path,) = (p for part in ("Tr", "Ts") if (p := dataset / f"{kind}{part}" / name).is_file())
    return path


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return busi(tmp_path / "down load (1)")


def test_real_images_put_back_into_the_public_layout_come_out_identical(tmp_path: Path, run_convert: Converted) -> None:
    real = nnunet_raw_folder() / "Dataset112_BUSI"
    names = []
    for image in sorted((real / "imagesTr").glob("*.png")):
        _, kind, number = image.name.removesuffix("_0000.png").split("_")
        names.append(f"busi_{kind}_{number}")
        old = tmp_path / "Dataset_BUSI_with_GT" / kind / f"{kind} ({int(number)}).png"
        old.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(image, old)
        png(old.with_name(f"{old.stem}_mask.png"), 255 * read(real / "labelsTr" / f"{names[-1]}.png"))
    assert len(names) == 98

    dataset = run_convert("busi", tmp_path / "Dataset_BUSI_with_GT", "-d", 112, "-np", 2)

    for name in names:
        for kind, file in (("images", f"{name}_0000.png"), ("labels", f"{name}.png")):
            ours, theirs = everywhere(dataset, kind, file), real / f"{kind}Tr" / file
            np.testing.assert_array_equal(read(ours), read(theirs), err_msg=file)
    description = json.loads((dataset / "dataset.json").read_text())
    wanted = json.loads((real / "dataset.json").read_text())
    assert description["labels"] == wanted["labels"]
    assert description["channel_names"] == wanted["channel_names"]
    fold = json.loads((dataset / "splits_final.json").read_text())[0]
    assert (len(fold["train"]), len(fold["val"]), len(list((dataset / "imagesTs").iterdir()))) == (78, 10, 10)


def test_several_masks_are_joined(source: Path, run_convert: Converted, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = blob(1), blob(8), blob(20)
    png(source / "benign" / "benign (2)_mask.png", first)
    png(source / "benign" / "benign (2)_mask_1.png", second)
    png(source / "benign" / "benign (2)_mask_2.png", third)
    dataset = run_convert("busi", source, "-d", 503)
    union = (first | second | third) // 255
    assert union.sum() > max(mask.sum() // 255 for mask in (first, second, third))
    np.testing.assert_array_equal(read(everywhere(dataset, "labels", "busi_benign_002.png")), union)
    assert "1 case: several masks, joined" in capsys.readouterr().out


def test_colour_and_alpha_copies_become_the_same_grey(
    source: Path, run_convert: Converted, capsys: pytest.CaptureFixture[str]
) -> None:
    grey = picture(77)
    png(source / "benign" / "benign (1).png", grey, mode="RGB")
    png(source / "benign" / "benign (3).png", picture(78), mode="RGBA")
    coloured = np.stack([grey, grey, 255 - grey], axis=2)
    png(source / "benign" / "benign (4).png", coloured)
    png(source / "benign" / "benign (4)_mask.png", blob(4), mode="RGBA")
    dataset = run_convert("busi", source, "-d", 503)
    np.testing.assert_array_equal(read(everywhere(dataset, "images", "busi_benign_001_0000.png")), grey)
    np.testing.assert_array_equal(read(everywhere(dataset, "images", "busi_benign_003_0000.png")), picture(78))
    luminance = np.asarray(Image.fromarray(coloured).convert("L"))
    np.testing.assert_array_equal(read(everywhere(dataset, "images", "busi_benign_004_0000.png")), luminance)
    np.testing.assert_array_equal(read(everywhere(dataset, "labels", "busi_benign_004.png")), blob(4) // 255)
    out = capsys.readouterr().out
    assert "2 cases: image stored as RGB\n" in out
    assert "1 case: image stored as RGBA" in out
    assert "1 case: coloured pixels, luminance taken" in out


@pytest.mark.parametrize(("values", "foreground"), [((0, 255), 2), ((0, 1), 2), ((0, 127), 0), ((0, 128), 2)])
def test_masks_of_any_white_are_cut_at_its_half(
    source: Path, run_convert: Converted, values: tuple[int, int], foreground: int
) -> None:
    mask = np.zeros((12, 16), dtype=np.uint8)
    mask[3, 3:5] = values[1]
    png(source / "benign" / "benign (1)_mask.png", mask)
    label = read(everywhere(run_convert("busi", source, "-d", 503), "labels", "busi_benign_001.png"))
    assert label.sum() == foreground
    assert set(np.unique(label)) <= {0, 1}


def test_smoothed_masks_are_counted(source: Path, run_convert: Converted, capsys: pytest.CaptureFixture[str]) -> None:
    mask = blob(3)
    mask[0, 0], mask[0, 1] = 100, 200
    png(source / "benign" / "benign (1)_mask.png", mask)
    dataset = run_convert("busi", source, "-d", 503)
    label = read(everywhere(dataset, "labels", "busi_benign_001.png"))
    assert (label[0, 0], label[0, 1]) == (0, 1)
    assert "1 case: mask with values between 0 and 255" in capsys.readouterr().out


def test_normal_images_stay_in_with_empty_masks(
    source: Path, run_convert: Converted, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = run_convert("busi", source, "-d", 503)
    assert not read(everywhere(dataset, "labels", "busi_normal_001.png")).any()
    out = capsys.readouterr().out
    assert "6 benign, 3 malignant, 2 normal; 0 images with several masks" in out
    assert "NOTE: the whole release of BUSI has 780, this copy 11" in out
    assert "2 cases: no foreground" in out
    assert "label 1 tumor: 315 voxels in 9 cases" in out
    assert "sizes: 12x16 (11)" in out


def test_everything_left_out_is_named_with_its_reason(
    source: Path, run_convert: Converted, capsys: pytest.CaptureFixture[str]
) -> None:
    (source / "benign" / "benign (1)_mask.png").unlink()
    (source / "benign" / "benign (2).png").unlink()
    png(source / "benign" / "benign (3)_mask.png", blob(1, 10, 16))
    truncated(source / "benign" / "benign (4).png")
    png(source / "benign" / "copy of benign (4).png", picture(3))
    png(source / "normal" / "benign (9).png", picture(4))
    (source / "readme.txt").write_text("hello")
    (source / ".DS_Store").write_text("junk")
    png(source.parent / "__MACOSX" / "Dataset_BUSI_with_GT" / "benign" / "._benign (5).png", picture(5))
    dataset = run_convert("busi", source.parent, "-d", 503)
    told = (dataset / "skipped_files.txt").read_text()
    for reason, name in {
        "no mask: benign (1)_mask.png is missing": "Dataset_BUSI_with_GT/benign/benign (1).png",
        "mask without its image": "Dataset_BUSI_with_GT/benign/benign (2)_mask.png",
        "mask benign (3)_mask.png is 10x16, the image is 12x16": "busi_benign_003",
        "not called NAME (k).png or NAME (k)_mask.png in the folder of its class": (
            "Dataset_BUSI_with_GT/benign/copy of benign (4).png\n  Dataset_BUSI_with_GT/normal/benign (9).png"
        ),
        "no file of the public layout": "Dataset_BUSI_with_GT/readme.txt",
        "left by an operating system or an unpacker": "Dataset_BUSI_with_GT/.DS_Store",
    }.items():
        assert f": {reason}\n" in told
        assert f"  {name}\n" in told
    assert "__MACOSX/Dataset_BUSI_with_GT/benign/._benign (5).png" in told
    assert "skipped 1: benign (4).png cannot be read: " in told
    assert "busi_benign_004" in told
    written = {path.name for part in ("Tr", "Ts") for path in (dataset / f"images{part}").iterdir()}
    assert written == {f"busi_benign_{k:03d}_0000.png" for k in (5, 6)} | {
        f"busi_{kind}_{k:03d}_0000.png" for kind, n in (("malignant", 3), ("normal", 2)) for k in range(1, n + 1)
    }
    out = capsys.readouterr().out
    assert told in out
    names = json.loads((dataset / "splits_final.json").read_text())[0]
    assert not {"busi_benign_003", "busi_benign_004"} & {*names["train"], *names["val"]}


def test_byte_equal_copies_stay_on_one_side(
    source: Path, run_convert: Converted, capsys: pytest.CaptureFixture[str]
) -> None:
    for k in (2, 3, 4, 5, 6):
        png(source / "benign" / f"benign ({k}).png", picture(7))
    dataset = run_convert("busi", source, "-d", 503)
    fold = json.loads((dataset / "splits_final.json").read_text())[0]
    test = {path.stem for path in (dataset / "labelsTs").glob("*.png")}
    copies = {f"busi_benign_{k:03d}" for k in (2, 3, 4, 5, 6)}
    assert [len(copies & set(part)) for part in (fold["train"], fold["val"], test)].count(0) == 2
    assert "4 images byte-equal to another" in capsys.readouterr().out


def test_square_images_as_the_paper_has_them(source: Path, run_convert: Converted) -> None:
    dataset = run_convert("busi", source, "-d", 503, "--size", 224)
    for kind in ("images", "labels"):
        assert all(read(path).shape == (224, 224) for path in dataset.glob(f"{kind}T*/*.png"))
    assert set(np.unique(read(next(dataset.glob("labelsT*/busi_benign_001.png"))))) == {0, 1}


def test_another_layout_is_refused_with_what_is_there(tmp_path: Path, run_convert: Converted) -> None:
    png(tmp_path / "flat" / "images" / "a b.png", picture(1))
    with pytest.raises(UserError, match=r"no folder benign, malignant or normal(?s:.*)1 \.png(?s:.*)images/a b\.png"):
        run_convert("busi", tmp_path / "flat", "-d", 503)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no files(?s:.*)\(empty\)"):
        run_convert("busi", tmp_path / "empty", "-d", 503)
    with pytest.raises(UserError, match="is not a folder; unpack"):
        run_convert("busi", tmp_path / "nowhere", "-d", 503)
    busi(tmp_path / "two" / "a")
    busi(tmp_path / "two" / "b")
    with pytest.raises(UserError, match="name one of them"):
        run_convert("busi", tmp_path / "two", "-d", 503)
