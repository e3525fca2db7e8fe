import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil import figures
from nnunet_gdla.mil.bundle import load_bundle, save_bundle
from nnunet_gdla.mil.bundle_info import BundleInfo
from nnunet_gdla.mil.commands.heatmap import explain_slide, run
from nnunet_gdla.mil.heatmap import percentiles, score_slide
from nnunet_gdla.mil.heatmap_draw import Places, place_patches, uncovered_tissue, write_geojson
from nnunet_gdla.mil.models import build_model
from nnunet_gdla.mil.slides import read_slide
from nnunet_gdla.mil.synthetic import TissueModel, make_cohort
from nnunet_gdla.mil.thumbnail import SlideImage, _bounds, find_image, open_slide_image
from tests.paths import SHARED

STRIDE = 16  # pictures stay small
SMALL = {"width": 12, "depth": 3, "num_heads": 2, "num_landmarks": 4}
WSI = SHARED / "data" / "wsi"
needs_wsi = pytest.mark.skipif(not WSI.is_dir(), reason=f"no real slides in {WSI}")


@pytest.fixture(autouse=True)
def _coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "DPI", 30)


def make_bundle(folder: Path, in_dim: int, name: str = "slide_transformer", **changes: Any) -> Path:  # noqa: ANN401
    kwargs = SMALL if name == "slide_transformer" else {}
    model = build_model(name, in_dim, 2, **kwargs)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)  # gates too: at their start they are all zero
    info = BundleInfo(
        **{
            "task": "classification",
            "model": name,
            "model_kwargs": kwargs,
            "in_dim": in_dim,
            "num_outputs": 2,
            "classes": ("benign", "tumour"),
            "needs_coords": model.needs_coords,
        }
        | changes
    )
    save_bundle(folder, model, info)
    return folder


def arguments(**changes: Any) -> argparse.Namespace:  # noqa: ANN401
    plain = {"slide": None, "geojson": False, "top": None, "percentile": 99.0, "mpp": None, "device": "auto"}
    return argparse.Namespace(**plain | changes)


@pytest.fixture
def slides(tmp_path: Path) -> Path:
    return make_cohort(tmp_path / "cohort", slides=2, tissue=TissueModel(stride=STRIDE)).features


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "bundle", 32)


def picture(path: Path, features: Path) -> Path:
    coords = read_slide(features).coords.numpy()
    width, height = (coords.max(0) + STRIDE).tolist()
    Image.new("RGB", (width, height), "pink").save(path)
    return path


def test_values_are_those_of_the_model_in_file_order(tmp_path: Path, slides: Path, bundle: Path) -> None:
    path = slides / "slide_000.h5"
    loaded, slide = load_bundle(bundle), read_slide(path)
    explain_slide(loaded, path, tmp_path / "out")
    explained = loaded.model.explain(slide.features[None], slide.coords[None], slide.stride)
    table = pd.read_csv(tmp_path / "out" / "slide_000.csv")
    np.testing.assert_array_equal(table[["x", "y"]].to_numpy(), slide.coords.numpy())
    np.testing.assert_array_equal(table["row"], np.arange(len(table)))
    np.testing.assert_allclose(table["attention"], explained.attention.mean(0).numpy(), rtol=1e-5, atol=1e-8)
    assert [name for name in table if name.startswith("beta")] == ["beta_block0", "beta_block1"]
    with h5py.File(tmp_path / "out" / "slide_000.h5") as file:
        np.testing.assert_allclose(file["attention"][:], explained.attention.mean(0).numpy(), rtol=1e-5, atol=1e-8)
        for block, beta in explained.beta.items():
            np.testing.assert_allclose(file[f"beta/block{block}"][:], beta.numpy(), rtol=1e-5, atol=1e-7)
            np.testing.assert_allclose(table[f"beta_block{block}"], beta.mean(0).numpy(), rtol=1e-4, atol=1e-6)
        assert file.attrs["prob_benign"] + file.attrs["prob_tumour"] == pytest.approx(1)
        assert file["coords"].attrs["stride"] == STRIDE


