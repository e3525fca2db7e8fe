"""What a model looked at on one slide: the class token's attention and the gates' coefficients, patch by patch.

Shape legend (this file): N patches in file order, H heads, A active blocks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import torch
from jaxtyping import Float32, Float64, Int64
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import nn

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.bundle import Bundle
from nnunet_gdla.mil.data import model_inputs
from nnunet_gdla.mil.files import replaced, write_csv
from nnunet_gdla.mil.gates import observed_gates
from nnunet_gdla.mil.slides import Slide, cap_rows, read_slide
from nnunet_gdla.mil.slides.overlap import lattice_order

__all__ = ["SlideScores", "percentiles", "score_slide", "write_scores"]

Array = NDArray[Any]


@dataclass(frozen=True)
class SlideScores:
    """Numbers of one slide; a patch that the model did not see (a cap acted) has NaN.

    Attributes:
        slide: As read, all its patches in file order.
        attention: Attention of the class token (or the pooling weight) per patch, mean over heads.
        beta: For every active block the coefficients of all heads.
        answer: What `Bundle.predict` says: `prob_<class>`, or `risk` and `hazard_<bin>`.
    """

    slide: Slide
    attention: Float64[np.ndarray, " N"]
    beta: Mapping[int, Float32[np.ndarray, "H N"]]
    answer: Mapping[str, float]

    def columns(self) -> dict[str, Float64[np.ndarray, " N"]]:
        """Return `attention` and `beta_block<i>` (mean over heads) by name."""
        means = {f"beta_block{block}": each.mean(0).astype(np.float64) for block, each in self.beta.items()}
        return {"attention": self.attention} | means


def score_slide(bundle: Bundle, path: Path) -> SlideScores:
    """Read a feature file and let the model explain it.

    Args:
        bundle: One model.
        path: H5 file of the encoder the model was trained on.

    Raises:
        UserError: If the file does not fit the model, or the scores are not finite.
    """
    options = bundle.info.read_options()
    cap, sort = options.pop("max_patches", None), options.pop("sort_rows", None)
    slide = read_slide(path, **options)
    bundle.info.refuse(slide)
    rows = _seen_rows(slide, cap, sort)
    seen = slide.take(torch.from_numpy(rows))
    scores, beta = _explain(bundle.model, seen, bundle.device)
    if not np.isfinite(scores).all():
        raise UserError(f"slide {slide.slide_id}: the scores are not finite; look for NaN in its features")
    everywhere = {block: _put(each, rows, len(slide.features)) for block, each in beta.items()}
    return SlideScores(slide, _put(scores, rows, len(slide.features)), everywhere, bundle.predict(seen))


def percentiles(values: Float64[np.ndarray, " N"]) -> Float64[np.ndarray, " N"]:
    """Return each value's place among all, 0 (lowest) to 100 (highest); equal values get equal places, NaN stays.

    One value alone, or values that are all equal, are in the middle: 50.
    """
    known = np.isfinite(values)
    places = np.full(values.shape, np.nan)
    count = int(known.sum())
    if count:
        places[known] = 100 * (rankdata(values[known]) - 1) / (count - 1) if count > 1 else 50.0
    return places


def write_scores(folder: Path, scores: SlideScores, source: str) -> list[Path]:
    """Write `SLIDE.h5` and `SLIDE.csv`: raw values in the row order of the feature file.

    The H5 holds `coords`, `attention` and `beta/block<i>` (H, N); the CSV has the means over heads and the percentile
    of the attention.
    """
    h5, csv = (folder / f"{scores.slide.slide_id}{suffix}" for suffix in (".h5", ".csv"))
    replaced(h5, lambda path: _write_h5(path, scores, source))
    write_csv(csv, table_of(scores))
    return [h5, csv]


def table_of(scores: SlideScores) -> pd.DataFrame:
    """Return one row per patch: `row`, `x`, `y` where there are coordinates, then the scores."""
    columns: dict[str, Array] = {"row": np.arange(len(scores.attention))}
    if scores.slide.coords is not None:
        coords = scores.slide.coords.numpy()
        columns |= {"x": coords[:, 0], "y": coords[:, 1]}
    values = scores.columns()
    columns |= {"attention": values.pop("attention"), "attention_percentile": percentiles(scores.attention)}
    return pd.DataFrame(columns | values)


def _write_h5(path: Path, scores: SlideScores, source: str) -> None:
    slide = scores.slide
    with h5py.File(path, "w") as file:
        file.attrs.update({"slide_id": slide.slide_id, "features": str(slide.path), "model": source, **scores.answer})
        if slide.coords is not None:
            file.create_dataset("coords", data=slide.coords.numpy()).attrs.update(
                {"stride": slide.stride or np.nan, "unit": slide.unit or ""}
            )
        file.create_dataset("attention", data=scores.attention)
        for block, beta in scores.beta.items():
            file.create_dataset(f"beta/block{block}", data=beta)


def _seen_rows(slide: Slide, cap: int | None, sort: str | None) -> Int64[np.ndarray, " n"]:
    """Return the rows that the model reads, in its order."""
    if slide.coords is None or slide.stride is None:
        return np.arange(len(slide.features))
    rows = cap_rows(slide.coords, cap or len(slide.features)).numpy()
    if sort is None:
        return rows
    labels = None if slide.lattices is None else slide.lattices.numpy()[rows]
    return rows[lattice_order(slide.coords.numpy()[rows], slide.stride, labels)]


@torch.inference_mode()
def _explain(model: nn.Module, slide: Slide, device: torch.device) -> tuple[Array, dict[int, Array]]:
    beta: dict[int, Array] = {}

    def keep(block: int, given: Mapping[str, Any], found: torch.Tensor) -> None:
        beta[block] = found[0].float().cpu().numpy()

    with observed_gates(model, keep):
        scores = model.patch_scores(**model_inputs(model, slide, device))  # type: ignore[operator]
    return scores.double().cpu().numpy(), dict(sorted(beta.items()))


def _put(values: Array, rows: Array, length: int) -> Array:
    everywhere = np.full((*values.shape[:-1], length), np.nan, values.dtype)
    everywhere[..., rows] = values
    return everywhere
