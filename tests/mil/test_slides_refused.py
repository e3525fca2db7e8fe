"""Files that are refused, and with which words."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.slides import Slide, read_slide
from nnunet_gdla.mil.slides.inspect import inspect_slide
from nnunet_gdla.mil.slides.slide import ReadOptions
from tests.mil.slide_files import Array, bag, grid, write_h5
from tests.unchecked import unchecked

XY = grid() * 512 + [1024, 2560]


def clam(path: Path, **changes: Any) -> Path:  # noqa: ANN401
    return write_h5(path / "a.h5", {"coords": XY, "features": bag(len(XY))} | changes)


def test_a_stated_stride_that_contradicts_the_coordinates_is_refused_naming_both(tmp_path: Path) -> None:
    data = {"coords": grid() * 448, "features": bag(30)}
    path = write_h5(tmp_path / "a.h5", data, on_file={"patch_size_level0": 256})
    with pytest.raises(UserError, match=r"patch_size_level0 256 makes the stride 256, .* are 448 apart.*stride=448"):
        read_slide(path)
    assert read_slide(path, stride=448).stride == 448
    with pytest.warns(UserWarning, match="448 apart"):
        assert read_slide(path, need_coords=False).stride == 448
    with pytest.warns(UserWarning, match="stride 256 was given, the coordinates look like 448"):
        assert read_slide(path, stride=256, allow_isolated=True).stride == 256


def test_a_thinned_lattice_keeps_the_stride_that_is_stated(tmp_path: Path) -> None:
    stated = {"patch_size_level0": 512}
    small = write_h5(tmp_path / "a.h5", {"coords": grid(4, 4) * 1024, "features": bag(16)}, on_file=stated)
    with pytest.warns(UserWarning, match="0% of 16 patches"):
        assert read_slide(small).stride == 512
    large = write_h5(tmp_path / "b.h5", {"coords": grid(6, 6) * 1024, "features": bag(36)}, on_file=stated)
    with pytest.raises(UserError, match="makes the stride 512, but neighbouring patches are 1024 apart"):
        read_slide(large)
    with pytest.warns(UserWarning, match="0% of 36 patches"):
        assert read_slide(large, allow_isolated=True).stride == 512
    dense = np.concatenate([grid(8, 8) * 1024, grid(3, 3) * 512 + 9000])
    mixed = write_h5(tmp_path / "c.h5", {"coords": dense, "features": bag(73)}, on_file=stated)
    assert read_slide(mixed).stride == 512


def test_damaged_files_are_one_sentence_wherever_the_damage_is(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("coords", data=XY, compression="gzip", chunks=(10, 2))
        file.create_dataset("features/uni", data=bag(30), compression="gzip", chunks=(10, 8))
    whole = path.read_bytes()
    rng, refused = np.random.default_rng(0), 0
    for _ in range(120):
        damaged = bytearray(whole)
        for place in rng.integers(0, min(len(whole), 6000), 3):
            damaged[place] = rng.integers(0, 256)
        path.write_bytes(bytes(damaged))
        facts = inspect_slide(path, ReadOptions())
        assert not facts.error or facts.error.startswith(str(path))
        refused += bool(facts.error)
    assert refused > 30


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"patch_size_level0": 0}, "patch_size_level0 0 is no distance"),
        ({"patch_size_level0": -512}, "patch_size_level0 -512 is no distance"),
        ({"patch_size_level0": "many"}, "attribute patch_size_level0 is 'many', expected one number"),
        ({"patch_size_level0": np.array([512, 256])}, "expected one number"),
        ({"patch_size_level0": 512, "overlap": 256, "patch_size": 256}, "less overlap 256 of 256 is no distance"),
    ],
)
def test_attributes_that_are_no_stride_are_refused(tmp_path: Path, attributes: dict[str, Any], message: str) -> None:
    path = write_h5(tmp_path / "a.h5", {"coords": XY, "features": bag(30)}, on_coords=attributes)
    with pytest.raises(UserError, match=message):
        read_slide(path)
    assert read_slide(path, stride=512).stride == 512


def test_an_unknown_unit_is_refused(tmp_path: Path) -> None:
    path = write_h5(tmp_path / "a.h5", {"coords": XY, "features": bag(30)}, on_file={"unit": "furlong"})
    with pytest.raises(UserError, match="coordinates are in 'furlong'; known units: cell, px, um"):
        read_slide(path)


def test_several_encoders_need_a_key_and_are_listed(tmp_path: Path) -> None:
    five = np.column_stack([XY, np.full((30, 2), 256), np.zeros(30)]).astype(np.int32)
    data = {"coords": five, "features/uni_v2": bag(30), "features/resnet50": bag(30)[:, :3]}
    path = write_h5(tmp_path / "a.h5", data, on_file={"patch_size_level0": 512})
    with pytest.raises(UserError, match="several encoders: resnet50, uni_v2; say which by feature_key"):
        read_slide(path)
    with pytest.raises(UserError, match="no features called 'gigapath'; feature_key can be: resnet50, uni_v2"):
        read_slide(path, feature_key="gigapath")
    for key in ("uni_v2", "features/uni_v2"):
        slide = read_slide(path, feature_key=key)
        assert (slide.feature_key, slide.encoder, slide.features.shape) == ("uni_v2", "uni_v2", (30, 8))
    assert read_slide(path, feature_key="resnet50").features.shape == (30, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": bag(30)[0]}, r"features \(8,\) is one vector for the slide"),
        ({"features": bag(30)[:0], "coords": XY[:0]}, r"features \(0, 8\) holds no patches"),
        ({"features": bag(30)[:29]}, r"features \(29, 8\) and coords \(30, 2\) differ.*29 and 30"),
        ({"features": bag(30)[None, None]}, r"has shape \(1, 1, 30, 8\); needed is"),
        ({"features": bag(60).reshape(2, 30, 8)}, r"has shape \(2, 30, 8\); needed is"),
        ({"features": bag(30)[:, :, None]}, r"has shape \(30, 8, 1\); needed is"),
        ({"features": np.float32(3)}, r"has shape \(\); needed is"),
        ({"features": h5py.Empty("f4")}, r"a\.h5: features is empty; extract"),
        ({"coords": XY[:, :1]}, r"coords \(30, 1\) int64 are no \(N, 2 or more\) numbers"),
        ({"coords": np.where(XY == 1024, np.nan, XY)}, r"coords of row 0 are \[nan, 2560.0\]"),
        ({"coords": XY * 1e300}, r"coords of row 0 are \[1.024e\+303, .*\], expected finite numbers"),
        ({"coords": XY.astype(np.uint64) + np.uint64(2**63)}, "coords of row 0 are .* expected finite numbers"),
        ({"coords": np.int64(3)}, r"coords \(\) int64 are no \(N, 2 or more\) numbers"),
        ({"coords": h5py.Empty("f4")}, r"coords \(\) float32 are no"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_slide(clam(tmp_path, **changes))


@pytest.mark.parametrize(
    ("features", "named"),
    [
        (bag(30).astype(int), "int64"),
        (np.ones((30, 8), np.uint8), "uint8"),
        (bag(30) > 0, "bool"),
        (bag(30).astype(complex), "complex128"),
        (np.full((30, 8), b"0.5"), "text, or rows of unequal length"),
    ],
)
def test_features_that_are_no_floating_point_numbers_are_refused_alike_everywhere(
    tmp_path: Path, features: Array, named: str
) -> None:
    path = clam(tmp_path, features=features)
    with pytest.raises(UserError, match=rf"a\.h5: features \(30, 8\) is {named}; features are floating") as caught:
        read_slide(path)
    assert inspect_slide(path, ReadOptions()).error == str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.ones(5, 3, dtype=torch.int32), r"the tensor \(5, 3\) is int32; features are floating"),
        (torch.ones(5, 3) > 0, "is bool; features are"),
        (torch.ones(5, 3, dtype=torch.complex64), "is complex64; features are"),
        (torch.ones(5), r"\(5,\) is one vector"),
        (torch.ones(5, 3, 1), r"has shape \(5, 3, 1\)"),
        (torch.ones(0, 3), "holds no patches"),
        (torch.ones(5, 3, device="meta"), "is float32 without values"),
        ({"features": torch.ones(5, 3)}, "holds a dict, expected"),
        (np.ones((5, 3)), "is no readable tensor file: it holds something else than tensors"),
    ],
)
def test_tensor_files_that_hold_no_patches_are_refused(tmp_path: Path, tensor: object, message: str) -> None:
    torch.save(tensor, tmp_path / "a.pt")
    with pytest.raises(UserError, match=message) as caught:
        read_slide(tmp_path / "a.pt", need_coords=False)
    assert str(caught.value).startswith(str(tmp_path / "a.pt"))


@pytest.mark.parametrize(
    ("features", "coords", "message"),
    [
        (bag(30), None, r"slide s: features are a numpy.ndarray \(30, 8\), needed is a torch tensor .*from_numpy"),
        ([[1.0]], None, "features are a builtins.list, needed"),
        (torch.ones(30, 8, dtype=torch.int64), None, r"features \(30, 8\) are torch.int64, needed are floating"),
        (torch.ones(1, 30, 8), None, r"features have shape \(1, 30, 8\), needed"),
        (torch.ones(0, 8), None, r"features have shape \(0, 8\), needed"),
        (torch.ones(30, 8), XY, r"coords are a numpy.ndarray \(30, 2\)"),
        (torch.ones(30, 8), torch.ones(29, 2), r"coords \(29, 2\) are no x and y for each row of features \(30, 8\)"),
    ],
)
def test_a_slide_made_by_hand_holds_tensors(features: Any, coords: Any, message: str) -> None:  # noqa: ANN401
    with unchecked(), pytest.raises(UserError, match=message):
        Slide("s", features, coords, 512.0, "px", Path("s.h5"), "features")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_features_that_are_not_finite_are_refused_by_row(tmp_path: Path, value: float, dtype: type) -> None:
    features = bag(30).astype(dtype)
    features[[3, 29], 5] = value
    with pytest.raises(UserError, match="NaN or infinite features in row 3, 29; extract"):
        read_slide(clam(tmp_path, features=features))


def test_rows_are_counted_through_all_pieces_of_a_large_file(tmp_path: Path) -> None:
    cells = grid(200, 100)
    features = np.ones((20000, 2), np.float32)
    features[[17000, 19999]] = np.nan
    data = {"coords": cells * 256, "features": features}
    with pytest.raises(UserError, match="features in row 17000, 19999; extract"):
        read_slide(write_h5(tmp_path / "a.h5", data))
    data["features"] = np.arange(40000, dtype=np.float32).reshape(20000, 2)
    np.testing.assert_array_equal(read_slide(write_h5(tmp_path / "a.h5", data)).features.numpy(), data["features"])


def test_what_an_unknown_layout_holds_is_listed(tmp_path: Path) -> None:
    path = write_h5(tmp_path / "a.h5", {"coords": XY, "embeddings": bag(30), "annots": np.array([b"slide"])})
    with pytest.raises(UserError, match=r"holds: annots \(1\), coords \(30, 2\), embeddings \(30, 8\).*embeddings are"):
        read_slide(path)
    assert read_slide(path, feature_key="embeddings").features.shape == (30, 8)
    nothing = write_h5(tmp_path / "b.h5", {"coords": XY})
    with pytest.raises(UserError, match=r"holds no patch features; it holds: coords \(30, 2\)"):
        read_slide(nothing)
    with h5py.File(tmp_path / "c.h5", "w"), pytest.raises(UserError, match="it holds: nothing"):
        read_slide(write_h5(tmp_path / "d.h5", {}))


def test_files_that_are_no_hdf5_are_one_sentence(tmp_path: Path) -> None:
    whole = clam(tmp_path).read_bytes()
    for name, data in (("empty", b""), ("text", b"hello"), ("cut", whole[: len(whole) // 2])):
        path = tmp_path / f"{name}.h5"
        path.write_bytes(data)
        with pytest.raises(UserError, match=rf"{name}.h5 \({len(data)} bytes\) is no readable HDF5 file"):
            read_slide(path)
    with pytest.raises(UserError, match="no such file"):
        read_slide(tmp_path / "nowhere.h5")
    for name in ("folder.h5", "folder.pt"):
        (tmp_path / name).mkdir()
        with pytest.raises(UserError, match=rf"{name} is a folder, not a file"):
            read_slide(tmp_path / name, need_coords=False)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"patch_size_level0": 512, "overlap": 256, "patch_size": 0}, "512 less overlap 256 of 0 is no distance"),
        ({"patch_size_level0": 512, "overlap": 512, "patch_size": 512}, "512 less overlap 512 of 512 is no distance"),
        (
            {"patch_size_level0": 0},
            "patch_size_level0 0 is no distance; give stride= .settings: data; with a trained model",
        ),
        ({"patch_size_level0": np.nan}, "attribute patch_size_level0 nan is no distance"),
        ({"patch_size_level0": "wide"}, "attribute patch_size_level0 is 'wide', expected one number"),
    ],
)
def test_attributes_that_state_no_distance_are_refused(
    tmp_path: Path, attributes: dict[str, Any], message: str
) -> None:
    path = write_h5(tmp_path / "a.h5", {"coords": XY, "features": bag(30)}, on_coords=attributes)
    with pytest.raises(UserError, match=message):
        read_slide(path)
    assert read_slide(path, stride=512).stride == 512


def test_coordinates_can_be_missing_only_where_they_are_not_needed(tmp_path: Path) -> None:
    path = write_h5(tmp_path / "a.h5", {"features": bag(30)})
    with pytest.raises(UserError, match="has no coordinates"):
        read_slide(path)
    slide = read_slide(path, need_coords=False, max_patches=4)
    assert (slide.coords, slide.stride, slide.unit, slide.features.shape) == (None, None, None, (4, 8))


def test_a_slide_whose_patches_are_alone_is_refused_and_a_small_one_warns(tmp_path: Path) -> None:
    large = clam(tmp_path)
    with pytest.raises(UserError, match=r"only 0% of 30 patches have a neighbour at stride 7 px; .* look like 512"):
        read_slide(large, stride=7)
    with pytest.warns(UserWarning, match="0% of 30 patches"), pytest.warns(UserWarning, match="look like 512"):
        assert read_slide(large, stride=7, allow_isolated=True).stride == 7
    small = clam(tmp_path, coords=XY[:19] * 3, features=bag(19))
    with pytest.warns(UserWarning, match="0% of 19 patches"), pytest.warns(UserWarning, match="look like 1536"):
        read_slide(small, stride=512)


@pytest.mark.parametrize("stride", [0.0, -1.0, float("nan"), float("inf")])
def test_a_given_stride_must_be_a_distance(tmp_path: Path, stride: float) -> None:
    with pytest.raises(UserError, match="must be a positive number"):
        read_slide(clam(tmp_path), stride=stride)
