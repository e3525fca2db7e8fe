"""Masks of every format are read as they were written; what is no mask is refused by name."""

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import numpy.typing as npt
import pytest
import SimpleITK as sitk
import tifffile
from nnunetv2.imageio.reader_writer_registry import LIST_OF_IO_CLASSES
from PIL import Image

from nnunet_gdla.errors import UserError
from nnunet_gdla.evaluation.masks import ENDINGS, check_same_grid, list_masks, read_mask
from tests.evaluation.mask_files import SPACING, blob, write_mask

VOLUMES = (".nii.gz", ".nii", ".nrrd", ".mha", ".gipl", ".tif", ".tiff")
PICTURES = (".png", ".bmp", ".tif", ".nii.gz", ".mha")


def random_labels(shape: tuple[int, ...], dtype: npt.DTypeLike = np.uint8) -> npt.NDArray[Any]:
    return np.random.default_rng(0).choice(np.array([0, 1, 2, 200], dtype=dtype), shape)


def test_every_ending_of_nnunet_is_known() -> None:
    assert {ending for reader in LIST_OF_IO_CLASSES for ending in reader.supported_file_endings} <= set(ENDINGS)


@pytest.mark.parametrize("ending", VOLUMES)
def test_volumes(tmp_path: Path, ending: str) -> None:
    labels = random_labels((3, 5, 7))
    write_mask(tmp_path / f"case{ending}", labels)
    mask = read_mask(tmp_path / f"case{ending}")
    np.testing.assert_array_equal(mask.labels, labels)
    assert mask.spacing == pytest.approx(SPACING)


@pytest.mark.parametrize("ending", PICTURES)
def test_pictures(tmp_path: Path, ending: str) -> None:
    labels = random_labels((6, 9))
    write_mask(tmp_path / f"case{ending}", labels)
    mask = read_mask(tmp_path / f"case{ending}")
    np.testing.assert_array_equal(mask.labels, labels[None])
    assert (mask.spacing is None) == (ending in {".png", ".bmp", ".tif"})


@pytest.mark.parametrize("dtype", [np.uint16, np.int16, np.int64, np.float32, np.float64])
def test_whole_numbers_of_any_type(tmp_path: Path, dtype: npt.DTypeLike) -> None:
    """Many tools write labels as floating point numbers, and nnU-Net trains on them."""
    labels = random_labels((3, 4, 5), dtype)
    path = tmp_path / "case.nii.gz"
    nibabel.save(nibabel.Nifti1Image(labels.T, np.eye(4), dtype=dtype), path)
    mask = read_mask(path)
    assert mask.labels.dtype == np.uint8
    np.testing.assert_array_equal(mask.labels, labels)


def test_sixteen_bits_and_black_and_white(tmp_path: Path) -> None:
    deep = np.array([[0, 300], [65535, 1]], dtype=np.uint16)
    write_mask(tmp_path / "deep.png", deep)
    np.testing.assert_array_equal(read_mask(tmp_path / "deep.png").labels[0], deep)
    bits = np.array([[True, False], [False, True]])
    Image.fromarray(bits).save(tmp_path / "bits.png")
    np.testing.assert_array_equal(read_mask(tmp_path / "bits.png").labels[0], bits)


def test_a_palette_of_greys_is_grey(tmp_path: Path) -> None:
    image = Image.fromarray(np.array([[0, 1], [1, 0]], dtype=np.uint8)).convert("P")
    image.putpalette([0, 0, 0, 2, 2, 2])
    image.save(tmp_path / "case.png")
    np.testing.assert_array_equal(read_mask(tmp_path / "case.png").labels[0], [[0, 2], [2, 0]])


def test_units_of_nifti_are_heeded(tmp_path: Path) -> None:
    image = nibabel.Nifti1Image(blob((4, 4, 4)), np.diag([500, 500, 2000, 1.0]))
    image.header.set_xyzt_units("micron")
    nibabel.save(image, tmp_path / "case.nii.gz")
    assert read_mask(tmp_path / "case.nii.gz").spacing == pytest.approx((2.0, 0.5, 0.5))