def test_a_cap_leaves_unseen_patches_empty(tmp_path: Path, slides: Path) -> None:
    bundle = make_bundle(tmp_path / "capped", 32, max_patches=40)
    scores = score_slide(load_bundle(bundle), slides / "slide_000.h5")
    assert len(scores.attention) == len(read_slide(slides / "slide_000.h5").features)
    assert np.isfinite(scores.attention).sum() == 40
    assert (np.isfinite(scores.beta[0]).all(0) == np.isfinite(scores.attention)).all()
    explain_slide(load_bundle(bundle), slides / "slide_000.h5", tmp_path / "out", geojson=True)
    assert len(json.loads((tmp_path / "out" / "slide_000.geojson").read_text())["features"]) == 40


def test_geojson_is_what_qupath_reads(tmp_path: Path, slides: Path, bundle: Path) -> None:
    explain_slide(load_bundle(bundle), slides / "slide_001.h5", tmp_path / "out", geojson=True)
    text = (tmp_path / "out" / "slide_001.geojson").read_text()
    tree = json.loads(text, parse_constant=pytest.fail)
    slide = read_slide(slides / "slide_001.h5")
    assert tree["type"] == "FeatureCollection"
    assert len(tree["features"]) == len(slide.features)
    for place, feature in zip(slide.coords.tolist(), tree["features"], strict=True):
        (ring,) = feature["geometry"]["coordinates"]
        assert feature["type"] == "Feature"
        assert feature["geometry"]["type"] == "Polygon"
        assert ring[0] == ring[-1] == place
        assert len(ring) == 5
        assert np.ptp(ring, axis=0).tolist() == [STRIDE, STRIDE]
        assert set(feature["properties"]["measurements"]) == {
            "attention",
            "attention percentile",
            "beta_block0",
            "beta_block1",
        }


def test_folder_with_pictures_top_tiles_and_geojson(tmp_path: Path, slides: Path, bundle: Path) -> None:
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for path in sorted(slides.iterdir()):
        picture(pictures / f"{path.stem}.png", path)
    given = arguments(features=str(slides), model=str(bundle), out=str(tmp_path / "out"), slide=str(pictures))
    assert run(argparse.Namespace(**vars(given) | {"top": 4, "geojson": True})) == 0
    names = {f"slide_00{place}{end}" for place in (0, 1) for end in (".h5", ".csv", ".png", ".geojson", "_top.png")}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names


def test_a_missing_picture_is_named_before_anything_is_drawn(tmp_path: Path, slides: Path, bundle: Path) -> None:
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    picture(pictures / "slide_000.png", slides / "slide_000.h5")
    given = {"features": str(slides), "model": str(bundle), "out": str(tmp_path / "out")}
    with pytest.raises(UserError, match=r"no image called slide_001 \(1 of 2 slides\)"):
        run(arguments(**given, slide=str(pictures)))
    assert not (tmp_path / "out").exists()


