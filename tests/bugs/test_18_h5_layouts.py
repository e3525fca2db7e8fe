"""One tissue in the layouts of many tools: it loads the same everywhere, or one sentence says what has to be given.

Kinds of bug: a batch axis, half precision or unsigned coordinates that wrap, attributes as arrays or text, micrometres
or grid indices taken for pixels, a missing key guessed.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.slides import read_slide
from tests.mil.adapters_data import LOADER
from tests.mil.slide_files import Array, bag, grid, write_h5
from tests.paths import SHARED

STRIDE: Final = 512
MPP: Final = 0.25
CELLS: Final = grid(9, 7)[np.random.default_rng(0).random(63) > 0.25]
XY: Final = (CELLS * STRIDE + [1024, 2560]).astype(np.int64)
X: Final = bag(len(XY), 48)
FIVE: Final = np.column_stack([XY, np.full((len(XY), 2), 512), np.zeros(len(XY))]).astype(np.int32)

# data sets, attributes of coords, attributes of the file
SAME: Final[dict[str, tuple[dict[str, Array], dict[str, Any], dict[str, Any]]]] = {
    "atlaspatch_group": (
        {"coords": FIVE, "features/uni_v2": X, "features/resnet50": X[:, :16]},
        {},
        {"patch_size": 256, "patch_size_level0": 512, "target_magnification": 20},
    ),
    "clam_flat": ({"coords": XY, "features": X}, {"patch_level": 1, "patch_size": 256}, {}),
    "clam_coords_int32": ({"coords": XY.astype(np.int32), "features": X}, {}, {}),
    "trident_attrs": (
        {"coords": XY, "features": X},
        {
            "patch_size": 256,
            "patch_size_level0": 512,
            "level0_magnification": 40,
            "target_magnification": 20,
            "overlap": 0,
        },
        {},
    ),
    "batch_dim_1": ({"coords": XY[None], "features": X[None]}, {}, {}),
    "feats_only_batch_dim": ({"coords": XY, "features": X[None]}, {}, {}),
    "float16": ({"coords": XY, "features": X.astype(np.float16)}, {}, {}),
    "float64_coords_float": ({"coords": XY.astype(np.float64), "features": X.astype(np.float64)}, {}, {}),
    "wsinfer_xywh": (
        {"coords": FIVE[:, :4].astype(np.int64), "features": X},
        {"patch_level": 0, "patch_size": 512},
        {},
    ),
    "names_annots": ({"coords": XY, "embeddings": X, "annots": np.array([b"slide"])}, {}, {}),
    "list_attr_stride": ({"coords": XY, "features": X}, {"patch_size_level0": np.array([512])}, {}),
    "string_attr_stride": ({"coords": XY, "features": X}, {"patch_size_level0": "512"}, {}),
    "uint16_overflow_risk": ({"coords": XY.astype(np.uint16), "features": X}, {}, {}),
}
KEYS: Final = {"atlaspatch_group": "uni_v2", "names_annots": "embeddings"}


@pytest.mark.parametrize("name", SAME)
def test_layouts_load_identically(tmp_path: Path, name: str) -> None:
    data, on_coords, on_file = SAME[name]
    path = write_h5(tmp_path / f"{name}.h5", data, on_coords=on_coords, on_file=on_file)
    features, xy, stride = LOADER(path, feature_key=KEYS.get(name))
    assert features.dtype == np.float32
    kept = read_slide(path, feature_key=KEYS.get(name)).features.dtype
    assert kept == (torch.float16 if name == "float16" else torch.float32)
    np.testing.assert_allclose(features, X, atol=2e-3 if name == "float16" else 0)
    assert xy.dtype == np.int64
    np.testing.assert_array_equal(xy, XY)
    assert stride == STRIDE


def test_two_encoders_are_listed_where_no_key_is_given(tmp_path: Path) -> None:
    data, _, on_file = SAME["atlaspatch_group"]
    with pytest.raises(UserError, match="resnet50, uni_v2"):
        read_slide(write_h5(tmp_path / "a.h5", data, on_file=on_file))


def test_another_name_for_features_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="If embeddings are the features, give feature_key"):
        read_slide(write_h5(tmp_path / "a.h5", SAME["names_annots"][0]))


def test_micrometres_are_recognised_and_kept(tmp_path: Path) -> None:
    attributes = {"unit": "um", "tile_size_um": STRIDE * MPP, "tile_size_px": 224, "stamp_version": "2.1.0"}
    path = write_h5(tmp_path / "a.h5", {"coords": (XY * MPP).astype(np.float32), "feats": X}, on_file=attributes)
    slide = read_slide(path)
    assert (slide.unit, slide.stride) == ("um", STRIDE * MPP)
    assert slide.coords is not None
    np.testing.assert_array_equal(slide.coords.numpy(), XY * MPP)


def test_grid_indices_are_recognised(tmp_path: Path) -> None:
    slide = read_slide(write_h5(tmp_path / "a.h5", {"coords": CELLS, "features": X}))
    assert (slide.unit, slide.stride) == ("cell", 1.0)


def test_coordinates_under_other_names_are_refused_in_a_sentence(tmp_path: Path) -> None:
    path = write_h5(tmp_path / "a.h5", {"coords_y": XY[:, 1], "coords_x": XY[:, 0], "features": X})
    with pytest.raises(UserError, match=r"no data set coords; it holds: coords_x \(46\), coords_y \(46\), features"):
        read_slide(path)


def test_tensors_without_coordinates_go_only_without_neighbours(tmp_path: Path) -> None:
    torch.save(torch.from_numpy(X), tmp_path / "a.pt")
    with pytest.raises(UserError, match="correction: none"):
        read_slide(tmp_path / "a.pt")
    np.testing.assert_array_equal(read_slide(tmp_path / "a.pt", need_coords=False).features.numpy(), X)


FOLDER: Final = SHARED / "data" / "wsi" / "feature_h5"


@pytest.mark.parametrize("name", ["CMU-1-Small-Region", "tcga-cr-7395-01a-01-ts1"])
def test_real_slides_agree_in_every_layout(name: str) -> None:
    if not FOLDER.is_dir():
        pytest.skip(f"no folder {FOLDER} of real slides")
    trident, clam, stamp, atlas = (
        read_slide(FOLDER / f"{name}_128_{layout}.h5") for layout in ("trident", "clam", "stamp", "atlaspatch")
    )
    assert [slide.layout for slide in (trident, clam, stamp, atlas)] == ["trident", "clam", "stamp", "atlaspatch"]
    assert trident.coords is not None
    assert stamp.coords is not None
    for slide in (clam, atlas):
        assert slide.coords is not None
        assert torch.equal(slide.coords, trident.coords)
        assert (slide.stride, slide.unit) == (128.0, "px")
    assert torch.equal(stamp.coords, trident.coords * 0.5)
    assert (stamp.stride, stamp.unit) == (64.0, "um")
    assert torch.equal(clam.features, trident.features)
    torch.testing.assert_close(stamp.features.float(), trident.features, rtol=1e-3, atol=1e-3)
    assert atlas.features.shape == (len(trident.features), 1536)
    assert (atlas.features.dtype, atlas.feature_key) == (torch.float16, "handmade_1536")
