"""`nnunet-gdla-mil heatmap`: attention and gate coefficients of one slide or of a folder of slides."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from nnunet_gdla.errors import UserError
from nnunet_gdla.files import together
from nnunet_gdla.mil.bundle import Bundle, load_bundle
from nnunet_gdla.mil.device import pick_device
from nnunet_gdla.mil.figures import paper_style, save
from nnunet_gdla.mil.heatmap import score_slide, write_scores
from nnunet_gdla.mil.heatmap_draw import draw_maps, draw_top_tiles, place_patches, uncovered_tissue, write_geojson
from nnunet_gdla.mil.slides.names import slide_id_of
from nnunet_gdla.mil.thumbnail import find_image, open_slide_image
from nnunet_gdla.words import counted

__all__ = ["explain_slide", "run"]


def run(args: argparse.Namespace) -> int:
    """Run the command.

    Args:
        args: `model` (bundle or run folder), `features` (H5 file or folder), `slide` (image, folder of images or None),
            `out`, `geojson`, `top`, `percentile`, `mpp`, `device`.

    Returns:
        Exit code 0.

    Raises:
        UserError: If something cannot be read or does not fit together.
    """
    if args.top is not None and args.top < 1:
        raise UserError(f"--top {args.top} shows nothing: give the number of tiles, such as 16")
    if not 0 < args.percentile <= 100:
        raise UserError(f"--percentile {args.percentile:g} is none: give a number above 0, up to 100")
    images = Path(args.slide).expanduser() if args.slide else None
    if args.mpp is not None and not (images is not None and 0 < args.mpp < float("inf")):
        raise UserError(f"--mpp {args.mpp:g}: give the micrometres of a pixel, such as 0.25, with the slide (--slide)")
    if args.top and images is None:
        raise UserError("--top reads tiles from the slide: give its image too (--slide)")
    files = _feature_files(Path(args.features).expanduser())
    if images is not None and images.is_file() and len(files) > 1:
        raise UserError(
            f"--slide {images} is one image and {args.features} holds {len(files)} slides: give their folder"
        )
    bundle = load_bundle(Path(args.model).expanduser(), pick_device(args.device))
    if images is not None:
        _find_all(images, files)
    for path in files:
        written = explain_slide(
            bundle,
            path,
            Path(args.out).expanduser(),
            images=images,
            geojson=args.geojson,
            top=args.top or 0,
            percentile=args.percentile,
            mpp=args.mpp,
        )
        print(f"{path.name}: {', '.join(str(each) for each in written)}")
    return 0


def explain_slide(
    bundle: Bundle,
    features: Path,
    out: Path,
    *,
    images: Path | None = None,
    geojson: bool = False,
    top: int = 0,
    percentile: float = 99.0,
    mpp: float | None = None,
) -> list[Path]:
    """Write `SLIDE.h5`, `.csv` and `.png`, on demand `SLIDE.geojson` and `SLIDE_top.png`; all of them, or none.

    Args:
        bundle: One model.
        features: Feature file.
        out: Folder, made where missing.
        images: Picture of the slide, or a folder where one has its name.
        geojson: Also write squares for QuPath.
        top: Number of tiles on the sheet; 0 for no sheet.
        percentile: Percentile of |beta| at which the colours end.
        mpp: Micrometres per pixel, for micrometre coordinates on a slide that does not say it, or says it wrong.

    Returns:
        The files written.

    Raises:
        UserError: If something cannot be read or does not fit together.
    """
    scores = score_slide(bundle, features)
    name = scores.slide.slide_id
    found = find_image(images, name) if images is not None else None
    if images is not None and found is None:
        raise UserError(f"{images} holds no image called {name}: name the file itself, or leave --slide out")
    image = open_slide_image(found) if found is not None else None
    with together(out, option="--out"):
        written = write_scores(out, scores, json.dumps(list(bundle.folders)))
        if scores.slide.coords is None:
            print(f"{features} holds no coordinates: scores without a map")
            return written
        places = place_patches(scores.slide, image, mpp)
        if image is not None and (remark := uncovered_tissue(places, image)):
            print(f"WARN {remark}")
        with paper_style():
            written.append(save(draw_maps(scores, places, image, percentile), out / f"{name}.png"))
            if top and image is not None:
                written.append(save(draw_top_tiles(scores, places, image, top), out / f"{name}_top.png"))
        if geojson:
            write_geojson(out / f"{name}.geojson", scores, places, (0, 0) if image is None else image.bounds)
            written.append(out / f"{name}.geojson")
        return written


def _find_all(images: Path, files: Sequence[Path]) -> None:
    """Name all images that are missing before the first map is drawn."""
    names = [slide_id_of(path) for path in files]
    missing = [name for name in names if find_image(images, name) is None]
    if missing:
        some = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise UserError(
            f"{images} holds no image called {some} ({len(missing)} of {counted(len(files), 'slide')}): name the file "
            "itself, complete the folder, or leave --slide out"
        )
    if images.is_file() and images.stem != names[0]:
        print(f"WARN: the image is {images.name}, the slide {names[0]}: drawn all the same; are they the same tissue?")


def _feature_files(place: Path) -> Sequence[Path]:
    if place.is_file():
        return [place]
    files = sorted(each for each in place.glob("*") if each.suffix in (".h5", ".hdf5", ".pt")) if place.is_dir() else []
    if not files:
        raise UserError(f"no feature file {place}, and no folder with .h5 files of that name")
    return files