def test_a_trailing_axis_of_one_is_dropped(tmp_path: Path) -> None:
    nibabel.save(nibabel.Nifti1Image(blob((5, 4, 3))[..., None], np.eye(4)), tmp_path / "case.nii.gz")
    assert read_mask(tmp_path / "case.nii.gz").labels.shape == (3, 4, 5)


def write_colour(path: Path) -> None:
    Image.fromarray(np.zeros((4, 5, 3), dtype=np.uint8)).save(path)


def write_transparent(path: Path) -> None:
    Image.fromarray(np.zeros((4, 5, 4), dtype=np.uint8)).save(path)


def write_palette(path: Path) -> None:
    image = Image.fromarray(np.ones((4, 5), dtype=np.uint8)).convert("P")
    image.putpalette([0, 0, 0, 255, 0, 0] + [0, 90, 0] * 254)
    image.save(path)


def write_colour_tiff(path: Path) -> None:
    tifffile.imwrite(path, np.zeros((4, 5, 3), dtype=np.uint8), photometric="rgb")


def write_vector(path: Path) -> None:
    sitk.WriteImage(sitk.GetImageFromArray(np.zeros((3, 4, 5, 2), dtype=np.uint8), isVector=True), str(path))


def write_series(path: Path) -> None:
    nibabel.save(nibabel.Nifti1Image(np.zeros((3, 4, 5, 2), dtype=np.uint8), np.eye(4)), path)


def write_colour_nifti(path: Path) -> None:
    colours = np.zeros((3, 4, 5), dtype=[("R", "u1"), ("G", "u1"), ("B", "u1")])
    nibabel.save(nibabel.Nifti1Image(colours, np.eye(4)), path)


def write_probabilities(path: Path) -> None:
    nibabel.save(nibabel.Nifti1Image(np.full((3, 4, 5), 0.25, dtype=np.float32), np.eye(4)), path)


def write_nan(path: Path) -> None:
    nibabel.save(nibabel.Nifti1Image(np.full((3, 4, 5), np.nan, dtype=np.float32), np.eye(4)), path)


def write_float_tiff(path: Path) -> None:
    tifffile.imwrite(path, np.full((4, 5), 0.5, dtype=np.float32))


def write_negative(path: Path) -> None:
    nibabel.save(nibabel.Nifti1Image(np.full((3, 4, 5), -1, dtype=np.int16), np.eye(4)), path)


def write_rubbish(path: Path) -> None:
    path.write_bytes(b"no image at all")


def write_half(path: Path) -> None:
    write_mask(path, random_labels((200, 300) if path.suffix == ".png" else (20, 30, 40)))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def write_wrong_type(path: Path) -> None:
    write_mask(path, blob((4, 5, 6)))
    content = bytearray(path.read_bytes())
    content[70:72] = (146).to_bytes(2, "little")  # no number of a NIfTI type
    path.write_bytes(content)


def write_no_size(path: Path) -> None:
    write_mask(path, blob((4, 5, 6)))
    path.with_suffix(".json").write_text('{"spacing": [1, 0, 1]}')


def write_wrong_size(path: Path) -> None:
    write_mask(path, blob((4, 5, 6)))
    path.with_suffix(".json").write_text('{"spacing": 3}')


