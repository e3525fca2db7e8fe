"""How much the patches of a cohort repeat their neighbours, and whether neighbours are found at all.

Shape legend (this file): N patches, D feature width, K neighbour slots.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.figures import INK, SOFT, canvas, colour, count_axis, paper_style, save, say, title
from nnunet_gdla.mil.files import write_csv
from nnunet_gdla.mil.neighbours import lattice_graph
from nnunet_gdla.mil.slides import Slide
from nnunet_gdla.ops.neighbours import NeighbourGraph, local_homogeneity, shuffled
from nnunet_gdla.words import counted

__all__ = ["cosine_with_mean", "redundancy_table", "slide_redundancy", "write_redundancy"]

_SLOTS: Final = 8


def cosine_with_mean(features: Float[Tensor, "N D"], graph: NeighbourGraph) -> Float[Tensor, " N"]:
    r"""Return the cosine of each patch's features with the mean of its neighbours', $\cos(x_i, \bar x_{N(i)})$.

    Zero where there are no neighbours. Higher than the mean cosine: averaging removes what is each neighbour's own.
    """
    total = torch.zeros(features.shape, dtype=torch.float32)
    for slot in range(graph.index.shape[1]):  # slot by slot: one copy of the features, however many neighbours
        filled = graph.mask[:, slot]
        total[filled] += features[graph.index[filled, slot]].float()
    cosine = torch.zeros(len(features))
    for start in range(0, len(features), 8192):
        rows = slice(start, start + 8192)
        cosine[rows] = torch.cosine_similarity(features[rows].float(), total[rows], dim=-1, eps=1e-12)
    return cosine


def slide_redundancy(slide: Slide) -> dict[str, str | float | int]:
    """Return one row of the table of a cohort.

    Args:
        slide: With coordinates.

    Returns:
        `slide_id`, `patches`, `stride`; `neighbours` (mean of up to 8), `isolated` (share without any), `surrounded`
        (share with all 8); over the patches that have neighbours `cosine_mean_3x3` with its quartiles `cosine_q25` and
        `cosine_q75`, `homogeneity` (mean of the single cosines, what the gate reads), and `homogeneity_random`, the
        same with as many random patches of the slide: the difference of the last two is local redundancy.

    Raises:
        UserError: If the slide has no coordinates.
    """
    if slide.coords is None or slide.stride is None:
        raise UserError(f"{slide.path} holds no coordinates: it has no neighbours to compare with")
    graph = NeighbourGraph(*(part[0] for part in lattice_graph(slide.coords, float(slide.stride), slide.lattices)))
    count = graph.count
    found = count > 0
    row: dict[str, str | float | int] = {
        "slide_id": slide.slide_id,
        "patches": len(count),
        "stride": float(slide.stride),
        "neighbours": float(count.float().mean()),
        "isolated": float((~found).float().mean()),
        "surrounded": float((count == _SLOTS).float().mean()),
    }
    if not bool(found.any()):
        names = ("cosine_mean_3x3", "cosine_q25", "cosine_q75", "homogeneity", "homogeneity_random")
        return row | dict.fromkeys(names, float("nan"))
    cosine = cosine_with_mean(slide.features, graph)[found].numpy()
    near = local_homogeneity(slide.features, graph)[found]
    far = local_homogeneity(slide.features, shuffled(graph, seed=0))[found]
    quartiles = np.quantile(cosine, (0.25, 0.75))
    return row | {
        "cosine_mean_3x3": float(cosine.mean()),
        "cosine_q25": float(quartiles[0]),
        "cosine_q75": float(quartiles[1]),
        "homogeneity": float(near.mean()),
        "homogeneity_random": float(far.mean()),
    }


def redundancy_table(slides: Iterable[Slide]) -> pd.DataFrame:
    """Return one row per slide; the slides are read one after the other."""
    return pd.DataFrame([slide_redundancy(slide) for slide in slides])


def write_redundancy(folder: Path, slides: Iterable[Slide]) -> list[Path]:
    """Write `redundancy.csv`, one row per slide, and `redundancy.png`.

    Args:
        folder: Made where missing.
        slides: Slides of a cohort.

    Returns:
        The two files.

    Raises:
        UserError: If a slide has no coordinates.
    """
    table = redundancy_table(slides)
    write_csv(folder / "redundancy.csv", table)
    with paper_style():
        return [folder / "redundancy.csv", save(_draw(table), folder / "redundancy.png")]


def _draw(table: pd.DataFrame) -> Figure:
    figure, (cosines, local, counts) = canvas(1, 3, width=4.6, height=4.0)
    if table.empty or table["homogeneity"].isna().all():
        for axes in (cosines, local, counts):
            say(axes, "no slide, or no patch with a neighbour")
        return figure
    _cosines(cosines, table)
    _local(local, table)
    counts.hist(table["neighbours"], bins=np.linspace(0, _SLOTS, 33).tolist(), color=colour(0))
    counts.set(xlabel="neighbours found, mean over the slide's patches", ylabel="slides", xlim=(0, _SLOTS))
    count_axis(counts.yaxis)
    title(counts, f"Neighbours of 8; isolated patches: {100 * table['isolated'].mean():.1f} %")
    return figure


def _cosines(axes: Axes, table: pd.DataFrame) -> None:
    rows = table.sort_values("cosine_mean_3x3").reset_index(drop=True)
    axes.vlines(rows.index, rows["cosine_q25"], rows["cosine_q75"], color=colour(5), linewidth=1.2)
    axes.plot(rows.index, rows["cosine_mean_3x3"], "o", color=colour(0), markersize=3)
    axes.set(xlabel="slides in order", ylabel="cosine with the 3x3 mean", ylim=(min(0, rows["cosine_q25"].min()), 1.02))
    count_axis(axes.xaxis)
    title(axes, f"{counted(len(rows), 'slide')}: mean and quartiles")


def _local(axes: Axes, table: pd.DataFrame) -> None:
    axes.plot(table["homogeneity_random"], table["homogeneity"], "o", color=colour(0), markersize=4, alpha=0.7)
    axes.axline((0, 0), slope=1, color=INK, linewidth=1, linestyle=":")
    low = min(0.0, float(table[["homogeneity_random", "homogeneity"]].min(axis=None)))
    axes.set(xlabel="cosine with random patches of the slide", ylabel="cosine with neighbours", aspect="equal")
    axes.set(xlim=(low, 1.02), ylim=(low, 1.02))
    gap = (table["homogeneity"] - table["homogeneity_random"]).mean()
    axes.annotate(f"mean difference {gap:.3f}", (0.97, 0.05), xycoords="axes fraction", color=SOFT, ha="right")
    title(axes, "Local against overall likeness")
