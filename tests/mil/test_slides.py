"""Reading one slide: what is kept as stored, and how stride, unit and layout are found."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.slides import read_slide
from nnunet_gdla.mil.slides.names import comparable_name, slide_id_of
from tests.mil.slide_files import bag, grid, write_h5

XY = grid() * 512 + [1024, 2560]


def clam(path: Path, **changes: Any) -> Path:  # noqa: ANN401
    return write_h5(path / "a.h5", {"coords": XY, "features": bag(len(XY))} | changes)


def test_rows_dtypes_and_names_are_those_of_the_file(tmp_path: Path) -> None:
    order = np.random.default_rng(1).permutation(len(XY))
    path = write_h5(tmp_path / "slide.v2.final.h5", {"coords": XY[order], "features": bag(len(XY)).astype(np.float16)})
    slide = read_slide(path)
    assert slide.slide_id == "slide.v2.final"
    assert slide.path == path
    assert slide.features.dtype == torch.float16
    np.testing.assert_array_equal(slide.features.numpy(), bag(len(XY)).astype(np.float16))
    assert slide.coords is not None
    assert slide.coords.dtype == torch.int64
    np.testing.assert_array_equal(slide.coords.numpy(), XY[order])
    assert (slide.stride, slide.unit, slide.layout, slide.feature_key) == (512.0, "px", "clam", "features")
    assert slide.notes == ("stride 512 px is inferred from the coordinates",)


@pytest.mark.parametrize("dtype", [np.float64, ">f4", ">f2"])
def test_other_float_types_become_float32_or_keep_their_width(tmp_path: Path, dtype: str) -> None:
    slide = read_slide(clam(tmp_path, features=bag(len(XY)).astype(dtype)))
    assert slide.features.dtype == (torch.float16 if np.dtype(dtype).itemsize == 2 else torch.float32)
    np.testing.assert_allclose(slide.features.numpy(), bag(len(XY)), atol=2e-3)


@pytest.mark.parametrize(
    ("attributes", "stride"),
    [
        ({"patch_size_level0": 512}, 512),
        ({"patch_size_level0": np.array([512])}, 512),
        ({"patch_size_level0": np.array([512, 512])}, 512),
        ({"patch_size_level0": "512"}, 512),
        ({"patch_size_level0": b"512"}, 512),
        ({"patch_size_level0": 512.0, "overlap": 0, "patch_size": 256}, 512),
        # 64 of 256 pixels overlap, each worth two of level 0: 512 - 128 = 384 apart
        ({"patch_size_level0": 512, "overlap": 64, "patch_size": 256}, 384),
        ({"patch_size_level0": np.array([512]), "overlap": "64", "patch_size": np.array(256)}, 384),
    ],
)
@pytest.mark.parametrize("where", ["on_coords", "on_file"])
def test_stride_attributes(tmp_path: Path, attributes: dict[str, Any], stride: int, where: str) -> None:
    data = {"coords": grid() * stride + 7, "features": bag(30)}
    slide = read_slide(write_h5(tmp_path / "a.h5", data, **{where: attributes}))
    assert slide.stride == pytest.approx(stride)
    assert not slide.warnings


def test_a_stated_stride_off_by_rounding_is_taken_where_it_does_not_drift(tmp_path: Path) -> None:
    data = {"coords": np.rint(grid() * 511.4).astype(int), "features": bag(30)}
    assert read_slide(write_h5(tmp_path / "a.h5", data, on_file={"patch_size_level0": 512})).stride == 512
    wide = {"coords": np.rint(grid(400, 2) * 511.4).astype(int), "features": bag(800)}
    slide = read_slide(write_h5(tmp_path / "b.h5", wide, on_file={"patch_size_level0": 512}))
    assert slide.stride == pytest.approx(511.4, abs=0.01)
    assert any("taken from the coordinates" in note for note in slide.notes)


def test_micrometres_stay_micrometres(tmp_path: Path) -> None:
    data = {"coords": (XY * 0.25).astype(np.float32), "feats": bag(30).astype(np.float16)}
    attributes = {"unit": "um", "tile_size_um": 128.0, "tile_size_px": 224}
    slide = read_slide(write_h5(tmp_path / "a.h5", data, on_file=attributes))
    assert (slide.unit, slide.stride, slide.layout) == ("um", 128.0, "stamp")
    assert slide.coords is not None
    assert slide.coords.dtype == torch.float32
    np.testing.assert_array_equal(slide.coords.numpy(), data["coords"])


def test_an_old_stamp_file_without_unit_is_told_by_its_tiles(tmp_path: Path) -> None:
    attributes = {"tile_size_um": 256.0, "tile_size_px": 224}
    in_um = write_h5(tmp_path / "a.h5", {"coords": grid() * 256.0, "feats": bag(30)}, on_file=attributes)
    in_px = write_h5(tmp_path / "b.h5", {"coords": grid() * 224, "feats": bag(30)}, on_file=attributes)
    alone = write_h5(tmp_path / "c.h5", {"coords": np.zeros((1, 2)), "feats": bag(1)}, on_file=attributes)
    assert (read_slide(in_um).unit, read_slide(in_px).unit) == ("um", "px")
    with pytest.raises(UserError, match="does not say the unit of coords; give unit="):
        read_slide(alone)
    assert read_slide(alone, unit="um").stride == 256


def test_row_and_column_numbers_are_recognised(tmp_path: Path) -> None:
    slide = read_slide(clam(tmp_path, coords=grid()))
    assert (slide.stride, slide.unit) == (1.0, "cell")
    assert read_slide(clam(tmp_path, coords=grid()), stride=1).unit == "cell"
    stated = write_h5(tmp_path / "b.h5", {"coords": grid(), "features": bag(30)}, on_file={"patch_size_level0": 512})
    with pytest.raises(UserError, match="makes the stride 512, but neighbouring patches are 1 apart"):
        read_slide(stated)
    assert read_slide(stated, stride=1).unit == "cell"


def test_a_single_encoder_in_a_group_needs_no_key(tmp_path: Path) -> None:
    slide = read_slide(write_h5(tmp_path / "a.h5", {"coords": XY, "features/uni_v2": bag(30)}))
    assert (slide.layout, slide.feature_key) == ("atlaspatch", "uni_v2")


def test_tensor_files(tmp_path: Path) -> None:
    path = tmp_path / "a.b.pt"
    torch.save(torch.from_numpy(bag(30))[None].half(), path)
    with pytest.raises(UserError, match="has no coordinates; give the"):
        read_slide(path)
    slide = read_slide(path, need_coords=False)
    assert (slide.slide_id, slide.layout, slide.features.dtype, slide.features.shape) == (
        "a.b",
        "pt",
        torch.float16,
        (30, 8),
    )
    for content, message in (
        ({"a": 1}, "holds a dict"),
        (torch.ones(3, dtype=torch.int64), "is int64; features are floating point"),
        (torch.full((2, 2), torch.nan), "NaN or infinite features in row 0, 1"),
        (torch.ones(3), "one vector for the slide"),
    ):
        torch.save(content, path)
        with pytest.raises(UserError, match=message):
            read_slide(path, need_coords=False)
    path.write_bytes(b"no tensor")
    with pytest.raises(UserError, match="is no readable tensor file"):
        read_slide(path, need_coords=False)


def test_a_single_patch_and_two_far_ones_load(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="no stride can be seen"):
        slide = read_slide(clam(tmp_path, coords=XY[:1], features=bag(1)))
    assert slide.stride == 1
    far = np.array([[0, 0], [4601, 3583]])
    with pytest.warns(UserWarning, match="no stride can be seen|0% of 2 patches"):
        read_slide(clam(tmp_path, coords=far, features=bag(2)))


def test_a_patch_width_is_the_stride_where_coordinates_do_not_tell(tmp_path: Path) -> None:
    xywh = np.array([[100, 200, 350, 350]])
    slide = read_slide(clam(tmp_path, coords=xywh, features=bag(1)))
    assert (slide.layout, slide.stride) == ("wsinfer", 350)
    data = {"coords": XY[:1], "features": bag(1)}
    attributes = {"patch_size": 256, "patch_level": 1, "downsample": np.array([4.0, 4.0])}
    assert read_slide(write_h5(tmp_path / "b.h5", data, on_coords=attributes)).stride == 1024


def test_a_cap_keeps_rows_in_coordinate_order(tmp_path: Path) -> None:
    order = np.random.default_rng(0).permutation(30)
    slide = read_slide(clam(tmp_path, coords=XY[order], features=bag(30)[order]), max_patches=20)
    assert slide.coords is not None
    kept = slide.coords.numpy()
    np.testing.assert_array_equal(kept, kept[np.lexsort((kept[:, 1], kept[:, 0]))])
    rows = [np.flatnonzero((xy == XY).all(1))[0] for xy in kept]
    np.testing.assert_array_equal(slide.features.numpy(), bag(30)[rows])
    assert len(read_slide(clam(tmp_path), max_patches=30).features) == 30
    for cap in (0, -1):
        with pytest.raises(UserError, match="keeps nothing"):
            read_slide(clam(tmp_path), max_patches=cap)


@pytest.mark.parametrize(
    ("text", "exact", "loose"),
    [
        ("TCGA-1.A4-B.svs.h5", "TCGA-1.A4-B.svs", "TCGA-1.A4-B"),
        ("a/b/slide.v2.final.hdf5", "slide.v2.final", "slide.v2.final"),
        ("C:\\x\\a.SVS", "C:\\x\\a.SVS", "a"),
        ("a.ome.tiff", "a.ome.tiff", "a"),
        ("1e5", "1e5", "1e5"),
        (".h5", ".h5", ".h5"),
        ("U\u0308.pt", "\u00dc", "\u00dc"),
    ],
)
def test_names(text: str, exact: str, loose: str) -> None:
    assert slide_id_of(text) == exact
    assert comparable_name(text) == loose