@pytest.mark.parametrize(
    ("ending", "write", "reason"),
    [
        (".png", write_colour, r"colour image \(RGB\)"),
        (".png", write_transparent, r"colour image \(RGBA\)"),
        (".png", write_palette, r"colour image \(P\)"),
        (".bmp", write_colour, "colour image"),
        (".tif", write_colour_tiff, "colour image"),
        (".nrrd", write_vector, "2 values a voxel"),
        (".nii.gz", write_series, "array of 2 x 5 x 4 x 3"),
        (".nii.gz", write_colour_nifti, "colour image"),
        (".nii.gz", write_probabilities, "holds 0.25"),
        (".nii.gz", write_nan, "holds nan"),
        (".tif", write_float_tiff, "holds 0.5"),
        (".nii.gz", write_negative, "values from -1 to -1"),
        (".png", write_rubbish, "cannot be read"),
        (".tif", write_rubbish, "cannot be read"),
        (".nii.gz", write_rubbish, "cannot be read"),
        (".mha", write_rubbish, "cannot be read"),
        (".nii.gz", write_half, "cannot be read"),
        (".nii", write_half, "cannot be read"),
        (".nrrd", write_half, "cannot be read"),
        (".png", write_half, "cannot be read"),
        (".gipl", write_half, "cannot be read"),
        (".tif", write_half, "cannot be read"),
        (".nii", write_wrong_type, "cannot be read"),
        (".tif", write_no_size, "voxel size"),
        (".tif", write_wrong_size, "three numbers"),
    ],
)
def test_what_is_no_mask_is_refused_by_name(tmp_path: Path, ending: str, write: Any, reason: str) -> None:  # noqa: ANN401
    path = tmp_path / f"case{ending}"
    write(path)
    with pytest.raises(UserError, match=reason) as caught:
        read_mask(path)
    assert str(caught.value).count(f"{path.stem}.") == 1
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_cut_short_is_refused_wherever_it_is_cut(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"case{ending}"
    write_mask(path, random_labels((200, 300) if ending in (".png", ".bmp") else (5, 20, 30)))
    whole = path.read_bytes()
    for part in range(25):
        path.write_bytes(whole[: len(whole) * part // 25])
        with pytest.raises(UserError) as caught:
            read_mask(path)
        assert str(caught.value).count(path.name) == 1
        assert "No such file" not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_folders_list_masks_by_case(tmp_path: Path) -> None:
    for name in ("b.1.nii.gz", "a.PNG", "c.tif"):
        (tmp_path / name).touch()
    for name in ("._b.nii.gz", "dataset.json", "a.npz", "c.json", ".DS_Store", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "folder.png").mkdir()
    assert list(list_masks(tmp_path)) == ["a", "b.1", "c"]
    (tmp_path / "a.nii.gz").touch()
    with pytest.raises(UserError, match="two masks of one case"):
        list_masks(tmp_path)


def test_folders_without_masks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no masks"):
        list_masks(tmp_path)
    with pytest.raises(UserError, match="not a folder"):
        list_masks(tmp_path / "missing")


def test_grids_are_compared(tmp_path: Path) -> None:
    def written(name: str, shape: tuple[int, ...], spacing: tuple[float, ...] = SPACING) -> Any:  # noqa: ANN401
        write_mask(tmp_path / name, blob(shape), spacing)
        return read_mask(tmp_path / name)

    truth = written("truth.nii.gz", (4, 5, 6))
    assert check_same_grid(written("a.nii.gz", (4, 5, 6)), truth) is None
    assert check_same_grid(written("a.nrrd", (4, 5, 6)), truth) is None
    with pytest.raises(UserError, match=r"b\.nii\.gz is 4 x 6 x 5, but .*truth\.nii\.gz is 4 x 5 x 6"):
        check_same_grid(written("b.nii.gz", (4, 6, 5)), truth)
    with pytest.raises(UserError, match=r"c\.nii\.gz has voxels of 3 x 0\.5 x 0\.5 mm, but"):
        check_same_grid(written("c.nii.gz", (4, 5, 6), (3.0, 0.5, 0.5)), truth)
    picture, slice_ = written("d.png", (5, 6)), written("e.nii.gz", (1, 5, 6), (9.0, 0.5, 0.75))
    assert check_same_grid(picture, slice_) is None
    nibabel.save(nibabel.Nifti1Image(blob((4, 5, 6)).T, np.diag([-0.75, 0.5, 3.0, 1.0])), tmp_path / "f.nii.gz")
    remark = check_same_grid(read_mask(tmp_path / "f.nii.gz"), truth)
    assert remark is not None
    assert "f.nii.gz: origin or direction" in remark
