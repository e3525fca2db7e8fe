"""Plumbing check to look at: windows of two real slides, slide of origin predicted, heat maps of the whole slides.

    python -m benchmarks.two_slides FEATURES_A.h5 FEATURES_B.h5 --images A.svs B.svs --out two_slides

Cuts both slides into windows of 12 x 12 patches (at least half full), writes them as a cohort whose label is the slide
of origin, trains a small model with Gated SRP on it, and draws what it sees on both whole slides. The windows of one
slide are no independent patients and stain tells the slides apart: a good number here means that the parts fit together
and nothing else.
"""

import argparse
from pathlib import Path

import h5py
import numpy as np
import pandas as pd

from nnunet_gdla.mil.bundle import load_bundle
from nnunet_gdla.mil.commands.heatmap import explain_slide
from nnunet_gdla.mil.config import config_from_dict
from nnunet_gdla.mil.fit import fit
from nnunet_gdla.mil.slides import Slide, read_slide

WINDOW = 12


def main() -> None:
    """Make the cohort, train, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path, nargs=2)
    parser.add_argument("--images", type=Path, nargs=2, required=True)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("two_slides"))
    arguments = parser.parse_args()
    rows = []
    for path in arguments.features:
        rows += write_windows(read_slide(path), arguments.out / "cohort")
    table = arguments.out / "cohort.csv"
    pd.DataFrame(rows, columns=["slide_id", "label"]).to_csv(table, index=False)
    run = train(table, arguments.out / "cohort", arguments.out / "run", arguments.epochs)
    bundle = load_bundle(run)
    for path, image in zip(arguments.features, arguments.images, strict=True):
        written = explain_slide(bundle, path, arguments.out / "heatmap", images=image, geojson=True, top=16)
        print(*written, sep="\n")


def write_windows(slide: Slide, folder: Path) -> list[tuple[str, str]]:
    """Write one file per window and return names and labels."""
    assert slide.coords is not None
    assert slide.stride is not None
    folder.mkdir(parents=True, exist_ok=True)
    coords, side = slide.coords.numpy(), int(slide.stride)
    window = (coords - coords.min(0)) // (WINDOW * side)
    rows = []
    for place in np.unique(window, axis=0):
        inside = np.flatnonzero((window == place).all(1))
        if len(inside) < WINDOW**2 // 2:
            continue
        name = f"{slide.slide_id}_x{place[0]}_y{place[1]}"
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["features"] = slide.features.numpy()[inside]
            file["coords"] = coords[inside]
            file["coords"].attrs.update({"patch_size": side, "patch_size_level0": side, "patch_level": 0, "overlap": 0})
        rows.append((name, slide.slide_id))
    return rows


def train(table: Path, features: Path, run: Path, epochs: int) -> Path:
    """Train a small model on the windows."""
    model = {"width": 48, "depth": 3, "num_heads": 4, "num_landmarks": 16, "gate_hidden": 16}
    train = {"epochs": epochs, "accumulate": 2, "lr": 3e-3, "class_weights": "balanced"}
    train |= {"workers": 0, "accelerator": "cpu", "bootstrap": 200}
    tree = {
        "data": {
            "table": str(table.resolve()),
            "features": str(features.resolve()),
            "task": "classification",
            "patient": "slide",
        },
        "split": {"scheme": "holdout"},
        "model": model,
        "train": train,
    }
    return fit(config_from_dict(tree), run=run, say=print)


if __name__ == "__main__":
    main()