def test_a_picture_of_another_name_is_drawn_with_a_warning(
    tmp_path: Path, slides: Path, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = picture(tmp_path / "other.png", slides / "slide_000.h5")
    given = {"features": str(slides / "slide_000.h5"), "model": str(bundle), "out": str(tmp_path / "out")}
    run(arguments(**given, slide=str(other)))
    assert capsys.readouterr().out.startswith("WARN: the image is other.png, the slide slide_000: drawn all the same")
    assert (tmp_path / "out" / "slide_000.png").is_file()
    run(arguments(**given, slide=str(picture(tmp_path / "slide_000.png", slides / "slide_000.h5"))))
    assert "WARN" not in capsys.readouterr().out


def test_wrong_uses_are_refused_with_the_reason(tmp_path: Path, slides: Path, bundle: Path) -> None:
    out = str(tmp_path / "out")
    one = {"features": str(slides / "slide_000.h5"), "model": str(bundle), "out": out}
    tiny = tmp_path / "tiny.png"
    Image.new("RGB", (50, 50)).save(tiny)
    for changes, message in (
        ({"top": 4}, "--top reads tiles from the slide"),
        ({"top": -1}, "--top -1"),
        ({"top": 0}, "--top 0 shows nothing"),
        ({"percentile": 0.0}, "--percentile 0"),
        ({"features": str(tmp_path / "none")}, "no feature file"),
        ({"features": str(slides), "slide": str(tiny)}, "is one image"),
        ({"slide": str(tmp_path / "none.svs")}, "no slide image"),
        ({"slide": str(slides)}, "holds no image called slide_000"),
        ({"slide": str(tiny)}, "only 50 x 50 pixels"),
    ):
        with pytest.raises(UserError, match=message):
            run(arguments(**one | changes))


def test_a_model_of_another_width_is_refused(tmp_path: Path, slides: Path) -> None:
    bundle = make_bundle(tmp_path / "wide", 64)
    with pytest.raises(UserError, match="32 wide, the model takes 64"):
        score_slide(load_bundle(bundle), slides / "slide_000.h5")


@pytest.mark.parametrize("name", ["abmil", "dsmil", "transmil", "vit4"])
def test_other_models_have_maps_too(tmp_path: Path, slides: Path, name: str) -> None:
    bundle = make_bundle(tmp_path / name, 32, name)
    explain_slide(load_bundle(bundle), slides / "slide_000.h5", tmp_path / "out")
    assert (tmp_path / "out" / "slide_000.png").is_file()


def test_micrometres_need_a_picture_that_knows_its_scale(tmp_path: Path, slides: Path, bundle: Path) -> None:
    path = tmp_path / "um.h5"
    source = read_slide(slides / "slide_000.h5")
    with h5py.File(path, "w") as file:
        file.attrs.update({"extractor": "some", "unit": "um", "tile_size_um": STRIDE / 4, "tile_size_px": STRIDE})
        file["coords"] = source.coords.numpy().astype(np.float32) / 4
        file["feats"] = source.features.numpy()
    png = picture(tmp_path / "px.png", slides / "slide_000.h5")
    with pytest.raises(UserError, match=r"in micrometres and .* does not say how many"):
        explain_slide(load_bundle(bundle), path, tmp_path / "out", images=png)
    with pytest.raises(UserError, match="--geojson needs level-0 pixels"):
        explain_slide(load_bundle(bundle), path, tmp_path / "out", geojson=True)
    explain_slide(load_bundle(bundle), path, tmp_path / "out")
    image = open_slide_image(png)
    known = type(image)(image.path, image.size, 0.25, image.thumbnail, image.read)
    places = place_patches(read_slide(path), known)
    np.testing.assert_allclose(places.corners, source.coords.numpy(), rtol=1e-6)
    assert places.side == STRIDE
    assert places.in_pixels


def test_slides_without_openslide_get_the_line_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openslide", None)
    slide = tmp_path / "a.svs"
    slide.write_bytes(b"")
    with pytest.raises(UserError, match=r"pip install 'nnunet-gdla\[wsi\]'"):
        open_slide_image(slide)
    damaged = tmp_path / "a.tif"
    damaged.write_bytes(b"no image")
    with pytest.raises(UserError, match=r"if it is a slide: pip install"):
        open_slide_image(damaged)
    Image.new("RGB", (30, 20)).save(tmp_path / "b.png")
    assert open_slide_image(tmp_path / "b.png").size == (30, 20)


def test_images_are_found_by_the_name_of_the_slide(tmp_path: Path) -> None:
    for name in ("a.txt", "a.svs", "b.png"):
        (tmp_path / name).touch()
    assert find_image(tmp_path, "a") == tmp_path / "a.svs"
    assert find_image(tmp_path, "b") == tmp_path / "b.png"
    assert find_image(tmp_path, "c") is None
    assert find_image(tmp_path / "a.svs", "other") == tmp_path / "a.svs"


def test_percentiles_keep_ties_and_gaps() -> None:
    values = np.array([3.0, 1.0, np.nan, 2.0, 2.0])
    np.testing.assert_allclose(percentiles(values), [100, 0, np.nan, 50, 50])
    np.testing.assert_array_equal(percentiles(np.ones(3)), [50, 50, 50])
    np.testing.assert_array_equal(percentiles(np.array([7.0])), [50])
    assert np.isnan(percentiles(np.array([np.nan]))).all()


@needs_wsi
@pytest.mark.parametrize("layout", ["trident", "clam", "atlaspatch", "stamp"])
def test_real_slide_in_every_layout(tmp_path: Path, layout: str) -> None:
    path = WSI / "feature_h5" / f"CMU-1-Small-Region_128_{layout}.h5"
    stride = 128.0 if layout == "clam" else None
    slide = read_slide(path, stride=stride)
    bundle = make_bundle(tmp_path / "bundle", slide.features.shape[1], stride=stride)
    written = explain_slide(
        load_bundle(bundle), path, tmp_path / "out", images=WSI / "CMU-1-Small-Region.svs", geojson=True, top=16
    )
    assert [each.suffix for each in written] == [".h5", ".csv", ".png", ".png", ".geojson"]
    tree = json.loads(next((tmp_path / "out").glob("*.geojson")).read_text())
    corners = np.array([feature["geometry"]["coordinates"][0][0] for feature in tree["features"]])
    assert corners.min() >= 0
    assert (corners.max(0) <= np.array([2220, 2967])).all()
    sides = {
        feature["geometry"]["coordinates"][0][1][0] - c[0] for feature, c in zip(tree["features"], corners, strict=True)
    }
    assert all(abs(side - 128) < 1 for side in sides)


def test_a_picture_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    """Pillow would take the first page of what is left."""
    path = tmp_path / "slide.tif"
    pages = [Image.fromarray(np.random.default_rng(page).integers(0, 255, (40, 30, 3), np.uint8)) for page in range(5)]
    pages[0].save(path, save_all=True, append_images=pages[1:])
    assert open_slide_image(path, longest_px=20).size == (30, 40)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match=r"slide\.tif cannot be read as an image: EOFError: "):
        open_slide_image(path, longest_px=20)


