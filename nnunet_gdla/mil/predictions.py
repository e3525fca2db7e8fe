"""Tables of predictions: their metrics, and from slides to patients.

One row a slide (or a patient) with `slide_id`, `patient_id` and either `label` and one `prob_<class>` per class, or
`time`, `event`, `risk` and one `hazard_<i>` per time bin.
"""

from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil._vectors import Array, Vector
from nnunet_gdla.mil.metrics import classification_metrics, survival_metrics
from nnunet_gdla.mil.survival import Ties

__all__ = ["DRAWN_FROM", "classification_table_metrics", "survival_table_metrics", "to_patients"]

PROBABILITY: Final = "prob_"
HAZARD: Final = "hazard_"
# Entry of `.attrs` of a table that is a resample: the labels of the table that its rows were drawn from.
DRAWN_FROM: Final = "labels_drawn_from"


def classification_table_metrics(
    predictions: pd.DataFrame, classes: Sequence[str], *, threshold: float | None = None
) -> dict[str, float]:
    """Return `classification_metrics` of a table with `label` (the class's name) and one `prob_<class>` per class.

    In a resample (`DRAWN_FROM`) the means over classes leave out those that were there to be drawn, and were not.

    Raises:
        UserError: If a label is not among the classes.
    """
    labels = pd.Index(classes).get_indexer(predictions["label"])
    if (labels < 0).any():
        unknown = sorted({str(label) for label in predictions["label"][labels < 0]})
        raise UserError(f"label {', '.join(unknown)} is none of the classes {', '.join(classes)}")
    probabilities = predictions[[f"{PROBABILITY}{name}" for name in classes]].to_numpy(np.float64)
    missed = set(predictions.attrs.get(DRAWN_FROM, ())) - set(predictions["label"])
    not_drawn = [number for number, name in enumerate(classes) if name in missed]
    return classification_metrics(labels.astype(np.int64), probabilities, threshold=threshold, not_drawn=not_drawn)


def survival_table_metrics(
    predictions: pd.DataFrame,
    *,
    edges: Float[Array, " edges"] | None = None,
    train_time: Vector | None = None,
    train_event: Vector | None = None,
    ties: Ties = "harrell",
) -> dict[str, float]:
    """Return `survival_metrics` of a table with `time`, `event`, `risk` and, for those that need them, `hazard_<i>`."""
    columns = _hazard_columns(predictions)
    return survival_metrics(
        predictions["time"].to_numpy(np.float64),
        predictions["event"].to_numpy(np.float64),
        predictions["risk"].to_numpy(np.float64),
        hazards=predictions[columns].to_numpy(np.float64) if columns else None,
        edges=edges,
        train_time=train_time,
        train_event=train_event,
        ties=ties,
    )


def to_patients(predictions: pd.DataFrame, task: Literal["classification", "survival"]) -> pd.DataFrame:
    """Average the slides of each patient: one row a patient, patients in order of their names.

    Classification: mean of the probabilities. A patient whose slides carry different labels has no label as a patient
    and is left out; how many is kept in `.attrs["without_patient_label"]`. Survival: mean of the risks and
    of the survival curves, whose hazards are given back (the mean risk is that of the mean curve).

    Args:
        predictions: One row a slide.
        task: Which columns to expect.

    Returns:
        A new table without `slide_id`.

    Raises:
        UserError: If the slides of a patient disagree on time or event.
        ValueError: If the task is not known.
    """
    if task not in ("classification", "survival"):
        raise ValueError(f"task={task!r} is not known; choose 'classification' or 'survival'")
    patients = predictions.groupby("patient_id", sort=True)
    fixed = ["label"] if task == "classification" else ["time", "event"]
    differing = (patients[fixed].nunique() > 1).any(axis=1)
    if task == "survival" and differing.any():
        names = ", ".join(map(str, differing.index[differing][:5]))
        raise UserError(f"slides of one patient disagree on time or event: {names}; a patient has one of each")
    kept = fixed + (["time_bin"] if "time_bin" in predictions else [])
    if task == "classification":
        columns = [name for name in predictions if str(name).startswith(PROBABILITY)]
        means = patients[columns].mean()
    else:
        means = patients[["risk"]].mean().join(_mean_hazards(predictions))
    table = patients[kept].first().join(means)[~differing].reset_index()
    table.attrs["without_patient_label"] = int(differing.sum())
    return table


def _hazard_columns(predictions: pd.DataFrame) -> list[str]:
    found = [str(name) for name in predictions if str(name).startswith(HAZARD)]
    return sorted(found, key=lambda name: int(name.removeprefix(HAZARD)))


def _mean_hazards(predictions: pd.DataFrame) -> pd.DataFrame:
    columns = _hazard_columns(predictions)
    curves = (1 - predictions[columns]).cumprod(axis=1)
    mean = curves.groupby(predictions["patient_id"], sort=True).mean()
    before = mean.shift(1, axis=1, fill_value=1.0)
    # a curve that has reached 0 has no hazard any more; 1 keeps it there
    return 1 - (mean / before).where(before > 0, 0.0)