def in_micrometres(path: Path, side: int = 20, tile_um: float = 128.0) -> Path:
    """A square of patches of 128 micrometres as STAMP writes it."""
    cells = np.stack(np.meshgrid(np.arange(side), np.arange(side)), -1).reshape(-1, 2)
    with h5py.File(path, "w") as file:
        file.attrs.update({"extractor": "some", "unit": "um", "tile_size_um": tile_um})
        file["coords"] = (cells * tile_um).astype(np.float32)
        file["feats"] = np.random.default_rng(0).standard_normal((len(cells), 32)).astype(np.float32)
    return path


def tissue(folder: Path, edge_px: int, um_per_px: float | None, bounds: tuple[int, int] = (0, 0)) -> SlideImage:
    """A slide that is stained all over; its thumbnail has a hundredth of its edge."""
    thumbnail = Image.new("RGB", (edge_px // 100, edge_px // 100), (200, 90, 160))
    thumbnail.save(folder / "slide.png")
    return SlideImage(
        folder / "slide.png",
        (edge_px, edge_px),
        um_per_px,
        thumbnail,
        lambda x, y, w, h: Image.new("RGB", (w, h)),
        bounds,
    )


@pytest.mark.parametrize("wrong", [2.5, 0.025, 25.0])
def test_m20_a_size_of_a_pixel_that_no_scanner_has_is_refused(wrong: float, tmp_path: Path) -> None:
    slide = read_slide(in_micrometres(tmp_path / "s.h5"))
    with pytest.raises(UserError, match=r"a pixel has .* micrometres; scanners have 0.1 to 2: .* --mpp"):
        place_patches(slide, tissue(tmp_path, 10240, wrong))
    places = place_patches(slide, tissue(tmp_path, 10240, wrong), 0.25)
    assert places.side == 512
    assert places.corners.max() == 19 * 512
    assert uncovered_tissue(places, tissue(tmp_path, 10240, wrong)) is None


def test_m20_a_lattice_in_a_corner_of_the_tissue_is_pointed_out(tmp_path: Path) -> None:
    slide = read_slide(in_micrometres(tmp_path / "s.h5"))
    image = tissue(tmp_path, 10240, 2.0)  # ten times 0.2: no scanner can be excluded by the number alone
    remark = uncovered_tissue(place_patches(slide, image), image)
    assert remark is not None
    assert "reach over 1.6% of the tissue on slide.png: " in remark
    with pytest.raises(UserError, match=r"reach to x .* or is 0\.1 um per pixel wrong \(--mpp\)"):
        place_patches(slide, tissue(tmp_path, 10240, 0.1))


def test_m20_mpp_is_for_micrometres_on_a_slide(tmp_path: Path, slides: Path, bundle: Path) -> None:
    slide = read_slide(slides / "slide_000.h5")
    with pytest.raises(UserError, match="--mpp is for micrometres"):
        place_patches(slide, tissue(tmp_path, 10240, 0.25), 0.25)
    for options in ({"mpp": 0.25}, {"mpp": 0.0, "slide": "x"}, {"mpp": float("nan"), "slide": "x"}):
        args = arguments(features=str(slides), model=str(bundle), out=str(tmp_path / "o"), **options)
        with pytest.raises(UserError, match=r"--mpp .*: give the micrometres of a pixel"):
            run(args)
    path = in_micrometres(tmp_path / "s.h5", side=4)
    png = tmp_path / "s.png"
    Image.new("RGB", (2048, 2048), "pink").save(png)
    assert explain_slide(load_bundle(bundle), path, tmp_path / "out", images=png, mpp=0.25)


def test_m19_geojson_counts_from_the_scanned_area(tmp_path: Path, slides: Path, bundle: Path) -> None:
    scores = score_slide(load_bundle(bundle), slides / "slide_000.h5")
    places = Places(scores.slide.coords.numpy().astype(float), float(STRIDE), in_pixels=True)
    corners = []
    for name, bounds in (("whole", (0, 0)), ("cropped", (300, 70))):
        write_geojson(tmp_path / name, scores, places, bounds)
        features = json.loads((tmp_path / name).read_text())["features"]
        corners.append(np.array([each["geometry"]["coordinates"][0] for each in features]))
    np.testing.assert_array_equal(corners[0] - corners[1], np.broadcast_to([300, 70], corners[0].shape))
    assert _bounds({"openslide.bounds-x": "300", "openslide.bounds-y": "70"}) == (300, 70)
    assert _bounds({}) == _bounds({"openslide.bounds-x": "", "openslide.bounds-y": "7"}) == (0, 0)


def test_m19_the_command_takes_the_bounds_of_the_slide(
    tmp_path: Path, slides: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = slides / "slide_000.h5"
    image = dataclasses.replace(open_slide_image(picture(tmp_path / "slide_000.png", path)), bounds=(5, 7))
    monkeypatch.setattr("nnunet_gdla.mil.commands.heatmap.open_slide_image", lambda path: image)
    explain_slide(load_bundle(bundle), path, tmp_path / "out", images=image.path, geojson=True)
    first = json.loads((tmp_path / "out" / "slide_000.geojson").read_text())["features"][0]
    corner = read_slide(path).coords[0] - torch.tensor([5, 7])
    assert first["geometry"]["coordinates"][0][0] == corner.tolist()
